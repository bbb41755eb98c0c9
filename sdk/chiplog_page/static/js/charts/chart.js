// A chart on uPlot: lines with a faint band each, names at the right edge, a crosshair that all charts share, and the
// values at the crosshair as a legend. Colours are those of the style sheet, so that a change of the theme draws again.

import { h, show } from "../dom.js";
import { TIME_STEPS, clockText, durationText, exponentText, numberText, zoneName } from "../text/texts.js";
import { onTheme } from "../theme.js";
import { SERIES, colourOf, faint, seriesName } from "./colours.js";
import { readout } from "./readout.js";
import uPlot from "./uplot.js";

const SOLID = 8; // lines that are not dashed
const DASHES = [[6, 3], [2, 3]];
const HEIGHT = 210;
const POINTS_MAX = 40; // with so many or fewer, each has a dot
const FONT = "11px system-ui, sans-serif";
const DRAG_PX = 4; // a shorter way is a click
const DOUBLE_CLICK_MS = 250; // a click that a second one follows picks nothing
const STRIP = 3; // pixels
const MARK_NEAR = 6; // pixels from the crosshair
const MARKS_NEAR = 4; // of which the words are shown at once
const FLOOR_SHARE = 0.5; // of the end of the axis: where it begins above that, the legend has a note
const LOG_SPLITS_MIN = 3; // of a logarithmic x
const LABEL_PX = 72; // of its texts
const LABEL_Y_PX = 24; // of the texts of a logarithmic y
const LOG_ROOM = 0.05; // above and below the values on a logarithmic y, as a share of their powers of ten
const NAME_GAP = 3; // pixels between a line and its name
const WHOLE_INCREMENTS = Array.from({ length: 48 }, (_, at) => [1, 2, 5][at % 3] * 10 ** Math.floor(at / 3)); // of steps

let nCharts = 0; // for IDs

/** Return values smoothed by an exponential moving average. undefined (no point there, bridged) and null (a gap) stay as they are. */
export function smooth(values, weight) {
  if (!weight) return values;
  let mean = 0;
  let scale = 0;
  // An exponential moving average without the bias of its start, as of Adam: https://arxiv.org/abs/1412.6980
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    mean = weight * mean + (1 - weight) * value;
    scale = weight * scale + (1 - weight);
    return mean / scale;
  });
}

/** Return {colour, dash} of the line at a place. */
export function lineStyle(at) {
  const turn = Math.floor((at + SERIES - SOLID) / SERIES); // 0 for the first 8 lines, then one more for each 16
  return { colour: `--${seriesName(at)}`, dash: turn ? DASHES[(turn - 1) % DASHES.length] : null };
}

/** Return the mark of a line in a legend, as it is drawn. */
export function lineMark({ colour, dash }) {
  const kind = !dash ? "" : dash === DASHES[0] ? " dashed" : " dotted";
  return h("i", { class: `mark${kind}`, ref: ({ style }) => (style.borderTopColor = `var(${colour})`) });
}

/**
 * A chart in an element. `draw` shows a model:
 *   x: numbers in order; kind: "step", "time" (seconds since 1970), "relative" (seconds) or "value"; xName: of the values
 *   range: [least, most] of x, or null; isLog, isLogX: whether y or x is logarithmic, which is then above 0
 *   lines: [{name, values, low, high, raw, colour, dash, isThin, tail}], colour: name of a CSS variable; low, high: the
 *     band of a line; raw: values that stay faint behind it; tail: a name at the right edge; isThin: not the line itself
 *     but a bound; isSilent: not in the legend; isOnRight: of the axis at the right. For the legend, if `values` are not
 *     what was logged: exact: the values; bounds: [least, most] of buckets; texts: of values without a number; steps and
 *     width: the first step of each bucket, and their number; lastStep; isSmooth; isMean: a median of means; last:
 *     {step, value}, the last one; digits of its numbers
 *   marks: [{x, isBad, text}]: vertical lines, or nothing; text: a few words at the top where there is room, all of them
 *     near the crosshair
 *   fills: [[line, line, colour]]: what is filled between two lines
 *   present, nLabels: how many of the labels are at each place of x, or null; a strip marks where some are missing; noun:
 *     what they are, if not labels
 * isUtc: its times are in UTC, whatever the reader has chosen. What a reader does with it (all but onZoom and onReset may be missing):
 *   onZoom(least, most): a part was chosen, by dragging or by + and -
 *   onPan(least, most, isOver): it was moved, by dragging with Shift or by Shift and an arrow; all charts follow
 *   onReset(): a double click, or Escape
 *   onPick(at): a click on a place of x, or Enter
 *   onToggle(line): a click on a name in the legend
 */
export class Chart {
  constructor(element, legend, { label, isUtc, ...calls }) {
    this.element = element;
    this.legend = legend;
    this.calls = calls; // onZoom, onPan, …
    this.local = isUtc ? false : undefined; // undefined: as the reader has chosen
    element.setAttribute("role", "group");
    element.setAttribute("aria-roledescription", "chart");
    element.setAttribute("aria-label", label);
    element.tabIndex = 0;
    element.addEventListener("keydown", (event) => this.onKey(event));
    this.spoken = h("span", { class: "hidden-text", "aria-live": "polite" }); // where the keys have moved the crosshair
    this.edge = h("span", { class: "hidden-text", id: `chart-edge-${++nCharts}` }); // the names that are drawn there
    element.setAttribute("aria-describedby", this.edge.id);
    element.append(this.spoken, this.edge);
    this.plot = null;
    this.shape = "";
    this.model = null;
    this.resizes = new ResizeObserver(() => this.resize());
    this.resizes.observe(element);
    this.endTheme = onTheme(() => this.draw(this.model, true));
  }

  close() {
    clearTimeout(this.picking);
    this.resizes.disconnect();
    this.endTheme();
    this.plot?.destroy();
    this.plot = null;
  }

  resize() {
    const width = this.element.clientWidth;
    if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
    else if (!this.plot && width && this.model) this.draw(this.model);
  }

  /** Draw a model; `isNew` also takes the colours again. */
  draw(model, isNew = false) {
    if (!model) return;
    this.model = model;
    if (!this.element.clientWidth) return;
    const { data, series, bands } = this.columns(model);
    const shape = JSON.stringify([model.kind, model.xName, model.isLog, model.isLogX, bands.length, series.map(({ label, dash, scale }) => [label, dash, scale])]);
    if (this.plot && shape === this.shape && !isNew) {
      this.range = model.range;
      for (let at = 1; at < series.length; at++) this.plot.series[at].width = series[at].width;
      this.plot.setData(data, true);
    } else {
      this.plot?.destroy();
      this.shape = shape;
      this.range = model.range;
      this.plot = new uPlot(this.options(model, series, bands), data, this.element);
      this.plot.over.addEventListener("click", (event) => this.onClick(event));
    }
    this.drawLegend(model);
  }

  columns(model) {
    const data = [model.x];
    const series = [{}];
    const bands = [];
    const places = [];
    const add = (values, options) => {
      data.push(values);
      series.push({ ...options, points: { show: options.width > 0, size: 4, filter: dots, stroke: null, fill: options.stroke } });
      return series.length - 1;
    };
    for (const line of model.lines) {
      const stroke = colourOf(line.colour);
      const scale = line.isOnRight ? "right" : "y";
      if (line.low && line.high) {
        const high = add(line.high, { label: "", width: 0, stroke: "transparent", scale });
        const low = add(line.low, { label: "", width: 0, stroke: "transparent", scale });
        bands.push({ series: [high, low], fill: faint(stroke, 0.16) });
      }
      if (line.raw) add(line.raw, { label: "", width: 1, stroke: faint(stroke, 0.3), scale });
      const width = line.isThin ? 1 : 1.5;
      const place = add(line.values, { label: line.name, width, stroke, dash: line.dash ?? undefined, scale });
      places.push(place);
    }
    for (const [upper, lower, colour] of model.fills ?? []) {
      bands.push({ series: [places[upper], places[lower]], fill: faint(colourOf(colour), 0.16) });
    }
    this.places = places;
    return { data, series, bands };
  }

  options(model, series, bands) {
    const axis = {
      stroke: colourOf("--quiet"),
      font: FONT,
      grid: { stroke: colourOf("--grid"), width: 1 },
      ticks: { stroke: colourOf("--grid"), width: 1, size: 4 },
    };
    const texts = (plot, splits) => splits.map((value) => axisText(value, splits));
    const logTexts = (name) => (plot, splits) => {
      const { min, max } = plot.scales[name];
      return max < 10 * min ? texts(plot, splits) : splits.map((value) => (value === null ? null : logText(value)));
    };
    const logTicks = (name, px) => ({
      splits: (plot, at, least, most) => logSplits(least, most),
      filter: (plot, splits) => withRoom(splits, (split) => plot.valToPos(split, name), px),
      values: logTexts(name),
    });
    const isTimed = model.kind === "time" || model.kind === "relative";
    const x = { ...axis, space: isTimed ? 84 : 70, size: 30 }; // 21:00:10.250 has 74 pixels
    if (model.kind === "relative") Object.assign(x, { incrs: TIME_STEPS, values: (plot, splits) => splits.map((value) => durationText(value)) });
    else if (model.kind === "time") x.values = (plot, splits, at, space, step) => splits.map((value) => tickText(value, step, this.local));
    else x.values = texts;
    if (model.isLogX) Object.assign(x, logTicks("x", LABEL_PX), model.kind === "relative" ? { values: x.values } : {});
    else if (model.kind === "step") x.incrs = WHOLE_INCREMENTS;
    const y = { ...axis, values: texts, space: 32, size: (plot, values) => axisSize(values) };
    const right = { ...y, scale: "right", side: 1, grid: { show: false } };
    const hasRight = series.some(({ scale }) => scale === "right");
    if (model.isLog) Object.assign(y, logTicks("y", LABEL_Y_PX));
    return {
      width: this.element.clientWidth,
      height: HEIGHT,
      padding: [8, hasRight ? 0 : isTimed ? 38 : 14, 0, isTimed ? 6 : 0], // half of the last text, and of the first one
      series,
      bands,
      scales: {
        x: {
          time: model.kind === "time",
          distr: model.isLogX ? 3 : 1,
          range: (plot, least, most) => {
            const [from, to] = this.range ?? [least, most];
            return model.isLogX ? logSpread(from > 0 ? from : this.model.x[0], to) : spread(from, to);
          },
        },
        y: model.isLog ? { distr: 3, range: (plot, least, most) => logRoom(least, most) } : {},
      },
      axes: hasRight ? [x, y, right] : [x, y],
      legend: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), zoneName(this.local)),
      cursor: {
        y: false,
        points: { size: 6 },
        drag: { x: true, y: false, setScale: false },
        sync: { key: `chiplog-${model.kind}-${model.xName ?? ""}`, setSeries: false, filters: { pub: isMove } },
        bind: {
          dblclick: () => () => {
            clearTimeout(this.picking);
            this.calls.onReset();
            return null;
          },
          mousedown: (plot, target, select) => (event) => {
            this.pressedAt = event.clientX;
            return event.shiftKey && this.calls.onPan ? this.pan(plot, event) : select(event);
          },
        },
      },
      hooks: {
        setCursor: [(plot) => this.drawValues(plot.cursor.idx)],
        setSelect: [(plot) => this.choose(plot)],
        draw: [(plot) => this.drawMarks(plot), (plot) => this.drawMissing(plot), (plot) => this.drawNames(plot), (plot) => this.drawFloor(plot)],
      },
    };
  }

  choose(plot) {
    const { left, width } = plot.select;
    if (width < DRAG_PX) return;
    const chosen = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.calls.onZoom(...chosen);
  }

  /** Return what returns the x at a share of the width: 0 at the left edge as it is now, 1 at the right one. */
  shares({ scales: { x } }) {
    const { min, max } = x;
    return this.model.isLogX ? (share) => min * (max / min) ** share : (share) => min + share * (max - min);
  }

  /** Follow the pointer until it is released. */
  pan(plot, { clientX: from }) {
    const at = this.shares(plot);
    const ending = new AbortController();
    let moved = 0;
    const move = (event, isOver) => {
      moved = (from - event.clientX) / plot.over.clientWidth;
      if (moved || isOver) this.calls.onPan(at(moved), at(1 + moved), isOver);
    };
    document.addEventListener("mousemove", (event) => move(event, false), ending);
    document.addEventListener("mouseup", (event) => (ending.abort(), move(event, true)), ending);
  }

  /** Show a part of x without new data. isMoving: until the next data lines are thin, which are drawn twice as fast. */
  showPart(least, most, isMoving = false) {
    this.range = [least, most];
    if (isMoving) for (const series of this.plot?.series.slice(1) ?? []) series.width &&= 1 / devicePixelRatio;
    this.plot?.setScale("x", { min: least, max: most });
  }

  onClick(event) {
    const isClick = Math.abs(event.clientX - this.pressedAt) < DRAG_PX && event.detail === 1;
    clearTimeout(this.picking);
    const at = this.plot.cursor.idx;
    if (isClick && !event.shiftKey) this.picking = setTimeout(() => this.pick(at), DOUBLE_CLICK_MS);
  }

  pick(at) {
    if (at !== null && at !== undefined && at < this.model.x.length) this.calls.onPick?.(at);
  }

  onKey(event) {
    const { plot } = this;
    if (!plot || event.ctrlKey || event.altKey || event.metaKey) return;
    const at = this.shares(plot);
    const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (side && event.shiftKey) this.calls.onPan?.(at(side / 4), at(1 + side / 4), true);
    else if (side) this.moveCursor(side);
    else if (event.key === "+") this.calls.onZoom(at(0.25), at(0.75));
    else if (event.key === "-") this.calls.onZoom(at(-0.5), at(1.5));
    else if (event.key === "Escape") this.calls.onReset();
    else if (event.key === "Enter") this.pick(plot.cursor.idx);
    else return;
    event.preventDefault();
  }

  /** Move the crosshair to the next place of x on one side. */
  moveCursor(side) {
    const { plot } = this;
    const { x } = this.model;
    const { min, max } = plot.scales.x;
    const from = plot.cursor.idx ?? (side > 0 ? x.findIndex((value) => value >= min) - 1 : x.length);
    const to = Math.max(0, Math.min(x.length - 1, from + side));
    if (!(x[to] >= min && x[to] <= max)) return;
    plot.setCursor({ left: plot.valToPos(x[to], "x"), top: plot.over.clientHeight / 2 }, true, true);
    const texts = this.model.lines.map((line, at) => (line.isSilent || line.isHidden ? "" : `, ${line.name} ${this.values[at].textContent}`));
    this.spoken.textContent = this.where.textContent + texts.join("");
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.font = `${10 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    let free = bbox.left;
    for (const { x, isBad, text } of this.model.marks ?? []) {
      const left = plot.valToPos(x, "x", true);
      if (left < bbox.left || left > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = colourOf(isBad ? "--bad" : "--warn");
      const width = text ? ctx.measureText(text).width + 6 * devicePixelRatio : 0;
      if (width && left >= free && left + width <= bbox.left + bbox.width) {
        ctx.fillText(text, left + 3 * devicePixelRatio, bbox.top + 9 * devicePixelRatio);
        free = left + width;
      }
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  /** Draw a strip where labels are missing. */
  drawMissing(plot) {
    const { ctx, bbox } = plot;
    const { x, present, nLabels } = this.model;
    if (!present) return;
    ctx.save();
    ctx.fillStyle = colourOf("--warn");
    const height = STRIP * devicePixelRatio;
    for (let at = 0; at < x.length; at++) {
      if (present[at] >= nLabels || x[at] < plot.scales.x.min || x[at] > plot.scales.x.max) continue;
      const left = plot.valToPos(x[at], "x", true);
      const right = at + 1 < x.length ? plot.valToPos(x[at + 1], "x", true) : bbox.left + bbox.width;
      ctx.fillRect(left, bbox.top + bbox.height - height, Math.min(right, bbox.left + bbox.width) - left, height);
    }
    ctx.restore();
  }

  /** Draw names at the right edge, which are also in the description of the chart. */
  drawNames(plot) {
    const { ctx, bbox } = plot;
    const tails = this.model.lines.map((line, at) => [line, this.places[at]]).filter(([line]) => line.tail);
    const found = [];
    const gap = NAME_GAP * devicePixelRatio;
    const height = 11 * devicePixelRatio;
    ctx.save();
    ctx.font = `600 ${height}px system-ui, sans-serif`;
    ctx.textAlign = "right";
    for (const [line, number] of tails) {
      const values = plot.data[number];
      const at = values.findLastIndex((value) => value !== null && value !== undefined);
      if (at < 0) continue;
      const { isAbove } = line.tail;
      found.push({ line, y: plot.valToPos(values[at], "y", true) + (isAbove ? -gap : gap + height) });
    }
    const placed = spreadNames(found, bbox.top + height, bbox.top + bbox.height - gap, height);
    for (const { line, y } of placed) {
      const place = [bbox.left + bbox.width - gap, y];
      ctx.strokeStyle = colourOf("--surface"); // readable on a line
      ctx.lineWidth = 4 * devicePixelRatio;
      ctx.lineJoin = "round";
      ctx.strokeText(line.tail.text, ...place);
      ctx.fillStyle = colourOf(line.colour);
      ctx.fillText(line.tail.text, ...place);
    }
    ctx.restore();
    const names = placed.map(({ line: { tail } }) => `${tail.text} ${tail.isAbove ? "above" : "below"}`);
    this.edge.textContent = names.length ? `At the right edge: ${names.join(", ")}.` : "";
  }

  /** Write where the axis of y begins, if small differences look large because of it. */
  drawFloor({ scales: { y } }) {
    const isHigh = !this.model.isLog && y.min > FLOOR_SHARE * y.max && y.max > 0;
    this.floor.textContent = isHigh ? ` · y begins at ${numberText(y.min, 4)}` : "";
  }

  /** Draw the legend. Its entries stay while only values change: one may be pressed just now, or have the focus. */
  drawLegend(model) {
    const entries = model.lines.map(({ name, colour, dash, id, isHidden, isSilent }) => [name, colour, dash, id, isHidden, isSilent]);
    const named = JSON.stringify(entries);
    if (named !== this.named || !this.legend.contains(this.where)) this.drawEntries(model);
    this.named = named;
    this.drawValues(this.plot.cursor.idx);
  }

  drawEntries(model) {
    const buttons = () => [...this.legend.querySelectorAll("button")];
    const focused = buttons().indexOf(document.activeElement);
    this.values = model.lines.map(() => h("b", {}));
    this.where = h("span", {});
    this.floor = h("span", {});
    show(
      this.legend,
      h("span", { class: "curve-where quiet" }, this.where, this.floor),
      model.lines.map((line, at) => (line.isSilent ? null : this.legendEntry(line, this.values[at]))),
    );
    buttons()[focused]?.focus();
  }

  legendEntry(line, value) {
    const mark = lineMark(line);
    const { onToggle } = this.calls;
    if (!line.id || !onToggle) return h("span", { class: "curve-line" }, mark, line.name, value);
    const attributes = {
      class: "curve-line bare",
      "aria-pressed": String(!line.isHidden),
      title: line.isHidden ? "Show it" : "Hide it in all panels; with Shift hide all others",
      onclick: (event) => onToggle(line.id, event.shiftKey),
    };
    return h("button", attributes, mark, line.name, value);
  }

  drawValues(at) {
    if (!this.values) return;
    const { x, present, nLabels, noun = "labels" } = this.model;
    const isInside = at !== null && at !== undefined && at < x.length;
    const missing = isInside && present?.[at] < nLabels ? ` · ${present[at]} of ${nLabels} ${noun}` : "";
    const near = isInside ? this.nearMarks().map((text) => ` · ${text}`) : [];
    const { where, texts } = readout(this.model, isInside ? at : null, this.local);
    this.where.textContent = where + missing + near.join("");
    texts.forEach((text, number) => (this.values[number].textContent = text));
  }

  /** Return the texts of the marks near the crosshair. */
  nearMarks() {
    const { left } = this.plot.cursor;
    const isNear = ({ x, text }) => text && Math.abs(this.plot.valToPos(x, "x") - left) <= MARK_NEAR;
    return (this.model.marks ?? []).filter(isNear).slice(0, MARKS_NEAR).map(({ text }) => text);
  }

  /** Return a canvas with the chart, its title and its legend, as it is on the page. */
  picture(title) {
    const source = this.plot.ctx.canvas;
    const scale = devicePixelRatio;
    const named = this.model.lines.filter((line) => !line.isSilent && !line.isHidden);
    const names = named.map((line) => line.name);
    const rows = Math.ceil(names.length / 4);
    const canvas = document.createElement("canvas");
    canvas.width = source.width;
    canvas.height = source.height + (28 + 16 * rows) * scale;
    const ctx = canvas.getContext("2d");
    ctx.fillStyle = colourOf("--surface");
    ctx.fillRect(0, 0, canvas.width, canvas.height);
    ctx.fillStyle = colourOf("--text");
    ctx.font = `600 ${13 * scale}px system-ui, sans-serif`;
    ctx.fillText(title, 10 * scale, 19 * scale);
    ctx.drawImage(source, 0, 28 * scale);
    ctx.font = `${11 * scale}px system-ui, sans-serif`;
    names.forEach((name, at) => {
      const left = 10 * scale + ((at % 4) * canvas.width) / 4;
      const y = source.height + (28 + 11 + 16 * Math.floor(at / 4)) * scale;
      ctx.fillStyle = colourOf(named[at].colour);
      ctx.fillText(`${named[at].dash ? "╌╌" : "—"} ${name}`, left, y, canvas.width / 4 - 12 * scale);
    });
    return canvas;
  }
}

/** Return whether other charts follow: the crosshair, and no zoom. */
function isMove(type) {
  return type === "mousemove" || type === "mouseleave";
}

/** Return the places that have a dot: all of a few, else those without a neighbour, which no line shows. */
function dots(plot, number) {
  const values = plot.data[number];
  const isFew = values.length <= POINTS_MAX || values.reduce((n, value) => n + (value !== undefined), 0) <= POINTS_MAX;
  const places = [];
  let before = null;
  for (let at = 0; at < values.length; at++) {
    const value = values[at];
    if (value === undefined) continue;
    if (value !== null && (isFew || (before === null && isEnd(values, at)))) places.push(at);
    before = value;
  }
  return places;
}

function isEnd(values, at) {
  for (let next = at + 1; next < values.length; next++) {
    if (values[next] !== undefined) return values[next] === null;
  }
  return true;
}

/**
 * Return names with a y at which none overlaps another one, near the y that they have: between two bounds, and `height`
 * apart. Of names without room those in between are left out.
 */
export function spreadNames(names, least, most, height) {
  const nMost = Math.max(1, Math.floor((most - least) / height) + 1);
  const sorted = names.toSorted((a, b) => a.y - b.y);
  const step = Math.max(1, (sorted.length - 1) / Math.max(1, nMost - 1));
  const kept = Array.from({ length: Math.min(nMost, sorted.length) }, (_, at) => ({ ...sorted[Math.round(at * step)] }));
  kept.forEach((name, at) => (name.y = Math.max(name.y, at ? kept[at - 1].y + height : least)));
  for (let at = kept.length - 1, room = most; at >= 0; at--, room -= height) kept[at].y = Math.min(kept[at].y, room);
  return kept;
}

function spread(least, most) {
  if (least === null || most === null) return [0, 1];
  return least === most ? [least - 1, most + 1] : [least, most];
}

/** Return the range of a logarithmic y with room around its values; a single value is in the middle. */
export function logRoom(least, most) {
  if (!(least > 0)) return [1, 10]; // no values
  if (least === most) return [least / 2, most * 2];
  const [low, high] = [least, most].map(Math.log10);
  const room = LOG_ROOM * (high - low);
  return [Math.max(10 ** (low - room), Number.MIN_VALUE), Math.min(10 ** (high + room), Number.MAX_VALUE)];
}

function logSpread(least, most) {
  return least < most ? [least, most] : [least / 2, least * 2];
}

/**
 * Return the multiples of powers of ten between two numbers, or of a smaller step if there are few. Those of uPlot begin
 * at the least number, round or not.
 */
export function logSplits(least, most) {
  const splits = [];
  for (let power = 10 ** Math.floor(Math.log10(least)); power <= most; power *= 10) {
    for (let digit = 1; digit < 10; digit++) {
      const split = Number((digit * power).toPrecision(1));
      if (split >= least && split <= most) splits.push(split);
    }
  }
  if (splits.length >= LOG_SPLITS_MIN) return splits;
  const power = 10 ** Math.floor(Math.log10((most - least) / LOG_SPLITS_MIN));
  const step = [1, 2, 5, 10].map((digit) => digit * power).findLast((size) => size <= (most - least) / LOG_SPLITS_MIN);
  const [from, to] = [Math.ceil(least / step), Math.floor(most / step)];
  return Array.from({ length: to - from + 1 }, (_, at) => (from + at) * step);
}

/** Return the splits of a logarithmic axis whose texts have room, null for others: first powers of ten, then their halves. */
export function withRoom(splits, positionOf, px) {
  const digit = (split) => Math.round(split / 10 ** Math.floor(Math.log10(split) + 1e-9));
  const order = (split) => ({ 1: 0, 5: 1, 2: 2 })[digit(split)] ?? 3;
  const taken = new Map();
  for (const split of splits.toSorted((a, b) => order(a) - order(b))) {
    const at = positionOf(split);
    if ([...taken.values()].every((other) => Math.abs(at - other) >= px)) taken.set(split, at);
  }
  return splits.map((split) => (taken.has(split) ? split : null));
}

/** Return a time of an axis: the day for long steps, seconds for short ones. */
function tickText(seconds, step, local) {
  const text = clockText(new Date(seconds * 1000).toISOString(), local);
  if (step >= 86400) return text.slice(5, 10);
  return step >= 60 ? text.slice(11, 16) : text.slice(11, step < 1 ? 23 : 19);
}

/** Return a value of an axis, with so many digits that those beside it differ. */
export function axisText(value, splits) {
  if (value === null || value === undefined) return null;
  const shown = splits.filter((split) => split !== null); // null: there is no room for it
  const most = Math.max(...shown.map(Math.abs));
  const apart = shown.length > 1 ? Math.abs(shown[1] - shown[0]) : most || 1;
  if (most >= 1e7 || (most < 1e-3 && most > 0)) {
    let digits = Math.max(0, Math.min(6, Math.ceil(Math.log10(most / apart))));
    if (Math.abs(Number(value.toExponential(digits)) - value) > apart / 1e3) digits += 1; // 1.1125e14
    return value === 0 ? "0" : exponentText(value, digits);
  }
  let digits = Math.max(0, Math.min(8, -Math.floor(Math.log10(apart) + 1e-9)));
  if (Math.abs(apart * 10 ** digits - Math.round(apart * 10 ** digits)) > 1e-6) digits += 1; // 0.25
  return formatOf(digits).format(value);
}

const formats = new Map(); // by digits: to make one takes longer than to use it

function formatOf(digits) {
  if (!formats.has(digits)) {
    formats.set(digits, new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  }
  return formats.get(digits);
}

function logText(value) {
  return value >= 1e5 || value < 1e-3 ? exponentText(value, 3) : String(Number(value.toPrecision(3)));
}

function axisSize(values) {
  return 14 + 6.5 * Math.max(3, ...(values ?? []).map((text) => (text ?? "").length));
}
