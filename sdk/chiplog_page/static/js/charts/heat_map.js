// A heat map on a canvas: rows are labels, columns are steps. The server has reduced both by the maximum; in a smaller
// window than it was asked for, each pixel has the maximum of its cells, so nothing is lost.

import { h, show } from "../dom.js";
import { labelText } from "../text/labels.js";
import { countText, secondsText, wholeText } from "../text/texts.js";
import { onTheme } from "../theme.js";
import {
  copyPicture,
  fitPicture,
  largestPlaces,
  pixelPicture,
  pixelsOf,
  ticksOf,
} from "./canvas.js";
import { cellColours, colourOf, noDataColour } from "./colours.js";
import { dragRange } from "./drag.js";

const LEFT = 84; // room for names of labels, pixels
const BOTTOM = 18;
const NAME_PX = 14; // height of a name of a row
const SCALE_MIN = 0.05; // of the median: the unit of the logarithmic scale
const FLOOR_SHARE = 0.9; // of the cells have an excess that counts as noise and has the colour of the background …
const FLOOR_MAX = 0.1; // … up to this share of the median
const TICK_PX = 110;
const COLUMNS_MAX = 600; // a bound of the server
const SCALE_MAX_LEAST = 0.25; // of the median: where no label is slower than that, nothing has the strongest colour

/** Return the names of rows for which there is room: that of the slow label always, in its place. */
export function rowNames({ labels, n_rows: nRows, per_row: perRow }, height, slow) {
  const slowRow = slow === null ? -1 : Math.floor(labels.indexOf(slow) / perRow);
  const yOf = (row) => Math.max(7, ((row + 0.5) / nRows) * height);
  const names = [];
  for (let row = 0, free = 0; row < nRows; row++) {
    const [y, isSlow] = [yOf(row), row === slowRow];
    if (!isSlow && (y < free || (slowRow >= 0 && Math.abs(y - yOf(slowRow)) < NAME_PX))) continue;
    names.push({ name: isSlow ? slow : labels[row * perRow], y, isSlow });
    free = y + NAME_PX;
  }
  return names;
}

/**
 * Draw a heat map.
 * @param {{onChoose: function(label, step), onRange: function(first, last)}} handlers
 * @returns {{element: Element, draw: function(data, chosen, slow), mark: function(chosen), columns: function(): number,
 *   close: function()}}
 */
export function heatMap({ onChoose, onRange }) {
  const canvas = h("canvas", { tabindex: 0, class: "heat", role: "img", "aria-label": "Heat map" });
  const line = h("p", { class: "quiet heat-line", "aria-live": "polite" });
  const legend = h("span", { class: "heat-legend quiet small" });
  let data = null;
  let chosen = null;
  let slow = null; // the label that the sentence names
  let cursor = null; // {row, column} under the pointer, or moved by keys
  let drawn = null; // {wide, tall, places}: the cell of each pixel

  const box = () => ({ width: canvas.clientWidth - LEFT, height: canvas.clientHeight - BOTTOM });
  const columnAt = (x) => Math.floor(((x - LEFT) / box().width) * data.n_columns);
  const cellAt = (x, y) => {
    if (!drawn) return null;
    const left = Math.floor(((x - LEFT) / box().width) * drawn.wide);
    const top = Math.floor((y / box().height) * drawn.tall);
    if (left < 0 || left >= drawn.wide || top < 0 || top >= drawn.tall) return null;
    const place = drawn.places[top * drawn.wide + left];
    return { row: Math.floor(place / data.n_columns), column: place % data.n_columns };
  };
  const stepOf = (column) => data.start + column * data.width;

  function describe(cell) {
    const at = cell.row * data.n_columns + cell.column;
    const excess = data.excess[at];
    const label = data.labels[cell.row * data.per_row + (data.label?.[at] ?? 0)];
    const step = stepOf(cell.column) + (data.step?.[at] ?? 0);
    if (excess === null) {
      const last = Math.min((cell.row + 1) * data.per_row, data.labels.length) - 1;
      const names = data.per_row > 1 ? `${data.labels[cell.row * data.per_row]} to ${data.labels[last]}` : label;
      return {
        label,
        step: stepOf(cell.column),
        text: `${names}: nothing to compare at step ${wholeText(stepOf(cell.column))}`,
      };
    }
    const usual = data.typical_s[cell.column];
    const more =
      excess > 0
        ? `${secondsText(excess)} more than the median of ${secondsText(usual)}`
        : `not above the median of ${secondsText(usual)}`;
    return { label, step, text: `${labelText(label)}, step ${wholeText(step)}: ${more}` };
  }

  function point(cell) {
    cursor = cell;
    line.textContent = cell ? describe(cell).text : data ? hint() : "";
    paintCursor();
  }
  const hint = () => "Point at a cell; click it for its phases; drag to zoom. Arrow keys and Enter work, too.";

  const brush = dragRange(canvas, {
    left: LEFT,
    height: () => box().height,
    cellAt,
    onPoint: point,
    onClick: choose,
    onSpan(from, to) {
      if (!data?.n_columns) return;
      const last = Math.min(columnAt(to), data.n_columns - 1);
      onRange(stepOf(columnAt(from)), Math.min(stepOf(last + 1) - 1, data.last_step));
    },
  });
  const element = h(
    "div",
    { class: "heat-box" },
    h("div", { class: "heat-canvas" }, canvas, brush),
    h("div", { class: "bar" }, line, legend),
  );

  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!data?.n_columns) return;
    if (event.key in moves) {
      event.preventDefault();
      const [down, right] = moves[event.key].map((by) => by * (event.shiftKey ? 10 : 1));
      const from = cursor ?? { row: 0, column: data.n_columns - 1 };
      point({
        row: Math.min(Math.max(from.row + down, 0), data.n_rows - 1),
        column: Math.min(Math.max(from.column + right, 0), data.n_columns - 1),
      });
    } else if (event.key === "Enter" && cursor) {
      choose(cursor);
    }
  });

  function choose(cell) {
    const { label, step } = describe(cell);
    onChoose(label, step);
  }

  // The picture without cursor, so that a cursor costs one copy.
  const picture = document.createElement("canvas");

  function paint() {
    if (!data) return;
    const rowHeight = data.n_rows > 64 ? 512 / data.n_rows : data.n_rows > 24 ? 10 : 18;
    const ratio = fitPicture(canvas, picture, Math.max(Math.round(data.n_rows * rowHeight), 36) + BOTTOM);
    const { width, height } = box();
    drawn = null;
    if (width <= 0 || !data.n_columns) return;
    const colourAt = cellColours();
    const context = picture.getContext("2d");
    const columns = pixelsOf(data.n_columns, Math.max(1, Math.floor(width * ratio)));
    const rows = pixelsOf(data.n_rows, Math.max(1, Math.floor(height * ratio)));
    drawn = { wide: columns.at(-1) + 1, tall: rows.at(-1) + 1, places: largestPlaces(data.excess, columns, rows) };
    const small = pixelPicture(drawn.wide, drawn.tall, (at) => {
      const value = data.excess[drawn.places[at]];
      return value === null ? noDataColour() : colourAt(strength(value));
    });
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, LEFT, 0, width, height);
    const style = getComputedStyle(element);
    context.strokeStyle = colourOf("--line");
    context.strokeRect(LEFT - 0.5, 0.5, width, height);
    context.fillStyle = style.color;
    context.font = `11px ${style.fontFamily}`;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const { name, y, isSlow } of rowNames(data, height, slow)) {
      context.font = `${isSlow ? "bold " : ""}11px ${style.fontFamily}`;
      context.fillText(name.length > 13 ? `${name.slice(0, 12)}…` : name, LEFT - 6, y);
    }
    context.font = `11px ${style.fontFamily}`;
    context.textBaseline = "bottom";
    const nSteps = data.n_columns * data.width;
    context.textAlign = "center";
    for (const step of ticksOf(data.start, data.start + nSteps - 1, Math.max(1, (nSteps * TICK_PX) / width))) {
      const x = LEFT + ((step - data.start + 0.5) / nSteps) * width;
      if (x < canvas.clientWidth - 20) context.fillText(wholeText(step), x, canvas.clientHeight);
    }
    paintCursor();
  }

  function paintCursor() {
    const context = copyPicture(canvas, data?.n_columns ? picture : null);
    if (!context) return;
    const { width, height } = box();
    const frame = (cell, color, lineWidth) => {
      const w = Math.max(width / data.n_columns, 5);
      const t = Math.max(height / data.n_rows, 5);
      const x = LEFT + ((cell.column + 0.5) / data.n_columns) * width - w / 2;
      const y = ((cell.row + 0.5) / data.n_rows) * height - t / 2;
      context.lineWidth = lineWidth;
      context.strokeStyle = color;
      context.strokeRect(x - 1, y - 1, w + 2, t + 2);
    };
    const mark = chosenCell();
    const style = getComputedStyle(element);
    if (mark) frame(mark, colourOf("--accent"), 2);
    if (cursor) frame(cursor, style.color, 1);
  }

  function chosenCell() {
    if (!chosen || chosen.step === null) return null;
    const place = data.labels.indexOf(chosen.label);
    const column = Math.floor((chosen.step - data.start) / data.width);
    if (place < 0 || column < 0 || column >= data.n_columns) return null;
    return { row: Math.floor(place / data.per_row), column };
  }

  /** Return 0 to 1. The scale is logarithmic: a first step of a minute leaves a straggler of a second visible. */
  function strength(value) {
    if (!(data.largest > data.floor)) return 0;
    return (
      Math.log1p(Math.max(0, value - data.floor) / data.noise) / Math.log1p((data.largest - data.floor) / data.noise)
    );
  }

  function drawLegend() {
    const colourAt = cellColours();
    const swatches = [0, 0.25, 0.5, 0.75, 1].map((share) => {
      const value = data.floor + data.noise * Math.expm1(share * Math.log1p((data.largest - data.floor) / data.noise));
      const swatch = h("span", { class: "heat-swatch" });
      swatch.style.background = `rgb(${colourAt(share).join(" ")})`;
      return h(
        "span",
        {},
        swatch,
        share ? ` +${secondsText(value)}` : data.floor > 0 ? ` less than +${secondsText(data.floor)}` : " median",
      );
    });
    const none = h("span", { class: "heat-swatch" });
    none.style.background = `rgb(${noDataColour().join(" ")})`;
    show(
      legend,
      data.largest > 0 ? swatches : swatches[0],
      data.excess.includes(null) ? h("span", {}, none, " no data") : null,
    );
  }

  const endTheme = onTheme(() => {
    if (!data) return;
    drawLegend();
    paint();
  });
  const observer = new ResizeObserver(() => paint());
  observer.observe(canvas);

  return {
    element,
    /**
     * Draw an answer of api/runs/RUN/heat with `excess` in seconds.
     * mark: {label, step} to frame, or null. slowLabel: its row is always named; null for none.
     */
    draw(next, mark, slowLabel) {
      data = next;
      chosen = mark;
      slow = slowLabel;
      data.largest = data.excess.reduce((most, value) => (value > most ? value : most), 0);
      const usual = data.typical_s.filter((value) => value !== null).sort((a, b) => a - b);
      const median = usual[usual.length >> 1] ?? 0;
      const sorted = Float64Array.from(data.excess.filter((value) => value !== null)).sort();
      data.floor = Math.min(sorted[Math.floor(sorted.length * FLOOR_SHARE)] ?? 0, FLOOR_MAX * median);
      data.noise = Math.max(SCALE_MIN * median, data.largest / 1000) || 1;
      data.largest = Math.max(data.largest, SCALE_MAX_LEAST * median);
      canvas.setAttribute(
        "aria-label",
        `Heat map of ${countText(data.labels.length, "label")} by step, phase ${data.phase}: ` +
          "the excess over the median of each step",
      );
      cursor = cursor && cursor.row < data.n_rows && cursor.column < data.n_columns ? cursor : null;
      if (!cursor) line.textContent = hint();
      drawLegend();
      paint();
    },
    mark(next) {
      chosen = next;
      if (data) paintCursor();
    },
    columns: () => Math.max(10, Math.min(COLUMNS_MAX, Math.floor(box().width * (devicePixelRatio || 1)))),
    close() {
      observer.disconnect();
      endTheme();
    },
  };
}
