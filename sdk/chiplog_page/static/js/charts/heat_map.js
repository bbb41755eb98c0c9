// A heat map: rows are labels, columns are steps.

import { show } from "../dom.js";
import { labelText } from "../text/labels.js";
import { countText, secondsText, wholeText } from "../text/texts.js";
import { cellColours, colourOf, noDataColour } from "./colours.js";
import { GridPicture } from "./grid_picture.js";
import { shortName, swatch, writeWith } from "./picture.js";

const LEFT = 84; // room for names of labels, pixels
const NAME_PX = 14; // height of a name of a row
const ROW_HEIGHTS = [[24, 18], [64, 10]]; // up to so many rows; of more, all together have …
const HEIGHT = 512;
const HEIGHT_LEAST = 36;
const SCALE_MIN = 0.05; // of the median: the unit of the logarithmic scale
const FLOOR_SHARE = 0.9; // of the cells have an excess that counts as noise and has the colour of the background …
const FLOOR_MAX = 0.1; // … up to this share of the median
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

export class HeatMap extends GridPicture {
  hint = "Point at a cell; click it for its phases; drag to zoom. Arrow keys and Enter work, too.";
  tickShift = 0.5; // a step is a column
  chosen = null;
  slow = null; // the label that the sentence names

  /** onChoose(label, step): after a click on a cell; onRange(first, last): after a drag. */
  constructor({ onChoose, onRange }) {
    super({ label: "Heat map", left: LEFT });
    Object.assign(this, { onChoose, onRange });
  }

  /**
   * Draw an answer of api/runs/RUN/heat with `excess` in seconds.
   * mark: {label, step} to frame, or null. slowLabel: its row is always named; null for none.
   */
  draw(data, mark, slowLabel) {
    const { excess, labels, phase, start, width, n_columns: n } = data;
    this.chosen = mark;
    this.slow = slowLabel;
    this.values = excess;
    this.nRows = data.n_rows;
    this.starts = Array.from({ length: n }, (_, at) => start + at * width);
    this.ends = this.starts.map((step) => step + width);
    this.scale = scaleOf(data);
    const what = `Heat map of ${countText(labels.length, "label")} by step, phase ${phase}`;
    this.canvas.setAttribute("aria-label", `${what}: the excess over the median of each step`);
    this.take(data);
  }

  mark(chosen) {
    this.chosen = chosen;
    if (this.data) this.paintCursor();
  }

  /** Return the columns that have room. */
  columns() {
    return Math.max(10, Math.min(COLUMNS_MAX, Math.floor(this.innerWidth * (devicePixelRatio || 1))));
  }

  get height() {
    const [, rowHeight] = ROW_HEIGHTS.find(([most]) => this.nRows <= most) ?? [null, HEIGHT / this.nRows];
    return Math.max(Math.round(this.nRows * rowHeight), HEIGHT_LEAST) + this.bottom;
  }

  /** Return {label, step}: those of the maximum of a cell. */
  originOf(cell) {
    const { data } = this;
    const at = this.numberOf(cell);
    const step = this.starts[cell.column] + (data.step?.[at] ?? 0);
    return { label: data.labels[cell.row * data.per_row + (data.label?.[at] ?? 0)], step };
  }

  describe(cell) {
    const { labels, per_row: perRow, typical_s: typical } = this.data;
    const excess = this.values[this.numberOf(cell)];
    const { label, step } = this.originOf(cell);
    if (excess === null) {
      const last = Math.min((cell.row + 1) * perRow, labels.length) - 1;
      const names = perRow > 1 ? `${labels[cell.row * perRow]} to ${labels[last]}` : label;
      return `${names}: nothing to compare at step ${wholeText(this.starts[cell.column])}`;
    }
    const usual = secondsText(typical[cell.column]);
    const more = excess > 0 ? `${secondsText(excess)} more than the median of ${usual}` : `not above the median of ${usual}`;
    return `${labelText(label)}, step ${wholeText(step)}: ${more}`;
  }

  choose(cell) {
    const { label, step } = this.originOf(cell);
    this.onChoose(label, step);
  }

  span(from, to) {
    if (!this.data || this.isEmpty) return;
    const columnAt = (x) => Math.min(Math.floor((this.stepAt(x) - this.starts[0]) / this.data.width), this.nColumns - 1);
    this.onRange(this.starts[columnAt(from)], Math.min(this.ends[columnAt(to)] - 1, this.data.last_step));
  }

  /** Return 0 to 1. The scale is logarithmic: a first step of a minute leaves a straggler of a second visible. */
  strength(value) {
    const { floor, noise, largest } = this.scale;
    if (!(largest > floor)) return 0;
    return Math.log1p(Math.max(0, value - floor) / noise) / Math.log1p((largest - floor) / noise);
  }

  paintRows(context, style, height) {
    context.strokeStyle = colourOf("--line");
    context.strokeRect(this.left - 0.5, 0.5, this.innerWidth, height);
    for (const { name, y, isSlow } of rowNames(this.data, height, this.slow)) {
      writeWith(context, style, { align: "right", baseline: "middle", isBold: isSlow });
      context.fillText(shortName(name), this.left - 6, y);
    }
  }

  paintChosen(context) {
    const { chosen, data } = this;
    if (!chosen || chosen.step === null) return;
    const place = data.labels.indexOf(chosen.label);
    const column = Math.floor((chosen.step - data.start) / data.width);
    if (place < 0 || column < 0 || column >= this.nColumns) return;
    this.frame(context, { row: Math.floor(place / data.per_row), column }, colourOf("--accent"), 2);
  }

  drawLegend() {
    const { floor, noise, largest } = this.scale;
    const colourAt = cellColours();
    const entries = [0, 0.25, 0.5, 0.75, 1].map((share) => {
      const value = floor + noise * Math.expm1(share * Math.log1p((largest - floor) / noise));
      const least = floor > 0 ? `less than +${secondsText(floor)}` : "median";
      return swatch(colourAt(share), share ? `+${secondsText(value)}` : least);
    });
    const hasNone = this.values.includes(null);
    show(this.legend, largest > 0 ? entries : entries[0], hasNone ? swatch(noDataColour(), "no data") : null);
  }
}

/** Return {floor, noise, largest}: what has the first colour, the unit of the scale, and what has the last colour. */
function scaleOf({ excess, typical_s: typical }) {
  const most = excess.reduce((a, b) => (b > a ? b : a), 0);
  const usual = typical.filter((value) => value !== null).sort((a, b) => a - b);
  const median = usual[usual.length >> 1] ?? 0;
  const sorted = Float64Array.from(excess.filter((value) => value !== null)).sort();
  return {
    floor: Math.min(sorted[Math.floor(sorted.length * FLOOR_SHARE)] ?? 0, FLOOR_MAX * median),
    noise: Math.max(SCALE_MIN * median, most / 1000) || 1,
    largest: Math.max(most, SCALE_MAX_LEAST * median),
  };
}
