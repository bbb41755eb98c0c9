// A grid of cells over steps as a picture. The server has reduced rows and columns by the maximum; in a smaller window than
// it was asked for, each pixel has the maximum of its cells, so nothing is lost.

import { wholeText } from "../text/texts.js";
import { largestPlaces, pixelPicture, pixelsOf, ticksOf } from "./canvas.js";
import { cellColours, noDataColour } from "./colours.js";
import { Picture, writeWith } from "./picture.js";

const TICK_PX = 110; // between two steps of the axis at least
const FRAME_PX = 5; // a frame around a smaller cell is larger
const TICK_ROOM = 20; // half of a step at the right edge

/**
 * A subclass has, beside what a picture needs,
 *   values: row by row, null where there is none; nRows; starts, ends: the first step of each column, and the first after
 *   it; strength(value): its place in the colours, from 0 to 1
 *   paintRows(context, style, height): the axis at the left
 */
export class GridPicture extends Picture {
  isUpward = false; // whether the first row is at the bottom
  tickShift = 0; // in steps: where a tick is within its step
  starts = [];
  ends = [];
  pixels = null; // {columns, rows, wide, places}: the pixels of columns and rows, and the cell of each pixel

  get nColumns() {
    return this.starts.length;
  }

  get isEmpty() {
    return !this.nColumns;
  }

  /** Return the length of the axis in steps. */
  get nSteps() {
    return Math.max(this.ends.at(-1) - this.starts[0], 1);
  }

  xOf(step) {
    return this.left + ((step - this.starts[0]) / this.nSteps) * this.innerWidth;
  }

  stepAt(x) {
    return this.starts[0] + ((x - this.left) / this.innerWidth) * this.nSteps;
  }

  rowAt(y) {
    const row = Math.min(Math.floor((y / this.innerHeight) * this.nRows), this.nRows - 1);
    return this.isUpward ? this.nRows - 1 - row : row;
  }

  /** Return the middle of a row. */
  yOf(row) {
    return (((this.isUpward ? this.nRows - 1 - row : row) + 0.5) / this.nRows) * this.innerHeight;
  }

  placeAt(x, y) {
    if (!this.pixels || x < this.left || y < 0 || y > this.innerHeight) return null;
    const step = this.stepAt(x);
    const column = this.starts.findLastIndex((start) => start <= step);
    if (column < 0 || step > this.ends[column]) return null;
    const { places, rows, columns, wide } = this.pixels;
    const at = places[rows[this.rowAt(y)] * wide + columns[column]];
    return { row: Math.floor(at / this.nColumns), column: at % this.nColumns };
  }

  /** Return the number of a cell in `values`. */
  numberOf({ row, column }) {
    return row * this.nColumns + column;
  }

  moved({ key, shiftKey }) {
    const up = this.isUpward ? 1 : -1;
    const [down, right] = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [up, 0], ArrowDown: [-up, 0] }[key];
    const by = shiftKey ? 10 : 1;
    const from = this.cursor ?? { row: this.isUpward ? this.nRows >> 1 : 0, column: this.nColumns - 1 };
    const within = (value, n) => Math.min(Math.max(value, 0), n - 1);
    return { row: within(from.row + by * down, this.nRows), column: within(from.column + by * right, this.nColumns) };
  }

  /** Take other data: a cursor outside of the grid is lost. */
  take(data) {
    this.data = data;
    if (this.cursor && (this.isEmpty || this.cursor.row >= this.nRows || this.cursor.column >= this.nColumns)) this.cursor = null;
    this.pixels = null;
    this.redraw();
  }

  paint(context, style, ratio) {
    const [width, height] = [this.innerWidth, this.innerHeight];
    const spans = []; // of pixels: columns that begin in the same one share it
    const columns = this.starts.map((start, at) => {
      const [left, right] = [start, this.ends[at]].map((step) => Math.floor(this.xOf(step) * ratio));
      if (spans.at(-1)?.[0] !== left) spans.push([left, left + 1]);
      spans.at(-1)[1] = Math.max(spans.at(-1)[1], right);
      return spans.length - 1;
    });
    const rows = pixelsOf(this.nRows, Math.max(1, Math.floor(height * ratio)));
    const [wide, tall] = [spans.length, rows.at(-1) + 1];
    const places = largestPlaces(this.values, columns, rows);
    this.pixels = { columns, rows, wide, places };
    const [colourAt, none] = [cellColours(), noDataColour()];
    const cells = pixelPicture(wide, tall, (at) => {
      const row = this.isUpward ? tall - 1 - Math.floor(at / wide) : Math.floor(at / wide);
      const value = this.values[places[row * wide + (at % wide)]];
      return value === null ? none : colourAt(this.strength(value));
    });
    context.fillStyle = `rgb(${none.join(" ")})`;
    context.fillRect(this.left, 0, width, height);
    context.imageSmoothingEnabled = false;
    spans.forEach(([left, right], at) => {
      context.drawImage(cells, at, 0, 1, tall, left / ratio, 0, (right - left) / ratio, height);
    });
    this.paintRows(context, style, height);
    writeWith(context, style, { align: "center", baseline: "bottom" });
    const least = Math.max(1, (this.nSteps * TICK_PX) / width);
    for (const step of ticksOf(this.starts[0], this.ends.at(-1) - 1, least)) {
      const x = this.xOf(step + this.tickShift);
      if (x < this.canvas.clientWidth - TICK_ROOM) context.fillText(wholeText(step), x, this.canvas.clientHeight);
    }
  }

  /** Paint a frame around a cell. */
  frame(context, { row, column }, colour, lineWidth) {
    const [left, right] = [this.starts[column], this.ends[column]].map((step) => this.xOf(step));
    const [wide, tall] = [right - left, this.innerHeight / this.nRows].map((size) => Math.max(size, FRAME_PX) + 2);
    context.lineWidth = lineWidth;
    context.strokeStyle = colour;
    context.strokeRect((left + right - wide) / 2, this.yOf(row) - tall / 2, wide, tall);
  }

  paintMarks(context, style) {
    this.paintChosen(context);
    if (this.cursor) this.frame(context, this.cursor, style.color, 1);
  }
}
