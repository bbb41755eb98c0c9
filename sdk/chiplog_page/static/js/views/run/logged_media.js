// Logged media as elements: images with what is drawn over them, sound, video, pages of HTML, tables, downloads.

import { classColour } from "../../charts/colours.js";
import { h, show, svg } from "../../dom.js";
import { checkbox, quiet } from "../../elements.js";
import { ask, part } from "../../net/api.js";
import { grid } from "../../tables/grid.js";
import { labelText } from "../../text/labels.js";
import { bytesText, countText, valueText, wholeText } from "../../text/texts.js";
import { IMAGE_BYTES_MAX } from "./saved_files.js";

const TYPING_MS = 250;
const ROWS_AT_FIRST = 50; // of a table, until more are asked for
const ROWS_MAX = 1_000; // a bound of the server
const SMALL_PX = 96; // an image of fewer is enlarged, with its pixels as squares
const TEXT_PX = 11; // over an image

/** Return the address of a logged content. */
function contentAddress(run, sha256) {
  return `api/runs/${part(run)}/contents/${sha256}`;
}

/** Return the element that displays a content: an <img>, a player or a frame; null if it can only be downloaded. */
function player(run, { type, bytes, sha256, kind }, name, attributes = {}) {
  const src = contentAddress(run, sha256);
  if (type?.startsWith("audio/")) return h("audio", { src, controls: true, preload: "metadata", "aria-label": name });
  if (type?.startsWith("video/")) return h("video", { src, controls: true, loop: true, preload: "metadata", "aria-label": name });
  if (!type || bytes > IMAGE_BYTES_MAX) return null;
  if (kind !== "html") return h("img", { loading: "lazy", src, alt: name, ...attributes });
  return h("iframe", { loading: "lazy", sandbox: "allow-popups allow-popups-to-escape-sandbox", src, title: name });
}

/**
 * Return one logged value as an element.
 * @param {Object} row as of `api/runs/RUN/logged`
 * @param {{run: string, key: string, kind: string, step: number, isOff: Set<string>, table: Object}} context isOff:
 *   layers that are not drawn; table: what is chosen of tables
 */
export function mediaElement(row, context) {
  const { run, key, kind, step } = context;
  const { metadata } = row;
  const file = `${key.split("/").at(-1)}-${step}${row.item === null ? "" : `-${row.item}`}.${metadata.format ?? "bin"}`;
  const facts = [
    metadata.width && `${metadata.width} × ${metadata.height}`,
    metadata.n_points && countText(metadata.n_points, "point"),
    metadata.sample_rate && `${wholeText(metadata.sample_rate)} Hz`,
    metadata.n_frames && countText(metadata.n_frames, "frame"),
    metadata.format,
    kind === "html" && "scripts do not run here",
    bytesText(row.bytes),
  ];
  const link = h("a", { href: contentAddress(run, row.sha256), download: file, "aria-label": `Download ${file}` }, "download");
  const element = h("figure", { class: "media-item" });
  const content = contentOf(row, context);
  const enlarge = () => {
    button.setAttribute("aria-pressed", element.classList.toggle("whole"));
    content.draw?.();
  };
  const button = h("button", { class: "bare", "aria-pressed": false, onclick: enlarge }, "enlarge");
  const isImage = content.tagName === "IMG" || content.draw;
  const caption = h(
    "figcaption",
    {},
    metadata.caption && h("span", { class: "media-caption" }, metadata.caption),
    h("small", { class: "quiet" }, h("b", {}, labelText(row.label)), ` · ${facts.filter(Boolean).join(" · ")}`, row.is_stored ? [" · ", link] : null, isImage ? [" · ", button] : null),
  );
  show(element, content, caption);
  return element;
}

function contentOf(row, context) {
  const { run, key, kind, step } = context;
  if (!row.is_stored) return quiet("Its content has not arrived yet.");
  if (kind === "table") return loggedTable(row, context);
  const name = `${key} at step ${step}, ${labelText(row.label)}${row.item === null ? "" : `, ${row.item}`}`;
  const isSmall = row.metadata.width < SMALL_PX;
  const shown = player(run, { ...row, kind }, name, { class: isSmall ? "small" : null });
  if (shown?.tagName === "IMG") return drawnOver(shown, row, context);
  if (shown) return shown;
  const why = row.type ? `What is above ${bytesText(IMAGE_BYTES_MAX)} is not shown here` : `No viewer for ${row.metadata.format ?? "this format"}`;
  return quiet(`${why}; download it.`);
}

// -- over an image --

/** Return the layers over an image: {name, title, labels, boxes or mask}. */
export function layersOf({ metadata, masks }) {
  const boxes = Object.entries(metadata.boxes ?? {}).map(([name, layer]) => ({ name: `boxes ${name}`, labels: layer.class_labels ?? {}, boxes: layer.box_data ?? [] }));
  return [...boxes, ...masks.map((mask) => ({ name: `mask ${mask.name}`, labels: mask.metadata.class_labels ?? {}, mask }))];
}

/** Return switches for the layers of several images, with the names of their classes. */
export function layerSwitches(rows, isOff, onChange) {
  const layers = new Map();
  for (const layer of rows.flatMap(layersOf)) layers.set(layer.name, { ...layers.get(layer.name), ...layer.labels });
  return [...layers].map(([name, labels]) =>
    h(
      "span",
      { class: "media-layer" },
      checkbox(name, !isOff.has(name), (isOn) => (isOff[isOn ? "delete" : "add"](name), onChange())),
      Object.entries(labels)
        .slice(0, 20)
        .map(([id, text]) => h("span", { ref: ({ style }) => (style.borderColor = classColour(id)) }, text)),
    ),
  );
}

function drawnOver(image, row, context) {
  const layers = layersOf(row);
  if (!layers.length) return image;
  const frame = h("div", { class: "media-frame" }, image);
  frame.draw = () => {
    while (image.nextSibling) image.nextSibling.remove();
    const { naturalWidth: width, naturalHeight: height, clientWidth: shownWidth } = image;
    if (!width) return;
    const size = (TEXT_PX * width) / (shownWidth || width);
    for (const layer of layers) {
      if (context.isOff.has(layer.name)) continue;
      if (layer.boxes) frame.append(boxesElement(layer, width, height, size, row.metadata.classes ?? {}));
      else if (layer.mask.is_stored) frame.append(maskElement(context.run, layer.mask));
    }
  };
  image.addEventListener("load", frame.draw);
  return frame;
}

function boxesElement({ boxes, labels }, width, height, size, classes) {
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    boxes.map((box) => {
      const [scaleX, scaleY] = box.domain === "pixel" ? [1, 1] : [width, height];
      const { middle, minX, maxX, minY, maxY, ...place } = box.position;
      const [x, w] = middle ? [(middle[0] - place.width / 2) * scaleX, place.width * scaleX] : [minX * scaleX, (maxX - minX) * scaleX];
      const [y, tall] = middle ? [(middle[1] - place.height / 2) * scaleY, place.height * scaleY] : [minY * scaleY, (maxY - minY) * scaleY];
      const colour = classColour(box.class_id ?? 0);
      const name = box.box_caption ?? labels[box.class_id] ?? classes[box.class_id] ?? "";
      const scores = Object.entries(box.scores ?? {}).map(([key, score]) => `${key} ${valueText(score)}`);
      return svg(
        "g",
        {},
        svg("rect", { x, y, width: Math.max(0, w), height: Math.max(0, tall), stroke: colour, "vector-effect": "non-scaling-stroke" }),
        svg("text", { x, y: Math.max(y - size / 4, size), fill: colour, "font-size": size }, name),
        svg("title", {}, [name, ...scores].join(" · ")),
      );
    }),
  );
}

/** Return a picture of a mask: a colour for each class, nothing for class 0. */
function maskElement(run, { sha256 }) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  fetch(contentAddress(run, sha256))
    .then(async (answer) => answer.ok && drawMask(canvas, await readIds(new Uint8Array(await answer.arrayBuffer()))))
    .catch(() => {}); // the image is shown without it
  return canvas;
}

function drawMask(canvas, { width, height, ids }) {
  Object.assign(canvas, { width, height });
  const picture = new ImageData(width, height);
  const pixels = new Uint32Array(picture.data.buffer);
  const colours = new Map([[0, 0]]);
  for (const [at, id] of ids.entries()) {
    if (!colours.has(id)) colours.set(id, new Uint32Array(rgba(classColour(id)).buffer)[0]);
    pixels[at] = colours.get(id);
  }
  canvas.getContext("2d").putImageData(picture, 0, 0);
}

/** Return {width, height, ids} of the PNG of a mask. A canvas would have only the upper 8 of 16 bits. */
export async function readIds(bytes) {
  if (bytes[24] === 16 && bytes[25] === 0 && bytes[28] === 0) return readGrey16(bytes);
  const bitmap = await createImageBitmap(new Blob([bytes]), { colorSpaceConversion: "none" });
  const { width, height } = bitmap;
  const drawing = h("canvas", { width, height }).getContext("2d", { willReadFrequently: true });
  drawing.drawImage(bitmap, 0, 0);
  return { width, height, ids: drawing.getImageData(0, 0, width, height).data.filter((_, at) => at % 4 === 0) };
}

// The bytes that a filter of PNG expects, from those to the left, above, and above to the left.
const FILTERS = [
  () => 0,
  (left) => left,
  (left, above) => above,
  (left, above) => (left + above) >> 1,
  (left, above, corner) => {
    const [toLeft, toAbove, toCorner] = [above - corner, left - corner, left + above - 2 * corner].map(Math.abs);
    return toLeft <= toAbove && toLeft <= toCorner ? left : toAbove <= toCorner ? above : corner;
  },
];

/** Return {width, height, ids} of a PNG of 16 bits of grey, which is not interlaced. See the specification of PNG. */
async function readGrey16(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const [width, height] = [view.getUint32(16), view.getUint32(20)];
  const parts = [];
  for (let at = 8; at < bytes.length; at += 12 + view.getUint32(at))
    if (view.getUint32(at + 4) === 0x49444154) parts.push(bytes.subarray(at + 8, at + 8 + view.getUint32(at))); // IDAT
  const inflated = new Blob(parts).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = new Uint8Array(await new Response(inflated).arrayBuffer());
  const ids = new Uint16Array(width * height);
  let above = new Uint8Array(2 * width);
  for (let row = 0; row < height; row++) {
    const [begin, end] = [row * (2 * width + 1), (row + 1) * (2 * width + 1)];
    const [filter, line] = [FILTERS[data[begin]], data.subarray(begin + 1, end)];
    for (let at = 0; at < line.length; at++) line[at] += filter(line[at - 2] ?? 0, above[at], above[at - 2] ?? 0);
    for (let at = 0; at < width; at++) ids[row * width + at] = (line[2 * at] << 8) | line[2 * at + 1];
    above = line;
  }
  return { width, height, ids };
}

/** Return a colour as four bytes. */
function rgba(colour) {
  const drawing = h("canvas", { width: 1, height: 1 }).getContext("2d");
  drawing.fillStyle = colour;
  drawing.fillRect(0, 0, 1, 1);
  return drawing.getImageData(0, 0, 1, 1).data;
}

// -- tables --

/** Return a table that sorts and filters; the server does both. context.table keeps the choice for other steps. */
function loggedTable({ sha256, metadata }, { run, key, table: chosen, signal }) {
  const box = h("div");
  const words = h("span", { class: "quiet small" });
  let typing = null;
  const search = h("input", {
    ...{ type: "search", placeholder: "Filter rows", "aria-label": `Filter rows of ${key}`, value: chosen.search ?? "" },
    oninput: () => {
      clearTimeout(typing);
      typing = setTimeout(() => {
        chosen.search = search.value;
        load();
      }, TYPING_MS);
    },
  });
  let limit = ROWS_AT_FIRST;
  let nAsked = 0;

  async function load() {
    const number = ++nAsked;
    try {
      const { sort, order, search } = chosen;
      const found = await ask(`runs/${part(run)}/tables/${sha256}`, { sort, order, search, limit }, { signal });
      if (number === nAsked) draw(found);
    } catch (error) {
      if (error.name !== "AbortError") show(words, h("span", { class: "error" }, error.message));
    }
  }

  function draw({ columns, rows, media, n_rows: nRows, n_found: nFound, n_columns: nColumns }) {
    const kinds = columns.map(({ is_number: isNumber }) => (isNumber ? "number" : null));
    const cellOf = (cell, name) => {
      const found = typeof cell === "string" && cell.startsWith("sha256:") ? media[cell.slice(7)] : null;
      if (!found) return typeof cell === "number" ? valueText(cell) : cell === null ? "" : String(cell);
      if (!found.is_stored) return `${found.kind}: has not arrived`;
      return player(run, { ...found, sha256: cell.slice(7) }, `${name}: ${found.kind}`) ?? h("a", { href: contentAddress(run, cell.slice(7)), download: true }, found.kind);
    };
    const heads = columns.map(({ name }, at) => {
      const isSorted = chosen.sort === at;
      const arrow = isSorted ? (chosen.order === "down" ? " ▼" : " ▲") : "";
      const onclick = () => {
        Object.assign(chosen, { sort: at, order: isSorted && chosen.order === "up" ? "down" : "up" });
        load();
      };
      return [h("button", { class: "bare", onclick }, name, arrow), kinds[at]];
    });
    const cells = (row) => row.map((cell, at) => h("td", { class: kinds[at], title: typeof cell === "number" ? cell : null }, cellOf(cell, columns[at].name)));
    const focused = [...box.querySelectorAll("th button")].indexOf(document.activeElement);
    const body = h("tbody", {}, rows.map((row) => h("tr", {}, cells(row))));
    show(box, grid(heads, body, { box: { class: "scroll saved-table", tabindex: 0, role: "group", "aria-label": `Rows of ${key}` } }));
    const ths = [...box.querySelectorAll("th")];
    ths[chosen.sort]?.setAttribute("aria-sort", chosen.order === "down" ? "descending" : "ascending");
    if (focused >= 0) ths[focused]?.firstChild.focus();
    const more = h("button", { onclick: () => ((limit = ROWS_MAX), load()) }, "Show more");
    const part = nColumns > columns.length ? `${columns.length} of ` : "";
    const of = rows.length < nFound ? `${wholeText(rows.length)} of ` : "";
    const all = nFound < nRows ? `${countText(nFound, "row")} of ${wholeText(nRows)}` : countText(nRows, "row");
    show(words, ` ${of}${all}, ${part}${countText(nColumns, "column")} `, rows.length < Math.min(nFound, ROWS_MAX) ? more : null);
  }

  show(words, ` ${countText(metadata.n_rows ?? 0, "row")} …`);
  load();
  return h("div", {}, h("p", { class: "bar" }, search, words), box);
}
