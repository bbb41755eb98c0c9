// Phases of labels over wall time on a canvas: one row per label, a bar for each step, in it a piece for each phase.

import { h, show } from "../dom.js";
import { labelText } from "../text/labels.js";
import { TIME_STEPS, countText, durationText, secondsText, wholeText } from "../text/texts.js";
import { onTheme } from "../theme.js";
import { copyPicture, fitPicture, niceStep } from "./canvas.js";
import { colourOf, seriesName } from "./colours.js";
import { dragRange } from "./drag.js";
import { timeScale } from "./time_scale.js";

const LEFT = 84; // room for names of labels, pixels
const TOP = 16; // room for numbers of steps
const BOTTOM = 18; // room for times
const ROW_HEIGHTS = [
  [8, 22],
  [16, 18],
  [32, 14],
  [Infinity, 10],
]; // up to so many rows
const SPLIT_PX = 12; // narrower bars touch each other, and have a frame only above and below
const STEP_TICK_PX = 56;
const TIME_TICK_PX = 90;
const UNKNOWN = -1;
const COLUMNS_MAX = 4000; // a bound of the server

/**
 * Draw a timeline.
 * @param {{onChoose: function(label, step), onRange: function(first, last)}} handlers
 * @returns {{element: Element, draw: function(data, chosen), mark: function(chosen),
 *   columns: function(room): number, close: function()}}
 */
export function timeline({ onChoose, onRange }) {
  const canvas = h("canvas", { tabindex: 0, class: "heat", role: "img", "aria-label": "Phases over time" });
  const line = h("p", { class: "quiet heat-line", "aria-live": "polite" });
  const legend = h("span", { class: "heat-legend quiet small" });
  let data = null;
  let scale = null; // of its times
  let chosen = null;
  let rows = []; // bars of each row
  let slowest = new Map(); // by bar
  let cursor = null; // {bar, piece}

  const width = () => canvas.clientWidth - LEFT;
  const height = () => canvas.clientHeight - TOP - BOTTOM;
  const xOf = (seconds) => LEFT + (scale.toLength(seconds) / scale.length) * width();
  const secondsAt = (x) => scale.toSeconds(((x - LEFT) / width()) * scale.length);

  const brush = dragRange(canvas, {
    left: LEFT,
    height: () => canvas.clientHeight - BOTTOM,
    cellAt: placeAt,
    onPoint: point,
    onClick: choose,
    onSpan(from, to) {
      const inside = (data?.bars ?? []).filter(
        (bar) => bar.begun < secondsAt(to) && bar.begun + bar.seconds > secondsAt(from),
      );
      if (inside.length) onRange(Math.min(...inside.map((bar) => bar.step)), Math.max(...inside.map(lastStep)));
    },
  });
  const element = h(
    "div",
    { class: "heat-box" },
    h("div", { class: "heat-canvas" }, canvas, brush),
    h("div", { class: "bar" }, line, legend),
  );

  const lastStep = (bar) => Math.min((Math.floor(bar.step / data.width) + 1) * data.width - 1, data.last);

  function placeAt(x, y) {
    if (!data || x < LEFT || y < TOP) return null;
    const seconds = secondsAt(x);
    const bar = rows[Math.floor(((y - TOP) / height()) * data.labels.length)]?.findLast((one) => one.begun <= seconds);
    if (!bar || seconds > bar.begun + bar.seconds) return null;
    const piece = bar.pieces.findIndex((one) => seconds < one.begun + one.shown);
    return { bar, piece: piece < 0 ? bar.pieces.length - 1 : piece };
  }

  function describe({ bar, piece }) {
    const at = bar.pieces[piece];
    const last = lastStep(bar);
    const steps =
      last > bar.step ? `steps ${wholeText(bar.step)} to ${wholeText(last)}` : `step ${wholeText(bar.step)}`;
    const what = !at || at.phase === UNKNOWN ? "in no phase" : data.phases[at.phase];
    const slow = slowest.get(bar);
    const where = slow && last > bar.step ? ` in step ${wholeText(slow.step)}` : "";
    const more = slow?.is_outside ? "longer outside of phases" : "more work";
    const most = slow ? `; the slowest${where}: ${secondsText(slow.excess_s)} ${more} than the median` : "";
    const took = secondsText(at?.seconds ?? bar.seconds);
    return `${labelText(data.labels[bar.row])}, ${steps}: ${what} ${took} of ${secondsText(bar.seconds)}${most}`;
  }

  function point(place) {
    cursor = place;
    line.textContent = place ? describe(place) : data ? hint() : "";
    paintCursor();
  }
  const hint = () => "Point at a phase; click it for its step; drag for fewer steps. Arrow keys and Enter work, too.";

  function choose({ bar }) {
    const slow = slowest.get(bar);
    onChoose(data.labels[bar.row], slow?.step ?? bar.step);
  }

  canvas.addEventListener("keydown", (event) => {
    if (!data?.bars.length) return;
    if (event.key === "Enter" && cursor) choose(cursor);
    if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    point(cursor ? moved(cursor, event) : { bar: data.bars[0], piece: 0 });
  });

  function moved({ bar, piece }, { key, shiftKey }) {
    const own = rows[bar.row];
    const at = own.indexOf(bar);
    if (key === "ArrowUp" || key === "ArrowDown") {
      for (let row = bar.row + (key === "ArrowUp" ? -1 : 1); rows[row]; row += key === "ArrowUp" ? -1 : 1) {
        const other = rows[row].find((one) => one.step === bar.step);
        if (other) return { bar: other, piece: Math.min(piece, other.pieces.length - 1) };
      }
      return { bar, piece };
    }
    const by = key === "ArrowLeft" ? -1 : 1;
    if (!shiftKey && bar.pieces[piece + by]) return { bar, piece: piece + by };
    const next = own[at + by];
    if (!next) return { bar, piece };
    return { bar: next, piece: by > 0 || shiftKey ? 0 : next.pieces.length - 1 };
  }

  // The picture without cursor, so that a cursor costs one copy.
  const picture = document.createElement("canvas");

  function paint() {
    if (!data) return;
    const [, rowHeight] = ROW_HEIGHTS.find(([most]) => data.labels.length <= most);
    const ratio = fitPicture(canvas, picture, Math.max(data.labels.length * rowHeight, 22) + TOP + BOTTOM);
    if (width() <= 0) return;
    const context = picture.getContext("2d");
    context.scale(ratio, ratio);
    const style = getComputedStyle(element);
    const fills = data.phases.map((_, at) => colourOf(`--${seriesName(at)}`));
    const none = colourOf("--line");
    for (const bar of data.bars) {
      const { top, tall } = lane(bar.row);
      for (const piece of bar.pieces) {
        context.fillStyle = piece.phase === UNKNOWN ? none : fills[piece.phase];
        context.fillRect(xOf(piece.begun), top, xOf(piece.begun + piece.shown) - xOf(piece.begun), tall);
      }
    }
    // A line between steps, where they have room for one.
    context.fillStyle = colourOf("--surface");
    for (const bar of data.bars) {
      const { top, tall } = lane(bar.row);
      if (xOf(bar.begun + bar.seconds) - xOf(bar.begun) >= SPLIT_PX)
        context.fillRect(xOf(bar.begun) - 0.5, top, 1, tall);
    }
    context.strokeStyle = style.color;
    context.lineWidth = 1.5;
    context.fillStyle = style.color;
    for (const bar of slowest.keys()) {
      const { top, tall } = lane(bar.row);
      const wide = xOf(bar.begun + bar.seconds) - xOf(bar.begun);
      if (wide >= SPLIT_PX) outline(context, bar, 0);
      else for (const y of [top - 1, top + tall - 1]) context.fillRect(xOf(bar.begun), y, Math.max(wide, 2), 2);
    }
    paintTexts(context, style);
    paintCursor();
  }

  function lane(row) {
    const each = height() / data.labels.length;
    const gap = each > 12 ? 3 : 1;
    return { top: TOP + row * each + gap / 2, tall: each - gap };
  }

  function outline(context, bar, room) {
    const { top, tall } = lane(bar.row);
    const wide = Math.max(xOf(bar.begun + bar.seconds) - xOf(bar.begun), 3);
    context.strokeRect(xOf(bar.begun) - room, top - room, wide + 2 * room, tall + 2 * room);
  }

  function paintTexts(context, style) {
    context.fillStyle = style.color;
    context.font = `11px ${style.fontFamily}`;
    context.textBaseline = "middle";
    context.textAlign = "right";
    const each = height() / data.labels.length;
    const every = Math.max(1, Math.ceil(13 / each));
    data.labels.forEach((label, row) => {
      if (row % every && label !== chosen?.label) return;
      const name = labelText(label);
      context.fillText(name.length > 13 ? `${name.slice(0, 12)}…` : name, LEFT - 6, TOP + (row + 0.5) * each);
    });
    context.textAlign = "left";
    let free = -Infinity;
    const begins = new Map();
    for (const { step, begun } of data.bars) begins.set(step, Math.min(begun, begins.get(step) ?? Infinity));
    for (const [step, begun] of [...begins].sort((a, b) => a[1] - b[1])) {
      const x = xOf(begun);
      if (x < free || x > canvas.clientWidth - 30) continue;
      context.fillText(wholeText(step), x, TOP / 2);
      free = x + STEP_TICK_PX;
    }
    context.textBaseline = "bottom";
    const least = (scale.length / width()) * TIME_TICK_PX;
    const tick = TIME_STEPS.find((step) => step >= least) ?? niceStep(least);
    context.textAlign = "center";
    for (const { from, to, isCut } of scale.parts) {
      if (isCut) {
        const middle = xOf((from + to) / 2);
        context.fillText(`${durationText(to - from)} later`, middle, canvas.clientHeight);
        for (let y = TOP; y < TOP + height(); y += 6) context.fillRect(middle - 0.5, y, 1, 3);
      }
      for (let at = Math.ceil(from / tick); !isCut && at * tick <= to; at++) {
        const x = xOf(at * tick);
        const isFree = scale.parts.every(
          (one) => !one.isCut || Math.abs(xOf((one.from + one.to) / 2) - x) > TIME_TICK_PX,
        );
        if (isFree && x < canvas.clientWidth - 24)
          context.fillText(timeOf(at * tick), Math.max(x, LEFT + 8), canvas.clientHeight);
      }
    }
  }

  function paintCursor() {
    const context = copyPicture(canvas, data ? picture : null);
    if (!context) return;
    const style = getComputedStyle(element);
    const own = data.bars.find(
      (bar) => data.labels[bar.row] === chosen?.label && chosen.step >= bar.step && chosen.step <= lastStep(bar),
    );
    if (own && chosen.step !== null) {
      context.strokeStyle = colourOf("--accent");
      context.lineWidth = 2.5;
      outline(context, own, 1);
    }
    if (cursor) {
      const { top, tall } = lane(cursor.bar.row);
      const piece = cursor.bar.pieces[cursor.piece] ?? { begun: cursor.bar.begun, shown: cursor.bar.seconds };
      context.strokeStyle = style.color;
      context.lineWidth = 1;
      context.strokeRect(
        xOf(piece.begun) - 1,
        top - 1,
        Math.max(xOf(piece.begun + piece.shown) - xOf(piece.begun), 2) + 2,
        tall + 2,
      );
    }
  }

  function drawLegend() {
    const swatch = (name, text) => h("span", {}, h("span", { class: `heat-swatch ${name}` }), ` ${text}`);
    const hasNone = data.bars.some((bar) => bar.pieces.some(({ phase }) => phase === UNKNOWN));
    show(
      legend,
      data.phases.map((name, at) => swatch(seriesName(at), name)),
      hasNone ? swatch("no-phase", "in no phase") : null,
      slowest.size ? swatch("slowest", "slowest of its step") : null,
    );
  }

  const endTheme = onTheme(() => paint());
  const observer = new ResizeObserver(() => paint());
  observer.observe(canvas);

  return {
    element,
    /** Draw an answer of api/runs/RUN/timeline. mark: {label, step} to mark. */
    draw(answer, mark) {
      const held = cursor && { row: cursor.bar.row, step: cursor.bar.step, piece: cursor.piece };
      data = {
        ...answer,
        bars: answer.bars.map((bar, at) => barOf(bar, answer.pieces[at])),
      };
      scale = timeScale(data.bars);
      rows = data.labels.map(() => []);
      for (const bar of data.bars) rows[bar.row].push(bar);
      slowest = new Map();
      for (const one of answer.slowest) {
        const bar = rows[one.row]?.find(
          ({ step }) => Math.floor(step / data.width) === Math.floor(one.step / data.width),
        );
        if (bar) slowest.set(bar, one);
      }
      chosen = mark;
      canvas.setAttribute(
        "aria-label",
        `Phases of ${countText(data.labels.length, "label")} over time, steps ${data.first} to ${data.last}`,
      );
      const bar = held && rows[held.row]?.find(({ step }) => step === held.step);
      cursor = bar ? { bar, piece: Math.min(held.piece, bar.pieces.length - 1) } : null;
      if (!cursor) line.textContent = hint();
      drawLegend();
      paint();
    },
    mark(next) {
      chosen = next;
      paintCursor();
    },
    /** Return the pixels of a row. room: of the view, for a timeline that is not visible yet. */
    columns: (room) => Math.max(100, Math.min(COLUMNS_MAX, Math.floor(canvas.clientWidth ? width() : room - LEFT))),
    close() {
      observer.disconnect();
      endTheme();
    },
  };
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
