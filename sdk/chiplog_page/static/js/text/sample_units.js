// Samples of machines as people read them: in units, and with the words of what went wrong.

import { labelText } from "./labels.js";
import { numberText } from "./texts.js";

const DIGITS = 4; // of a value in the legend: samples are no more exact
const SAMPLES_MIN = 2; // of each device in a bucket: they are not sampled at the same time
// The sizes of each unit from large to small, by quantity: see sample_names.py of the server.
const SIZES = {
  share: [[0.01, "%"]],
  cores: [[0.01, "% of a core"]],
  bytes: [
    [2 ** 40, "TiB"],
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
    [1, "B"],
  ],
  hertz: [
    [1e9, "GHz"],
    [1e6, "MHz"],
    [1, "Hz"],
  ],
  watts: [[1, "W"]],
  celsius: [[1, "°C"]],
  joules: [[1, "J"]],
  seconds: [[1, "s"]],
};
const RATES = { joules: [[1, "W"]], seconds: [[0.01, "% of the time"]] };

/** Return the unit for values up to `most`, and its size: {unit, size}. row: quantity and is_rate of a name. */
function unitOf({ quantity, is_rate: isRate }, most) {
  const sizes = (isRate ? RATES[quantity] : null) ?? SIZES[quantity] ?? [[1, ""]];
  const [size, unit] = sizes.find(([one]) => most >= one) ?? sizes.at(-1);
  const after = isRate && !RATES[quantity] ? "per second" : "";
  return { unit: [unit, after].filter(Boolean).join(" "), size };
}

/** Return a value of a name as "79.6 GiB". */
export function sampleText(row, value) {
  const { unit, size } = unitOf(row, Math.abs(value));
  return `${numberText(value / size, DIGITS)} ${unit}`;
}

/** Return a curve in a unit for people: {title, scaled}; the title is that of its name with the unit. */
export function inUnit(curve) {
  // A line whose buckets have one sample each has no maximum beside its mean.
  const columns = curve.kind === "band" ? [curve.max] : (curve.lines ?? []).map(({ max, mean }) => max ?? mean);
  const most = columns.flat().reduce((a, b) => Math.max(a, Math.abs(b ?? 0)), 0);
  const { unit, size } = unitOf(curve, most);
  const scale = (values) => values?.map((value) => (value === null ? null : value / size));
  const parts = (of, names) => Object.fromEntries(names.map((name) => [name, scale(of[name])]));
  const one = (last, names) => last && { ...last, ...Object.fromEntries(names.map((name) => [name, last[name] === null ? null : last[name] / size])) };
  const ofBand = ["min", "median", "max"];
  const scaled =
    curve.kind === "band"
      ? { ...parts(curve, ofBand), last: one(curve.last, ofBand) }
      : { lines: curve.lines?.map((line) => ({ ...line, ...parts(line, ["mean", "min", "max"]), last: one(line.last, ["value"]) })) };
  return { title: unit ? `${curve.title}, ${unit}` : curve.title, scaled: { ...curve, ...scaled, digits: DIGITS } };
}

/**
 * Return the least width of a bucket, in seconds or steps. In a band each device needs a sample in each bucket: else it
 * is one of other devices in each of them. Lines need no such width.
 * @param {{names: Array, labels: Array, steps: ?Object}} found an answer of api/runs/RUN/system
 * @param {{isByStep: boolean, linesMax: number, isChosen: ?function(row): boolean}} view isChosen: null for all devices
 */
export function leastWidth({ names, labels, steps }, name, { isByStep, linesMax, isChosen }) {
  const row = names.find((one) => one.name === name);
  if (!row || row.n <= row.n_devices) return 1;
  const chosen = isChosen ? labels.filter(isChosen) : [];
  const n = name.startsWith("hw.") ? chosen.flatMap(({ gpus }) => gpus ?? []).length : chosen.length;
  if (Math.min(isChosen ? n : Infinity, row.n_devices) <= linesMax) return 1;
  const apartS = ((Date.parse(row.last) - Date.parse(row.first)) / 1000) * (row.n_devices / row.n);
  const perS = isByStep && steps?.seconds > 0 ? (steps.last_step - steps.first_step) / steps.seconds : 1;
  return Math.max(1, Math.ceil(SAMPLES_MIN * apartS * perS));
}

/** Return marks of GPUs for a chart. x: "step", "time" or "relative"; marks without a place there are left out. */
export function marksAt(marks, x, startMs) {
  const placeOf = {
    time: ({ ts }) => Date.parse(ts) / 1000,
    step: ({ step }) => step,
    relative: ({ ts }) => (Date.parse(ts) - startMs) / 1000,
  }[x];
  if (!placeOf) return [];
  const found = marks.map((mark) => ({
    x: placeOf(mark),
    isBad: mark.kind !== "throttled",
    text: `${labelText(mark.label) ?? mark.node} ${mark.words}`,
  }));
  return found.filter((mark) => mark.x !== null);
}
