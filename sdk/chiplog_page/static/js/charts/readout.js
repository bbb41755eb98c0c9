// What the legend of a chart has at a place of x, and at the end: exact values, and of which steps they are.

import { durationText, numberText, timeText, valueText, wholeText } from "../text/texts.js";

/** Return steps as "step 260", or "steps 260–263". */
export function stepsText([first, last]) {
  return first === last ? `step ${wholeText(first)}` : `steps ${wholeText(first)}–${wholeText(last)}`;
}

/** Return the place of a line's value at a place of x: that of the one before it where the line has none; -1 for none. */
function placeOf({ exact, steps, width }, at, head) {
  if (exact[at] !== undefined) return at;
  let place = at - 1;
  while (place >= 0 && exact[place] === undefined) place -= 1;
  const isInside = place >= 0 && exact.findLastIndex((value) => value !== undefined) > at;
  const isCovered = place >= 0 && steps && head && steps[place] + width > head[0];
  return isInside || isCovered ? place : -1;
}

/** Return the first and the last step of a value; null if its line has no steps. */
function stepsOf({ steps, width, lastStep }, place) {
  const first = steps?.[place];
  if (first === undefined || first === null) return null;
  return [first, Math.max(first, Math.min(first + width - 1, lastStep ?? Infinity))];
}

function textOf(line, place) {
  const { exact, texts, bounds, values, isSmooth, digits } = line;
  const value = exact[place];
  const text = value === null ? (texts?.[place] ?? "–") : numberText(value, digits);
  const [low, high] = bounds ? bounds.map((column) => column[place]) : [];
  const spread = low < high ? ` (${numberText(low, digits)}…${numberText(high, digits)})` : "";
  const smoothed = isSmooth && value !== null ? ` ~${numberText(values[place], digits)}` : "";
  return text + spread + smoothed;
}

/** Return where a value is from, if not from the steps of all. */
function elsewhere(own, head) {
  return own && head && (own[0] !== head[0] || own[1] !== head[1]) ? ` at ${stepsText(own)}` : "";
}

/**
 * Return {where, texts}: what the place is, and the value of each line, with the range of a bucket, the smoothed value, and
 * its step if that is another one.
 * @param {Object} model of the chart
 * @param {?number} at a place of x; null for the end
 * @param {?boolean} isLocal as of `timeText`
 */
export function readout(model, at, isLocal) {
  const lines = model.lines.map((line) => ({ exact: line.values, width: 1, ...line }));
  const shown = lines.filter(({ isHidden, isSilent }) => !isHidden && !isSilent);
  const marks = shown.some(({ isSmooth }) => isSmooth) ? ", ~ smoothed" : "";
  if (at === null) {
    const ends = shown.filter(({ last, isOnRight }) => isNumber(last?.step) && !isOnRight).map(({ last }) => last.step);
    const head = ends.length ? new Array(2).fill(Math.max(...ends)) : null;
    const where = `last${head ? `, ${stepsText(head)}` : ""}${marks}`;
    return { where, texts: lines.map((line) => (line.isHidden ? "–" : endText(line, head))) };
  }
  const owner = shown.find(({ exact, isOnRight }) => exact[at] !== undefined && !isOnRight) ?? shown.find(({ exact }) => exact[at] !== undefined);
  const isStep = model.kind === "step";
  const head = (owner && stepsOf(owner, at)) ?? (isStep ? [model.x[at], model.x[at]] : null);
  const texts = lines.map((line) => {
    const place = line.isHidden ? -1 : placeOf(line, at, head);
    return place < 0 ? "–" : textOf(line, place) + elsewhere(stepsOf(line, place), head);
  });
  const spread = texts.some((text) => text.includes("…")) ? ": mean (least…most)" : shown.some(({ isMean }) => isMean) ? ", median of means" : "";
  return { where: placeText(model, at, head, isLocal) + spread + marks, texts };
}

function isNumber(value) {
  return value !== null && value !== undefined;
}

function endText(line, head) {
  const { last, exact, values, isSmooth, digits } = line;
  const value = last ? last.value : exact.findLast(isNumber);
  if (!isNumber(value)) return "–";
  const smoothed = isSmooth && typeof value === "number" ? ` ~${numberText(values.findLast(isNumber), digits)}` : "";
  return numberText(value, digits) + smoothed + elsewhere(last && isNumber(last.step) ? [last.step, last.step] : null, head);
}

/** Return a place of x as a text. */
function placeText({ kind, x, xName, spanS }, at, head, isLocal) {
  const value = x[at];
  if (kind === "step") return stepsText(head);
  const place =
    kind === "time"
      ? timeText(new Date(value * 1000).toISOString(), isLocal)
      : kind === "relative"
        ? durationText(value)
        : `${xName ? `${xName} ` : ""}${valueText(value)}`;
  const span = spanS > 1 ? ` to ${durationText(spanS)} later` : "";
  return `${place}${span}${head ? `, ${stepsText(head)}` : ""}`;
}
