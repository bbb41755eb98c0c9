// Histograms over steps on a canvas: columns are steps, rows are values. The server has reduced both by the maximum;
// here a column is never narrower than a pixel.

import { h, show } from "../../dom.js";
import { valueText, wholeText } from "../../texts.js";
import { onTheme } from "../../theme.js";
import { NO_DATA, RAMPS, colorOf, copyPicture, themeOf } from "./canvas.js";

const LEFT = 66; // room for values, pixels
const BOTTOM = 18;
const HEIGHT = 210;
const ROW = 2; // pixels of a row at least
const LEAST = 0.14; // of the colours: one value among millions is not the background
const DRAG = 5; // pixels; less is a click
const GAP = 1.5; // typical distances between steps; a column ends there if no next one does

/**
 * A picture of histograms.
 * @param {{onStep: function(step), onZoom: function({first, last, low, high})}} handlers onZoom: what was dragged over
 * @returns {Object} element; draw(data, {isLog, step}); mark(step); size(): {rows, columns}; close()
 */
export function histogramMap({ onStep, onZoom }) {
  const canvas = h("canvas", { tabindex: 0, class: "heat histogram", role: "img", "aria-label": "Histograms" });
  const brush = h("div", { class: "heat-brush", hidden: true });
  const line = h("p", { class: "quiet heat-line small", "aria-live": "polite" });
  const legend = h("span", { class: "heat-legend quiet small" });
  const element = h(
    "div",
    { class: "heat-box" },
    h("div", { class: "heat-canvas" }, canvas, brush),
    h("div", { class: "bar" }, line, legend),
  );
  const picture = document.createElement("canvas");
  let data = null;
  let view = { isLog: false, step: null };
  let ends = []; // of columns, as steps
  let cursor = null; // {row, column}
  let pressed = null;

  const box = () => ({ width: Math.max(canvas.clientWidth - LEFT, 1), height: canvas.clientHeight - BOTTOM });
  const nRows = () => data.edges.length - 1;
  const first = () => data.step[0];
  const span = () => Math.max(ends.at(-1) - first(), 1);
  const xOf = (step) => ((step - first()) / span()) * box().width;
  const place = (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    const { width, height } = box();
    const x = Math.min(Math.max(event.clientX - left - LEFT, 0), width - 0.01);
    const y = Math.min(Math.max(event.clientY - top, 0), height - 0.01);
    return { x, y, step: first() + (x / width) * span(), row: nRows() - 1 - Math.floor((y / height) * nRows()) };
  };

  function cellAt(event) {
    const { left, top } = canvas.getBoundingClientRect();
    if (!data?.n || event.clientX < left + LEFT || event.clientY - top > box().height) return null;
    const { step, row } = place(event);
    const column = data.step.findLastIndex((start) => start <= step);
    return column < 0 || step > ends[column] ? null : { row, column };
  }

  function describe({ row, column }) {
    const at = row * data.step.length + column;
    const count = data.counts[at];
    const n = data.n_steps[column];
    const step = data.at?.[at] ?? data.step[column];
    const about = Number.isInteger(count) ? "" : "about ";
    const values = `${about}${valueText(count)} from ${valueText(data.edges[row])} to ${valueText(data.edges[row + 1])}`;
    const most = n > 1 ? (count ? `, the most of ${n} steps` : ` and the next ${n - 1}`) : "";
    return { step, text: `step ${wholeText(step)}${most}: ${values}` };
  }

  const hint = () => "Click for the step, drag to zoom; or use arrow keys.";
  function point(cell) {
    cursor = cell;
    line.textContent = cell ? describe(cell).text : data?.n ? hint() : "";
    paintCursor();
  }

  canvas.addEventListener("pointermove", (event) => {
    if (pressed && data?.n) {
      const from = place(pressed.event);
      const to = place(event);
      const isWide = Math.abs(from.x - to.x) >= DRAG;
      const isHigh = Math.abs(from.y - to.y) >= DRAG;
      brush.hidden = !isWide && !isHigh;
      brush.style.left = `${LEFT + (isWide ? Math.min(from.x, to.x) : 0)}px`;
      brush.style.width = `${isWide ? Math.abs(from.x - to.x) : box().width}px`;
      brush.style.top = `${isHigh ? Math.min(from.y, to.y) : 0}px`;
      brush.style.height = `${isHigh ? Math.abs(from.y - to.y) : box().height}px`;
    }
    const cell = cellAt(event);
    if (cell?.row !== cursor?.row || cell?.column !== cursor?.column) point(cell);
  });
  canvas.addEventListener("pointerleave", () => !pressed && point(null));
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !data?.n) return;
    pressed = { event, cell: cellAt(event) };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!pressed) return;
    const [from, to] = [place(pressed.event), place(event)];
    const { cell } = pressed;
    pressed = null;
    brush.hidden = true;
    const isWide = Math.abs(from.x - to.x) >= DRAG;
    const isHigh = Math.abs(from.y - to.y) >= DRAG;
    if (!isWide && !isHigh) {
      if (cell) onStep(describe(cell).step);
      return;
    }
    const steps = [from.step, to.step].sort((a, b) => a - b);
    const rows = [from.row, to.row].sort((a, b) => a - b);
    onZoom({
      ...(isWide ? { first: Math.floor(steps[0]), last: Math.ceil(steps[1]) } : {}),
      ...(isHigh ? { low: data.edges[rows[0]], high: data.edges[rows[1] + 1] } : {}),
    });
  });
  canvas.addEventListener("pointercancel", () => {
    pressed = null;
    brush.hidden = true;
  });
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
    const ratio = devicePixelRatio || 1;
    canvas.style.height = `${HEIGHT}px`;
    canvas.width = picture.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
    canvas.height = picture.height = Math.round(HEIGHT * ratio);
    const { width, height } = box();
    if (!data?.n || width <= 1) return;
    const theme = themeOf(element);
    const rgb = (color) => `rgb(${color.join(" ")})`;
    const context = picture.getContext("2d");
    const nColumns = data.step.length;
    const pixels = new ImageData(nColumns, nRows());
    data.counts.forEach((count, at) => {
      const row = nRows() - 1 - Math.floor(at / nColumns);
      pixels.data.set([...colorOf(strength(count), RAMPS[theme]), 255], (row * nColumns + (at % nColumns)) * 4);
    });
    const small = document.createElement("canvas");
    [small.width, small.height] = [nColumns, nRows()];
    small.getContext("2d").putImageData(pixels, 0, 0);
    context.fillStyle = rgb(NO_DATA[theme]);
    context.fillRect(LEFT * ratio, 0, width * ratio, height * ratio);
    context.imageSmoothingEnabled = false;
    for (let column = 0; column < nColumns; column++) {
      const left = Math.floor((LEFT + xOf(data.step[column])) * ratio);
      const right = Math.max(left + 1, Math.floor((LEFT + xOf(ends[column])) * ratio));
      context.drawImage(small, column, 0, 1, nRows(), left, 0, right - left, height * ratio);
    }
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
    const nLabels = Math.min(nRows(), 6);
    for (let label = 0; label <= nLabels; label++) {
      const edge = Math.round((label / nLabels) * nRows());
      const y = Math.min(Math.max(height - (edge / nRows()) * height, 6), height - 5);
      context.fillText(edgeText(data.edges[edge], data.edges), LEFT - 6, y);
    }
    context.textBaseline = "bottom";
    const last = data.step.at(-1);
    const ticks = last === first() ? 1 : Math.max(2, Math.min(8, Math.floor(width / 110)));
    for (let tick = 0; tick < ticks; tick++) {
      const step = Math.round(first() + (tick / Math.max(ticks - 1, 1)) * (last - first()));
      context.textAlign = tick === 0 ? "left" : tick === ticks - 1 ? "right" : "center";
      context.fillText(wholeText(step), LEFT + (tick && tick === ticks - 1 ? width : xOf(step)), canvas.clientHeight);
    }
  }

  function paintCursor() {
    const context = copyPicture(canvas, data?.n ? picture : null);
    if (!context) return;
    const { height } = box();
    const style = getComputedStyle(element);
    if (view.step !== null && view.step >= first() && view.step <= ends.at(-1)) {
      const x = LEFT + xOf(view.step);
      context.strokeStyle = style.getPropertyValue("--accent") || "blue";
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
    const theme = themeOf(element);
    const shares = data?.largest > 0 ? [0, 0.25, 0.5, 1] : [];
    show(
      legend,
      shares.map((share) => {
        const value = view.isLog ? Math.expm1(share * Math.log1p(data.largest)) : share * data.largest;
        const swatch = h("span", { class: "heat-swatch" });
        swatch.style.background = `rgb(${colorOf(strength(value), RAMPS[theme]).join(" ")})`;
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
        columns: Math.min(600, Math.max(columns, 50)),
      };
    },
    close() {
      observer.disconnect();
      endTheme();
    },
  };
}

/** Return an edge with so many digits that edges differ. */
function edgeText(value, edges) {
  const apart = Math.abs(edges.at(-1) - edges[0]) / 6;
  const size = Math.max(Math.abs(edges[0]), Math.abs(edges.at(-1)));
  if (Math.abs(value) < size * 1e-9) return "0";
  const digits = Math.min(6, Math.max(2, Math.ceil(Math.log10(size / apart)) + 1));
  const rounded = Number(value.toPrecision(digits));
  return size >= 1e5 || size < 1e-3 ? rounded.toExponential(Math.min(digits - 1, 2)) : String(rounded);
}
