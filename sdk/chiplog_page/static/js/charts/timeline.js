// Phases of labels over wall time: one row per label, a bar for each step, in it a piece for each phase.

import { show } from "../dom.js";
import { labelText } from "../text/labels.js";
import { TIME_STEPS, countText, durationText, secondsText, wholeText } from "../text/texts.js";
import { niceStep } from "./canvas.js";
import { colourOf, seriesName } from "./colours.js";
import { Picture, shortName, swatch, writeWith } from "./picture.js";
import { timeScale } from "./time_scale.js";

const LEFT = 84; // room for names of labels, pixels
const TOP = 16; // room for numbers of steps
const ROW_HEIGHTS = [
  [8, 22],
  [16, 18],
  [32, 14],
  [Infinity, 10],
]; // up to so many rows
const NAME_PX = 13; // height of a name of a row
const SPLIT_PX = 12; // narrower bars touch each other, and have a frame only above and below
const STEP_TICK_PX = 56;
const TIME_TICK_PX = 90;
const UNKNOWN = -1;
const COLUMNS_MAX = 4000; // a bound of the server

export class Timeline extends Picture {
  hint = "Point at a phase; click it for its step; drag for fewer steps. Arrow keys and Enter work, too.";
  scale = null; // of its times
  chosen = null;
  rows = []; // bars of each row
  slowest = new Map(); // by bar

  /** onChoose(label, step): after a click on a bar; onRange(first, last): after a drag. */
  constructor({ onChoose, onRange }) {
    super({ label: "Phases over time", left: LEFT, top: TOP });
    Object.assign(this, { onChoose, onRange });
  }

  /** Draw an answer of api/runs/RUN/timeline. mark: {label, step} to mark. */
  draw(answer, mark) {
    const held = this.cursor && { row: this.cursor.bar.row, step: this.cursor.bar.step, piece: this.cursor.piece };
    this.data = { ...answer, bars: answer.bars.map((bar, at) => barOf(bar, answer.pieces[at])) };
    const { bars, labels, first, last } = this.data;
    this.scale = timeScale(bars);
    this.rows = labels.map(() => []);
    for (const bar of bars) this.rows[bar.row].push(bar);
    this.slowest = new Map();
    const placeOf = (step) => Math.floor(step / this.data.width);
    for (const one of answer.slowest) {
      const bar = this.rows[one.row]?.find(({ step }) => placeOf(step) === placeOf(one.step));
      if (bar) this.slowest.set(bar, one);
    }
    this.chosen = mark;
    const what = `Phases of ${countText(labels.length, "label")} over time, steps ${first} to ${last}`;
    this.canvas.setAttribute("aria-label", what);
    const bar = held && this.rows[held.row]?.find(({ step }) => step === held.step);
    this.cursor = bar ? { bar, piece: Math.min(held.piece, bar.pieces.length - 1) } : null;
    this.redraw();
  }

  mark(chosen) {
    this.chosen = chosen;
    if (this.data) this.paintCursor();
  }

  /** Return the pixels of a row. room: of the view, for a timeline that is not visible yet. */
  columns(room) {
    const width = this.canvas.clientWidth ? this.innerWidth : room - LEFT;
    return Math.max(100, Math.min(COLUMNS_MAX, Math.floor(width)));
  }

  get isEmpty() {
    return !this.data.labels.length;
  }

  get height() {
    const { length: n } = this.data.labels;
    const [, rowHeight] = ROW_HEIGHTS.find(([most]) => n <= most);
    return Math.max(n * rowHeight, 22) + this.top + this.bottom;
  }

  get rowHeight() {
    return this.innerHeight / this.data.labels.length;
  }

  xOf(seconds) {
    return LEFT + (this.scale.toLength(seconds) / this.scale.length) * this.innerWidth;
  }

  secondsAt(x) {
    return this.scale.toSeconds(((x - LEFT) / this.innerWidth) * this.scale.length);
  }

  widthOf({ begun, seconds }) {
    return this.xOf(begun + seconds) - this.xOf(begun);
  }

  lastStep({ step }) {
    const { width, last } = this.data;
    return Math.min((Math.floor(step / width) + 1) * width - 1, last);
  }

  placeAt(x, y) {
    if (!this.data || x < LEFT || y < TOP) return null;
    const seconds = this.secondsAt(x);
    const bar = this.rows[Math.floor((y - TOP) / this.rowHeight)]?.findLast(({ begun }) => begun <= seconds);
    if (!bar || seconds > bar.begun + bar.seconds) return null;
    const piece = bar.pieces.findIndex(({ begun, shown }) => seconds < begun + shown);
    return { bar, piece: piece < 0 ? bar.pieces.length - 1 : piece };
  }

  describe({ bar, piece }) {
    const { labels, phases } = this.data;
    const at = bar.pieces[piece];
    const last = this.lastStep(bar);
    const isOne = last === bar.step;
    const steps = isOne ? `step ${wholeText(bar.step)}` : `steps ${wholeText(bar.step)} to ${wholeText(last)}`;
    const what = !at || at.phase === UNKNOWN ? "in no phase" : phases[at.phase];
    const slow = this.slowest.get(bar);
    const where = slow && !isOne ? ` in step ${wholeText(slow.step)}` : "";
    const more = slow?.is_outside ? "longer outside of phases" : "more work";
    const most = slow ? `; the slowest${where}: ${secondsText(slow.excess_s)} ${more} than the median` : "";
    const took = secondsText(at?.seconds ?? bar.seconds);
    return `${labelText(labels[bar.row])}, ${steps}: ${what} ${took} of ${secondsText(bar.seconds)}${most}`;
  }

  choose({ bar }) {
    this.onChoose(this.data.labels[bar.row], this.slowest.get(bar)?.step ?? bar.step);
  }

  span(from, to) {
    const [least, most] = [this.secondsAt(from), this.secondsAt(to)];
    const inside = (this.data?.bars ?? []).filter(({ begun, seconds }) => begun < most && begun + seconds > least);
    if (!inside.length) return;
    this.onRange(Math.min(...inside.map(({ step }) => step)), Math.max(...inside.map((bar) => this.lastStep(bar))));
  }

  moved({ key, shiftKey }) {
    const [begin] = this.data.bars;
    if (!this.cursor) return begin ? { bar: begin, piece: 0 } : null;
    const { bar, piece } = this.cursor;
    const by = key === "ArrowLeft" || key === "ArrowUp" ? -1 : 1;
    if (key === "ArrowUp" || key === "ArrowDown") {
      for (let row = bar.row + by; this.rows[row]; row += by) {
        const other = this.rows[row].find(({ step }) => step === bar.step);
        if (other) return { bar: other, piece: Math.min(piece, other.pieces.length - 1) };
      }
      return { bar, piece };
    }
    if (!shiftKey && bar.pieces[piece + by]) return { bar, piece: piece + by };
    const own = this.rows[bar.row];
    const next = own[own.indexOf(bar) + by];
    if (!next) return { bar, piece };
    return { bar: next, piece: by > 0 || shiftKey ? 0 : next.pieces.length - 1 };
  }

  /** Return {top, tall} of the bars of a row. */
  lane(row) {
    const gap = this.rowHeight > 12 ? 3 : 1;
    return { top: TOP + row * this.rowHeight + gap / 2, tall: this.rowHeight - gap };
  }

  paint(context, style) {
    const fills = this.data.phases.map((_, at) => colourOf(`--${seriesName(at)}`));
    const none = colourOf("--line");
    for (const bar of this.data.bars) {
      const { top, tall } = this.lane(bar.row);
      for (const { phase, begun, shown } of bar.pieces) {
        context.fillStyle = phase === UNKNOWN ? none : fills[phase];
        context.fillRect(this.xOf(begun), top, this.xOf(begun + shown) - this.xOf(begun), tall);
      }
    }
    // A line between steps, where they have room for one.
    context.fillStyle = colourOf("--surface");
    for (const bar of this.data.bars) {
      const { top, tall } = this.lane(bar.row);
      if (this.widthOf(bar) >= SPLIT_PX) context.fillRect(this.xOf(bar.begun) - 0.5, top, 1, tall);
    }
    context.strokeStyle = context.fillStyle = style.color;
    context.lineWidth = 1.5;
    for (const bar of this.slowest.keys()) {
      const { top, tall } = this.lane(bar.row);
      const wide = this.widthOf(bar);
      if (wide >= SPLIT_PX) this.outline(context, bar, 0);
      else for (const y of [top - 1, top + tall - 1]) context.fillRect(this.xOf(bar.begun), y, Math.max(wide, 2), 2);
    }
    this.paintNames(context, style);
    this.paintSteps(context, style);
    this.paintTimes(context, style);
  }

  outline(context, bar, room) {
    const { top, tall } = this.lane(bar.row);
    const wide = Math.max(this.widthOf(bar), 3);
    context.strokeRect(this.xOf(bar.begun) - room, top - room, wide + 2 * room, tall + 2 * room);
  }

  paintNames(context, style) {
    writeWith(context, style, { align: "right", baseline: "middle" });
    const every = Math.max(1, Math.ceil(NAME_PX / this.rowHeight));
    this.data.labels.forEach((label, row) => {
      if (row % every && label !== this.chosen?.label) return;
      context.fillText(shortName(labelText(label)), LEFT - 6, TOP + (row + 0.5) * this.rowHeight);
    });
  }

  paintSteps(context, style) {
    writeWith(context, style, { align: "left", baseline: "middle" });
    const begins = new Map();
    for (const { step, begun } of this.data.bars) begins.set(step, Math.min(begun, begins.get(step) ?? Infinity));
    let free = -Infinity;
    for (const [step, begun] of [...begins].sort((a, b) => a[1] - b[1])) {
      const x = this.xOf(begun);
      if (x < free || x > this.canvas.clientWidth - 30) continue;
      context.fillText(wholeText(step), x, TOP / 2);
      free = x + STEP_TICK_PX;
    }
  }

  paintTimes(context, style) {
    writeWith(context, style, { align: "center", baseline: "bottom" });
    const { scale } = this;
    const { clientWidth: right, clientHeight: below } = this.canvas;
    const least = (scale.length / this.innerWidth) * TIME_TICK_PX;
    const tick = TIME_STEPS.find((step) => step >= least) ?? niceStep(least);
    const cuts = scale.parts.filter(({ isCut }) => isCut).map((part) => ({ ...part, x: this.xOf((part.from + part.to) / 2) }));
    for (const { from, to, x } of cuts) {
      context.fillText(`${durationText(to - from)} later`, x, below);
      for (let y = TOP; y < TOP + this.innerHeight; y += 6) context.fillRect(x - 0.5, y, 1, 3);
    }
    for (const { from, to, isCut } of scale.parts) {
      for (let at = Math.ceil(from / tick); !isCut && at * tick <= to; at++) {
        const x = this.xOf(at * tick);
        const isFree = cuts.every((cut) => Math.abs(cut.x - x) > TIME_TICK_PX);
        if (isFree && x < right - 24) context.fillText(timeOf(at * tick), Math.max(x, LEFT + 8), below);
      }
    }
  }

  paintMarks(context, style) {
    const { chosen, cursor, data } = this;
    const isChosen = (bar) => data.labels[bar.row] === chosen.label && chosen.step >= bar.step && chosen.step <= this.lastStep(bar);
    const own = chosen && chosen.step !== null ? data.bars.find(isChosen) : null;
    if (own) {
      context.strokeStyle = colourOf("--accent");
      context.lineWidth = 2.5;
      this.outline(context, own, 1);
    }
    if (!cursor) return;
    const { top, tall } = this.lane(cursor.bar.row);
    const { begun, shown } = cursor.bar.pieces[cursor.piece] ?? { begun: cursor.bar.begun, shown: cursor.bar.seconds };
    const wide = Math.max(this.xOf(begun + shown) - this.xOf(begun), 2);
    context.strokeStyle = style.color;
    context.lineWidth = 1;
    context.strokeRect(this.xOf(begun) - 1, top - 1, wide + 2, tall + 2);
  }

  drawLegend() {
    const { bars, phases } = this.data;
    const hasNone = bars.some(({ pieces }) => pieces.some(({ phase }) => phase === UNKNOWN));
    show(
      this.legend,
      phases.map((name, at) => swatch(seriesName(at), name)),
      hasNone ? swatch("no-phase", "in no phase") : null,
      this.slowest.size ? swatch("slowest", "slowest of its step") : null,
    );
  }
}

/** Return a bar with its pieces after each other: {phase, seconds, begun, shown}. Phases that overlap are shortened. */
function barOf([row, step, begun, seconds], flat) {
  const pieces = [];
  let total = 0;
  for (let at = 0; at < flat.length; at += 2) total += flat[at + 1];
  const share = total > seconds ? seconds / total : 1;
  let place = begun;
  for (let at = 0; at < flat.length; at += 2) {
    const shown = flat[at + 1] * share;
    pieces.push({ phase: flat[at], seconds: flat[at + 1], begun: place, shown });
    place += shown;
  }
  const [{ phase, shown } = {}] = pieces;
  return { row, step, begun, seconds, idle: phase === UNKNOWN ? shown : 0, pieces };
}

/** Return seconds since the start: "0.5 s", "1 min 30 s". */
function timeOf(seconds) {
  return seconds < 60 ? secondsText(Number(seconds.toPrecision(6)), 4) : durationText(seconds);
}
