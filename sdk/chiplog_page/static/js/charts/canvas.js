// Ticks of axes, and cells as pixels.

const TICKS_MAX = 1000; // of one axis

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
