// Histograms over steps on a canvas: columns are steps, rows are values. The server has reduced both by the maximum; in a
// smaller window than it was asked for, each pixel has the maximum of its cells.

import { h, show } from "../dom.js";
import { countText, valueText, wholeText } from "../text/texts.js";
import { onTheme } from "../theme.js";
import {
  copyPicture,
  fitPicture,
  largestPlaces,
  pixelPicture,
  pixelsOf,
  ticksOf,
} from "./canvas.js";
import { axisText } from "./chart.js";
import { cellColours, colourOf, noDataColour } from "./colours.js";
import { dragRange } from "./drag.js";

const LEFT = 66; // room for values, pixels
const BOTTOM = 18;
const HEIGHT = 210;
const COLUMNS_MAX = 600; // a bound of the server
const ROW = 2; // pixels of a row at least
const LEAST = 0.14; // of the colours: one value among millions is not the background
const TICK_X = 110; // pixels between two steps of the axis at least
const TICK_Y = 30; // and between two values
const GAP = 1.5; // typical distances between steps; a column ends there if no next one does

/**
 * A picture of histograms.
 * @param {{onStep: function(step), onZoom: function({first, last, low, high})}} handlers onZoom: what was dragged over
 * @returns {Object} element; draw(data, {isLog, step}); mark(step); size(): {rows, columns}; close()
 */
export function histogramMap({ onStep, onZoom }) {
  const canvas = h("canvas", { tabindex: 0, class: "heat", role: "img", "aria-label": "Histograms" });
  const line = h("p", { class: "quiet heat-line small", "aria-live": "polite" });
  const legend = h("span", { class: "heat-legend quiet small" });
  const picture = document.createElement("canvas");
  let data = null;
  let view = { isLog: false, step: null };
  let ends = []; // of columns, as steps
  let cursor = null; // {row, column}
  let drawn = null; // {columns, rows, wide, places}: the pixels of columns and rows, and the cell of each pixel

  const box = () => ({ width: Math.max(canvas.clientWidth - LEFT, 1), height: canvas.clientHeight - BOTTOM });
  const nRows = () => data.edges.length - 1;
  const first = () => data.step[0];
  const span = () => Math.max(ends.at(-1) - first(), 1);
  const xOf = (step) => ((step - first()) / span()) * box().width;
  const place = (x, y) => ({
    step: first() + ((x - LEFT) / box().width) * span(),
    row: Math.max(0, nRows() - 1 - Math.floor((y / box().height) * nRows())),
  });

  function cellAt(x, y) {
    if (!drawn || x < LEFT || y < 0 || y > box().height) return null;
    const { step, row } = place(x, y);
    const column = data.step.findLastIndex((start) => start <= step);
    if (column < 0 || step > ends[column]) return null;
    const at = drawn.places[drawn.rows[row] * drawn.wide + drawn.columns[column]];
    return { row: Math.floor(at / data.step.length), column: at % data.step.length };
  }

  function describe({ row, column }) {
    const at = row * data.step.length + column;
    const count = data.counts[at];
    const n = data.n_steps[column];
    const step = data.at?.[at] ?? data.step[column];
    const values = Number.isInteger(count) ? countText(count, "value") : `about ${valueText(count)} values`;
    const bounds = `between ${valueText(data.edges[row])} and ${valueText(data.edges[row + 1])}`;
    const next = n > 1 && !count ? ` and the next ${wholeText(n - 1)}` : "";
    const most = n > 1 && count ? `, the maximum of ${countText(n, "step")}` : "";
    return { step, text: `step ${wholeText(step)}${next}: ${values} ${bounds}${most}` };
  }

  const hint = () => "Click for the step, drag to zoom; or use arrow keys.";
  function point(cell) {
    cursor = cell;
    line.textContent = cell ? describe(cell).text : data?.n ? hint() : "";
    paintCursor();
  }

  const brush = dragRange(canvas, {
    left: LEFT,
    height: () => box().height,
    cellAt,
    onPoint: point,
    onClick: (cell) => onStep(describe(cell).step),
    onBox({ x, y }) {
      if (!data?.n) return;
      const [least, most] = [place(x?.[0] ?? 0, y?.[1] ?? 0), place(x?.[1] ?? 0, y?.[0] ?? 0)];
      onZoom({
        ...(x && { first: Math.floor(least.step), last: Math.ceil(most.step) }),
        ...(y && { low: data.edges[least.row], high: data.edges[most.row + 1] }),
      });
    },
  });
  const element = h(
    "div",
    { class: "heat-box" },
    h("div", { class: "heat-canvas" }, canvas, brush),
    h("div", { class: "bar" }, line, legend),
  );

  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] };
    if (!data?.n) return;
    if (event.key in moves) {
      event.preventDefault();
      const [up, right] = moves[event.key].map((by) => by * (event.shiftKey ? 10 : 1));
      const from = cursor ?? { row: nRows() >> 1, column: data.step.length - 1 };
      const within = (value, most) => Math.min(Math.max(value, 0), most);
      point({ row: within(from.row + up, nRows() - 1), column: within(from.column + right, data.step.length - 1) });
    } else if (event.key === "Enter" && cursor) {
      onStep(describe(cursor).step);
    }
  });

  function strength(count) {
    if (!count) return 0;
    const share = view.isLog ? Math.log1p(count) / Math.log1p(data.largest) : count / data.largest;
    return LEAST + (1 - LEAST) * share;
  }

  function paint() {
    const ratio = fitPicture(canvas, picture, HEIGHT);
    const { width, height } = box();
    drawn = null;
    if (!data?.n || width <= 1) return;
    const colourAt = cellColours();
    const rgb = (color) => `rgb(${color.join(" ")})`;
    const context = picture.getContext("2d");
    const spans = []; // of pixels: columns that begin in the same one share it
    const columns = data.step.map((step, at) => {
      const [left, right] = [step, ends[at]].map((one) => Math.floor((LEFT + xOf(one)) * ratio));
      if (spans.at(-1)?.[0] !== left) spans.push([left, left + 1]);
      spans.at(-1)[1] = Math.max(spans.at(-1)[1], right);
      return spans.length - 1;
    });
    const rows = pixelsOf(nRows(), Math.max(1, Math.floor(height * ratio)));
    const [wide, tall] = [spans.length, rows.at(-1) + 1];
    drawn = { columns, rows, wide, places: largestPlaces(data.counts, columns, rows) };
    const small = pixelPicture(wide, tall, (at) => {
      const row = tall - 1 - Math.floor(at / wide); // the smallest values are at the bottom
      return colourAt(strength(data.counts[drawn.places[row * wide + (at % wide)]]));
    });
    context.fillStyle = rgb(noDataColour());
    context.fillRect(LEFT * ratio, 0, width * ratio, height * ratio);
    context.imageSmoothingEnabled = false;
    spans.forEach(([left, right], at) => {
      context.drawImage(small, at, 0, 1, tall, left, 0, right - left, height * ratio);
    });
    paintAxes(context, ratio);
    paintCursor();
  }

  function paintAxes(context, ratio) {
    const { width, height } = box();
    const style = getComputedStyle(element);
    context.scale(ratio, ratio);
    context.fillStyle = style.color;
    context.font = `11px ${style.fontFamily}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const { text, share } of valueTicks(data.edges, height)) {
      context.fillText(text, LEFT - 6, Math.min(Math.max(height * (1 - share), 6), height - 5));
    }
    context.textBaseline = "bottom";
    context.textAlign = "center";
    for (const step of ticksOf(first(), ends.at(-1), Math.max(1, (span() * TICK_X) / width))) {
      context.fillText(wholeText(step), Math.min(LEFT + xOf(step), canvas.clientWidth - 16), canvas.clientHeight);
    }
  }

  function paintCursor() {
    const context = copyPicture(canvas, data?.n ? picture : null);
    if (!context) return;
    const { height } = box();
    const style = getComputedStyle(element);
    if (view.step !== null && view.step >= first() && view.step <= ends.at(-1)) {
      const x = LEFT + xOf(view.step);
      context.strokeStyle = colourOf("--accent");
      context.lineWidth = 1.5;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, height);
      context.stroke();
    }
    if (!cursor) return;
    const left = LEFT + xOf(data.step[cursor.column]);
    const right = LEFT + xOf(ends[cursor.column]);
    const tall = Math.max(height / nRows(), 5);
    const middle = height - ((cursor.row + 0.5) / nRows()) * height;
    context.lineWidth = 1;
    context.strokeStyle = style.color;
    context.strokeRect(left - 1, middle - tall / 2 - 1, Math.max(right - left, 5) + 2, tall + 2);
  }

  function drawLegend() {
    const colourAt = cellColours();
    const shares = data?.largest > 0 ? [0, 0.25, 0.5, 1] : [];
    show(
      legend,
      shares.map((share) => {
        const value = view.isLog ? Math.expm1(share * Math.log1p(data.largest)) : share * data.largest;
        const swatch = h("span", { class: "heat-swatch" });
        swatch.style.background = `rgb(${colourAt(strength(value)).join(" ")})`;
        return [swatch, value >= 1e5 ? value.toExponential(1) : valueText(Number(value.toPrecision(3)))];
      }),
    );
  }

  const again = () => {
    drawLegend();
    paint();
  };
  const observer = new ResizeObserver(() => paint());
  observer.observe(canvas);
  const endTheme = onTheme(again);

  return {
    element,
    /** Draw an answer of api/runs/RUN/histograms. step: it is marked, if it is not null. */
    draw(next, options) {
      data = next;
      view = options;
      if (data.n) {
        const apart = data.step
          .slice(1)
          .map((step, at) => step - data.step[at])
          .sort((a, b) => a - b);
        const typical = Math.max(apart[apart.length >> 1] ?? 1, data.width);
        ends = data.step.map((step, at) => Math.min(data.step[at + 1] ?? step + typical, step + GAP * typical));
        canvas.setAttribute(
          "aria-label",
          `Histograms of ${data.step.length} columns of steps and ${nRows()} rows of values`,
        );
      }
      if (cursor && (!data.n || cursor.row >= nRows() || cursor.column >= data.step.length)) cursor = null;
      line.textContent = cursor ? describe(cursor).text : data.n ? hint() : "";
      again();
    },
    mark(step) {
      view.step = step;
      paintCursor();
    },
    size() {
      const { width, height } = box();
      const columns = Math.floor(width * (devicePixelRatio || 1));
      return {
        rows: Math.floor(Math.max(height, HEIGHT - BOTTOM) / ROW),
        columns: Math.min(COLUMNS_MAX, Math.max(columns, 50)),
      };
    },
    close() {
      observer.disconnect();
      endTheme();
    },
  };
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
