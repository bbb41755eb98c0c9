// What the pictures on a canvas share: colours, ticks, and a cursor that costs one copy of the picture.

export const RAMPS = {
  light: [
    [255, 255, 255],
    [253, 232, 190],
    [247, 165, 84],
    [211, 72, 38],
    [110, 8, 28],
  ],
  dark: [
    [22, 26, 33],
    [70, 32, 88],
    [170, 48, 92],
    [243, 122, 62],
    [255, 236, 150],
  ],
};
const TICKS_MAX = 1000; // of one axis
export const NO_DATA = { light: [226, 230, 236], dark: [48, 55, 66] };

/** Return the next 1, 2 or 5 with zeros that is not below a number. */
export function niceStep(least) {
  const size = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((by) => by * size).find((one) => one >= least);
}

/** Return round numbers from low to high, so far apart at least. */
export function ticksOf(low, high, least) {
  const tick = niceStep(least);
  const ticks = [];
  const first = Math.ceil(low / tick);
  // Counted from 0: above 2^53, one more is the same number. And + 0, so that none is -0.
  for (let at = 0; at < TICKS_MAX && (first + at) * tick <= high; at++) ticks.push((first + at) * tick + 0);
  return ticks;
}

/** Return a colour of a ramp, at a share from 0 to 1. */
export function colorOf(share, ramp) {
  const place = Math.min(Math.max(share, 0), 1) * (ramp.length - 1);
  const at = Math.min(Math.floor(place), ramp.length - 2);
  return ramp[at].map((from, channel) => Math.round(from + (ramp[at + 1][channel] - from) * (place - at)));
}

/** Return the pixel of each of n rows or columns, on so many pixels at most; several share one if there are too few. */
export function pixelsOf(n, nPixels) {
  return Array.from({ length: n }, (_, at) => (n > nPixels ? Math.floor((at * nPixels) / n) : at));
}

/**
 * Return for each pixel the place of its largest value, so that none is lost where a pixel has several.
 * @param {Array<?number>} values row by row; null is below all numbers
 * @param {Array<number>} columns the pixel of each column, without gaps; rows: likewise
 */
export function largestPlaces(values, columns, rows) {
  const wide = columns.at(-1) + 1;
  const places = new Int32Array(wide * (rows.at(-1) + 1)).fill(-1);
  values.forEach((value, at) => {
    const pixel = rows[Math.floor(at / columns.length)] * wide + columns[at % columns.length];
    if (places[pixel] < 0 || (value !== null && value > (values[places[pixel]] ?? -Infinity))) places[pixel] = at;
  });
  return places;
}

/** Return a canvas of so many pixels. colorAt: returns [red, green, blue] of a pixel, which are numbered row by row. */
export function pixelPicture(wide, tall, colorAt) {
  const pixels = new ImageData(wide, tall);
  for (let at = 0; at < wide * tall; at++) pixels.data.set([...colorAt(at), 255], at * 4);
  const picture = document.createElement("canvas");
  [picture.width, picture.height] = [wide, tall];
  picture.getContext("2d").putImageData(pixels, 0, 0);
  return picture;
}

/** Return "dark" or "light": how an element looks. */
export function themeOf(element) {
  const [red, green, blue] = getComputedStyle(element).color.match(/\d+/g).map(Number);
  return red + green + blue > 384 ? "dark" : "light"; // light text is on a dark surface
}

/** Give a canvas a height in pixels of CSS, and it and its picture the size on the screen; return pixels per CSS pixel. */
export function fitPicture(canvas, picture, height) {
  const ratio = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = picture.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = picture.height = Math.round(canvas.clientHeight * ratio);
  return ratio;
}

/**
 * Replace what a canvas shows by a picture of the same size; null clears it.
 * @returns {?CanvasRenderingContext2D} what draws over it, in pixels of CSS; null without a picture
 */
export function copyPicture(canvas, picture) {
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (!picture?.width) return null;
  context.drawImage(picture, 0, 0);
  const ratio = devicePixelRatio || 1;
  context.scale(ratio, ratio);
  return context;
}
