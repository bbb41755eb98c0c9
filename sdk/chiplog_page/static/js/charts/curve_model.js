// Curves of the API as what a chart draws, and the new end of a curve joined to what is known of it.

import { labelText } from "../text/labels.js";
import { lineStyle, smooth } from "./chart.js";

/** Return a curve whose buckets from a step on are those of a later answer; null if the answer has other buckets. */
export function merge(curve, part, from) {
  if (part.kind !== curve.kind || part.width !== curve.width || part.is_one_step !== curve.is_one_step) return null;
  const cut = curve.step.findIndex((step) => step >= from);
  const kept = cut < 0 ? curve.step.length : cut;
  const joined = (before, after) => [...before.slice(0, kept), ...after];
  const merged = { ...curve, ...part, n_infinite: Math.max(curve.n_infinite, part.n_infinite) }; // of a part: its own only
  for (const name of ["step", "ts"]) merged[name] = joined(curve[name], part[name]);
  if (curve.x) merged.x = joined(curve.x, part.x ?? part.step.map(() => null));
  if (curve.kind === "band") {
    for (const name of ["n_present", "min", "median", "max", "min_label", "max_label"]) {
      merged[name] = joined(curve[name], part[name]);
    }
    merged.last = part.last ?? curve.last;
    return merged;
  }
  const empty = (n) => ({ gaps: [], gap_texts: [], mean: new Array(n).fill(null), min: null, max: null });
  const parts = new Map(part.lines.map((line) => [line.label, line]));
  const known = new Map(curve.lines.map((line) => [line.label, line]));
  merged.lines = [...new Set([...known.keys(), ...parts.keys()])].map((label) => {
    const before = known.get(label) ?? empty(kept);
    const after = parts.get(label) ?? empty(part.step.length);
    const bound = (name) => (before[name] || after[name] ? joined(before[name] ?? before.mean, after[name] ?? after.mean) : null);
    const gaps = before.gaps.filter((at) => at < kept);
    return {
      label,
      last: after.last ?? before.last,
      gaps: [...gaps, ...after.gaps.map((at) => at + kept)],
      gap_texts: [...(before.gap_texts ?? []).slice(0, gaps.length), ...(after.gap_texts ?? [])],
      mean: joined(before.mean, after.mean),
      min: bound("min"),
      max: bound("max"),
    };
  });
  return merged;
}

/** Return the labels that lack values between their first and their last one, where other labels have some. */
export function holesOf(curve) {
  const found = (curve.lines ?? []).map(({ label, mean, gaps }) => {
    const isGap = new Set(gaps);
    const places = mean.flatMap((value, at) => (value !== null || isGap.has(at) ? [at] : []));
    const of = places.length ? places.at(-1) - places[0] + 1 : 0;
    return { label, n: of - places.length, of };
  });
  return found.filter(({ n }) => n);
}

/**
 * Return the model of a chart, and how many values logarithmic axes leave out: nHidden of y, nLeft of x.
 * @param {Array<{run: string, name: string, curve: Object, startMs: number, noun: ?string}>} runs the curves of one key; the first is the page's run
 * @param {{x: string, isLog: boolean, isLogX: ?boolean, weight: number, range: ?Array<number>, hidden: ?Set<string>}} view
 *   x: "step", "time", "relative", or "value" for the x of the curves; hidden: IDs of lines: labels, or runs where several
 *   are shown
 */
export function modelOf(runs, { x, isLog, isLogX = false, weight, range, hidden = new Set() }) {
  // A run has its colour in all panels, also where another one lacks the metric.
  const tables = runs.flatMap((run, at) => (run.curve?.step.length ? [tableOf(run, x, runs.length > 1 ? at : null, isLogX)] : []));
  const { places, columns } = join(tables);
  let nHidden = 0;
  let nLeft = 0;
  const isLeftOut = (value) => isLog && value !== null && value <= 0;
  const shown = (values) => (values && isLog ? values.map((value) => (isLeftOut(value) ? null : value)) : values);
  const lines = [];
  const fills = [];
  tables.forEach((table, number) => {
    const start = lines.length;
    const column = (values) => (values ? columns[number](values) : null);
    const steps = column(table.steps);
    for (const line of table.lines) {
      if (hidden.has(line.id)) {
        lines.push({ ...line, isHidden: true, low: null, high: null, values: places.map(() => undefined) });
        continue;
      }
      const given = column(line.values);
      const [least, most] = [column(line.low), column(line.high)];
      const isSmooth = weight > 0 && !line.isThin; // a bound is not smoothed: the values of the line are within it
      if (!line.isThin) {
        nHidden += given.filter(isLeftOut).length;
        nLeft += table.left.filter((place) => isNumber(line.values[place])).length;
      }
      const values = shown(given);
      lines.push({
        ...line,
        values: isSmooth ? smooth(values, weight) : values,
        raw: isSmooth ? values : null,
        low: shown(least),
        high: shown(most),
        exact: given,
        bounds: least && most ? [least, most] : null,
        texts: column(line.texts),
        isSmooth,
        steps,
        width: table.width,
        digits: table.digits,
        lastStep: table.lastStep,
      });
    }
    for (const [upper, lower, colour] of table.fills) fills.push([start + upper, start + lower, colour]);
  });
  // Of a band: the labels that are in it, so that none is missing unseen.
  const only = tables.length === 1 ? runs.find(({ curve }) => curve?.step.length).curve : null;
  const present = only?.kind === "band" ? columns[0](only.n_present) : null;
  const spanS = Math.max(...runs.map(({ curve }) => curve?.width_s ?? 0));
  const model = { x: places, kind: x, spanS, range: x === "step" ? range : null, isLog, isLogX, lines, fills, present };
  return { model: { ...model, nLabels: only?.n_expected ?? only?.n_labels }, nHidden, nLeft };
}

export function isNumber(value) {
  return value !== null && value !== undefined;
}

/**
 * Return {x, order, left, lines, fills} of one run. number: its place among several, null if it is alone; left: buckets
 * that a logarithmic x leaves out.
 */
function tableOf({ run, name, curve, startMs, noun = "labels" }, x, number, isLogX) {
  const all = placesOf(curve, x, startMs);
  const isLeft = (value) => isLogX && value <= 0;
  const places = all.x.filter((value) => !isLeft(value));
  const order = all.order.filter((_, at) => !isLeft(all.x[at]));
  const left = all.order.filter((_, at) => isLeft(all.x[at]));
  const single = number === null ? null : lineStyle(number);
  const { width = 1, last_step: lastStep, digits } = curve;
  // Buckets of time have no steps.
  const common = { x: places, order, left, width, lastStep, digits, steps: curve.width_s === undefined ? curve.step : null };
  const prefix = number === null ? "" : `${name} `;
  if (curve.kind === "lines") {
    const same = number === null ? commonLine(curve.lines) : null;
    const shown = same ? [same] : curve.lines;
    const lines = shown.map((line, at) => {
      const gaps = new Set(line.gaps);
      // A label without a value at a step of others is bridged; NaN and infinities interrupt the line.
      const numbers = (values) => values.map((value, place) => (value ?? (gaps.has(place) ? null : undefined)));
      const texts = gaps.size && line.gap_texts ? new Array(line.mean.length) : null;
      line.gaps.forEach((place, number) => texts && (texts[place] = nonFiniteText(line.gap_texts[number])));
      const values = numbers(line.mean);
      const isOne = number !== null && curve.lines.length === 1;
      return {
        id: same ? null : number === null ? line.label : run,
        name: same ? `all ${curve.lines.length} ${noun}` : isOne ? name : prefix + labelText(line.label),
        values,
        texts,
        low: line.min ? numbers(line.min) : null,
        high: line.max ? numbers(line.max) : null,
        last: line.last && { ...line.last, value: nonFiniteText(line.last.value) },
        ...(single ?? lineStyle(at)),
      };
    });
    return { ...common, lines, fills: [] };
  }
  const style = single ?? lineStyle(0);
  const last = (name) => curve.last && { step: curve.last.step, value: nonFiniteText(curve.last[name]) };
  if (number === null && curve.max.every((value, at) => value === curve.min[at])) {
    return { ...common, lines: [{ name: `all ${curve.n_labels} ${noun}`, values: curve.median, last: last("median"), ...style }], fills: [] };
  }
  const most = commonest(curve.max_label);
  const least = commonest(curve.min_label);
  const tail = (text, isAbove) => (number === null && text ? { text, isAbove } : null);
  const isSilent = number !== null;
  const id = number === null ? null : run;
  const median = number === null ? "median" : `${name} (median of ${curve.n_labels})`;
  const lines = [
    { name: `${prefix}max${most ? ` (mostly ${most})` : ""}`, values: curve.max, last: last("max"), isThin: true, isSilent, id, tail: tail(most, true), ...style },
    { name: median, values: curve.median, last: last("median"), isMean: width > 1, id, ...style },
    { name: `${prefix}min${least ? ` (mostly ${least})` : ""}`, values: curve.min, last: last("min"), isThin: true, isSilent, id, tail: tail(least, false), ...style },
  ];
  return { ...common, lines, fills: [[0, 2, style.colour]] };
}

/** Return a number as it is, and what JSON lacks in words: "NaN", "∞". */
function nonFiniteText(value) {
  return { nan: "NaN", inf: "∞", "-inf": "−∞" }[value] ?? value;
}

/**
 * Return the longest line of several labels if all have the same values, else null: one of them would hide the others.
 * A label may have ended, or be behind: then its values are equal until its last one.
 */
function commonLine(lines) {
  if (lines.length < 2) return null;
  const ends = lines.map(({ mean, gaps }) => Math.max(mean.findLastIndex((value) => value !== null), gaps.at(-1) ?? -1));
  const longest = lines[ends.indexOf(Math.max(...ends))];
  const valuesOf = (line, name) => line[name] ?? line.mean;
  const isEqual = (a, b, end) => a === b || a.every((value, at) => at > end || value === b[at]);
  const isCommon = (line, at) =>
    ["mean", "min", "max"].every((name) => isEqual(valuesOf(line, name), valuesOf(longest, name), ends[at]));
  return lines.every(isCommon) ? longest : null;
}

/** Return the label that is named in the most buckets. */
function commonest(labels) {
  const counts = new Map();
  for (const label of labels) if (label !== null) counts.set(label, (counts.get(label) ?? 0) + 1);
  let best = null;
  for (const [label, count] of counts) if (best === null || count > counts.get(best)) best = label;
  return best;
}

/** Return the x of a curve's buckets. order: the buckets in the order of x, without those that have none. */
export function placesOf(curve, x, startMs) {
  const at =
    x === "step"
      ? curve.step
      : x === "time"
        ? curve.ts.map((ms) => ms / 1000)
        : x === "relative"
          ? curve.ts.map((ms) => (ms - startMs) / 1000)
          : (curve.x ?? curve.step.map(() => null));
  const order = at.map((_, place) => place).filter((place) => at[place] !== null);
  order.sort((a, b) => at[a] - at[b] || a - b);
  return { x: order.map((place) => at[place]), order };
}

/** Return all places of x that several lists have, in order, and what puts values at places of one of them there. */
function union(lists) {
  const places = [...new Set(lists.flat())].sort((a, b) => a - b);
  const numbers = new Map(places.map((place, at) => [place, at]));
  const spread = (from, values) => {
    const column = new Array(places.length).fill(undefined);
    from.forEach((place, at) => (column[numbers.get(place)] = values[at]));
    return column;
  };
  return { places, spread };
}

/** Join tables by x: return all places of x, and for each table what puts a column there. */
function join(tables) {
  const inOrder = tables.map(({ order }) => (values) => order.map((place) => values[place]));
  if (tables.length === 1) return { places: tables[0].x, columns: inOrder };
  const { places, spread } = union(tables.map(({ x }) => x));
  return { places, columns: tables.map(({ x }, at) => (values) => spread(x, inOrder[at](values))) };
}

/** Return a model with the lines of another one of the same kind of x: at all places that either has. */
export function combined(model, other) {
  const { places: x, spread } = union([model.x, other.x]);
  const linesOf = (one) =>
    one.lines.map((line) => {
      const placed = (values) => values && spread(one.x, values);
      const columns = ["values", "raw", "low", "high", "exact", "texts", "steps"].map((name) => [name, placed(line[name])]);
      return { ...line, ...Object.fromEntries(columns), bounds: line.bounds?.map(placed) };
    });
  let last = model.nLabels;
  const present = model.present && spread(model.x, model.present).map((n) => (last = n ?? last));
  const shifted = other.fills.map(([upper, lower, colour]) => [upper + model.lines.length, lower + model.lines.length, colour]);
  const fills = [...model.fills, ...shifted];
  return { ...model, x, present, lines: [...linesOf(model), ...linesOf(other)], fills };
}

/**
 * Return curves as rows of a table, after its head: a row per value. The head says so where a row is a bucket of steps, or
 * the labels of a band.
 */
export function rowsOf(runs) {
  const curves = runs.filter(({ curve }) => curve.kind !== "none");
  const isBucketed = curves.some(({ curve }) => curve.width > 1 || curve.width_s);
  const isBand = curves.some(({ curve }) => curve.kind === "band");
  const middle = isBand ? (isBucketed ? "median_of_means" : "median") : isBucketed ? "mean" : "value";
  const steps = isBucketed ? ["first_step", "last_step"] : ["step"];
  const bounds = isBucketed || isBand ? ["min", "max"] : [];
  const rows = [["run", "label", ...steps, "time", middle, ...bounds]];
  for (const { run, curve } of curves) {
    const add = (label, at, value, least, most) => {
      const step = curve.step[at];
      const last = Math.max(step, Math.min(step + curve.width - 1, curve.last_step ?? Infinity));
      const range = isBucketed ? [step, last] : [step];
      rows.push([run, label, ...range, new Date(curve.ts[at]).toISOString(), value, ...(bounds.length ? [least, most] : [])]);
    };
    for (const { label, mean, min, max, gaps, gap_texts: texts = [] } of curve.lines ?? []) {
      const odd = new Map(gaps.map((at, number) => [at, texts[number] ?? null]));
      mean.forEach((value, at) => {
        if (odd.has(at)) add(label, at, odd.get(at), min?.[at] ?? null, max?.[at] ?? null);
        else if (value !== null) add(label, at, value, min?.[at] ?? value, max?.[at] ?? value);
      });
    }
    if (curve.kind !== "band") continue;
    curve.step.forEach((_, at) => add(`${curve.n_present[at]} labels`, at, curve.median[at], curve.min[at], curve.max[at]));
  }
  return rows;
}
