// Histograms over steps: columns are steps, rows are values.

import { show } from "../dom.js";
import { countText, valueText, wholeText } from "../text/texts.js";
import { ticksOf } from "./canvas.js";
import { axisText } from "./chart.js";
import { cellColours, colourOf } from "./colours.js";
import { GridPicture } from "./grid_picture.js";
import { swatch, writeWith } from "./picture.js";

const LEFT = 66; // room for values, pixels
const HEIGHT = 210;
const COLUMNS_MAX = 600; // a bound of the server
const ROW = 2; // pixels of a row at least
const LEAST = 0.14; // of the colours: one value among millions is not the background
const TICK_Y = 30; // pixels between two values of the axis at least
const GAP = 1.5; // typical distances between steps; a column ends there if no next one does

export class HistogramMap extends GridPicture {
  hint = "Click for the step, drag to zoom; or use arrow keys.";
  isUpward = true;
  height = HEIGHT;
  view = { isLog: false, step: null };

  /** onStep(step): after a click; onZoom({first, last, low, high}): what was dragged over. */
  constructor({ onStep, onZoom }) {
    super({ label: "Histograms", left: LEFT });
    this.line.classList.add("small");
    Object.assign(this, { onStep, onZoom });
  }

  /** Draw an answer of api/runs/RUN/histograms. view: {isLog, step}; the step is marked, if it is not null. */
  draw(data, view) {
    this.view = view;
    this.values = data.counts;
    this.starts = data.n ? data.step : [];
    this.nRows = data.n ? data.edges.length - 1 : 0;
    if (data.n) {
      const apart = data.step.slice(1).map((step, at) => step - data.step[at]).sort((a, b) => a - b);
      const typical = Math.max(apart[apart.length >> 1] ?? 1, data.width);
      this.ends = data.step.map((step, at) => Math.min(data.step[at + 1] ?? step + typical, step + GAP * typical));
      const what = `Histograms of ${this.nColumns} columns of steps and ${this.nRows} rows of values`;
      this.canvas.setAttribute("aria-label", what);
    }
    this.take(data);
  }

  mark(step) {
    this.view.step = step;
    this.paintCursor();
  }

  /** Return the rows and columns that have room. */
  size() {
    const columns = Math.floor(this.innerWidth * (devicePixelRatio || 1));
    return {
      rows: Math.floor(Math.max(this.innerHeight, HEIGHT - this.bottom) / ROW),
      columns: Math.min(COLUMNS_MAX, Math.max(columns, 50)),
    };
  }

  /** Return the step of the maximum of a cell. */
  originOf(cell) {
    return this.data.at?.[this.numberOf(cell)] ?? this.starts[cell.column];
  }

  describe(cell) {
    const { edges, n_steps: nSteps } = this.data;
    const count = this.values[this.numberOf(cell)];
    const n = nSteps[cell.column];
    const values = Number.isInteger(count) ? countText(count, "value") : `about ${valueText(count)} values`;
    const bounds = `between ${valueText(edges[cell.row])} and ${valueText(edges[cell.row + 1])}`;
    const next = n > 1 && !count ? ` and the next ${wholeText(n - 1)}` : "";
    const most = n > 1 && count ? `, the maximum of ${countText(n, "step")}` : "";
    return `step ${wholeText(this.originOf(cell))}${next}: ${values} ${bounds}${most}`;
  }

  choose(cell) {
    this.onStep(this.originOf(cell));
  }

  box({ x, y }) {
    if (!this.data || this.isEmpty) return;
    const { edges } = this.data;
    this.onZoom({
      ...(x && { first: Math.floor(this.stepAt(x[0])), last: Math.ceil(this.stepAt(x[1])) }),
      ...(y && { low: edges[this.rowAt(y[1])], high: edges[this.rowAt(y[0]) + 1] }),
    });
  }

  strength(count) {
    if (!count) return 0;
    const { largest } = this.data;
    const share = this.view.isLog ? Math.log1p(count) / Math.log1p(largest) : count / largest;
    return LEAST + (1 - LEAST) * share;
  }

  paintRows(context, style, height) {
    writeWith(context, style, { align: "right", baseline: "middle" });
    for (const { text, share } of valueTicks(this.data.edges, height)) {
      context.fillText(text, this.left - 6, Math.min(Math.max(height * (1 - share), 6), height - 5));
    }
  }

  paintChosen(context) {
    const { step } = this.view;
    if (step === null || step < this.starts[0] || step > this.ends.at(-1)) return;
    context.strokeStyle = colourOf("--accent");
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(this.xOf(step), 0);
    context.lineTo(this.xOf(step), this.innerHeight);
    context.stroke();
  }

  drawLegend() {
    const { largest } = this.data;
    const colourAt = cellColours();
    const shares = largest > 0 ? [0, 0.25, 0.5, 1] : [];
    const entries = shares.map((share) => {
      const value = this.view.isLog ? Math.expm1(share * Math.log1p(largest)) : share * largest;
      const text = value >= 1e5 ? value.toExponential(1) : valueText(Number(value.toPrecision(3)));
      return swatch(colourAt(this.strength(value)), text);
    });
    show(this.legend, entries);
  }
}

/** Return round values with their shares of the height; some edges if the rows differ in size. */
function valueTicks(edges, height) {
  const [low, high] = [edges[0], edges.at(-1)];
  const n = edges.length - 1;
  const isEven = edges.every((edge, at) => Math.abs(edge - low - (at / n) * (high - low)) < 1e-6 * (high - low));
  if (!isEven) {
    const every = Math.ceil((n * TICK_Y) / height);
    const kept = [...edges.keys()].filter((at) => at % every === 0);
    return kept.map((at) => ({ text: valueText(Number(edges[at].toPrecision(3))), share: at / n }));
  }
  const values = ticksOf(low, high, ((high - low) * TICK_Y) / height);
  return values.map((value) => ({ text: axisText(value, values), share: (value - low) / (high - low) }));
}
