// Values as texts.

/** Order texts as people count: layer2 before layer10. */
export const byName = new Intl.Collator(undefined, { numeric: true }).compare;

/** Return a number in at most six digits that matter; other values as they are, null as "". */
export function valueText(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return typeof value === "object" ? JSON.stringify(value) : String(value);
  if (Number.isSafeInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e6 || (size < 1e-4 && size > 0) ? value.toExponential(3) : String(Number(value.toPrecision(6)));
}

/** Return a measured number for reading: in `digits` digits that matter, whole numbers with separators, no false zeros. */
export function numberText(value, digits = 6) {
  if (typeof value !== "number") return valueText(value);
  const size = Math.abs(value);
  if (size >= 1e9 || (size < 1e-4 && size > 0)) return exponentText(value, digits - 1);
  if (Number.isInteger(value) || size >= 10 ** (digits - 1)) return wholeText(value);
  const short = Number(value.toPrecision(digits));
  return size >= 1000 ? short.toLocaleString("en-US", { maximumFractionDigits: digits }) : String(short);
}

/** Return a number as "1.11111e14". */
export function exponentText(value, digits) {
  return value.toExponential(digits).replace(/(\.\d*?)0*e/, "$1e").replace(".e", "e").replace("e+", "e");
}

/** Seconds between ticks of an axis: multiples of minutes, hours and days above a minute. */
export const TIME_STEPS = [
  ...[1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1].flatMap((size) => [size, 2 * size, 5 * size]),
  ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200],
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].map((days) => days * 86400),
];

/** Return seconds as "850 ms", "12 s", "3 min 20 s", "5 h 3 min", "2 d 4 h". */
export function durationText(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "";
  if (seconds < 0) return `−${durationText(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return pair(whole, 60, "min", 1, "s");
  if (whole < 86400) return pair(whole, 3600, "h", 60, "min");
  return pair(whole, 86400, "d", 3600, "h");
}

function pair(seconds, size, unit, part, partUnit) {
  const rest = Math.floor((seconds % size) / part);
  return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${partUnit}` : ""}`;
}

/** Return how long a run took, or has been running; null without a start, NaN if its end is unknown. */
export function secondsOf(run) {
  if (!run.created_at) return null;
  const end = run.ended_at ? Date.parse(run.ended_at) : run.state === "running" ? Date.now() : NaN;
  return Math.max(0, end - Date.parse(run.created_at)) / 1000; // the clock of this machine may be behind
}

/** Return how long ago a time was: "just now", "5 min ago", "3 d ago". */
export function agoText(ts, now = Date.now()) {
  if (!ts) return "";
  const seconds = (now - Date.parse(ts)) / 1000;
  if (seconds < 10) return "just now";
  const [size, unit] = [
    [86400 * 365, "y"],
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ].find(([size]) => seconds >= size);
  return `${Math.floor(seconds / size)} ${unit} ago`;
}

// Times are in UTC, as in SQL and in the sentences of the server, or in the zone of the browser: its reader chooses, and
// with `local` a caller.
const TIMES = "chiplog-times";
let isLocal = localStorage.getItem(TIMES) === "local";

/** Change between UTC and the zone of the browser, for this browser. */
export function turnZone() {
  isLocal = !isLocal;
  localStorage.setItem(TIMES, isLocal ? "local" : "utc");
}

/** Return the zone of times for people, which has an offset that may change in a year: "UTC", "UTC+5:30". */
export function zoneText(ms = Date.now(), local = isLocal) {
  if (!local) return "UTC";
  const minutes = -new Date(ms).getTimezoneOffset();
  const size = Math.abs(minutes);
  const rest = size % 60 ? `:${String(size % 60).padStart(2, "0")}` : "";
  return `UTC${minutes < 0 ? "−" : "+"}${Math.floor(size / 60)}${rest}`;
}

/** Return the zone of times as a name of the IANA database. */
export function zoneName(local = isLocal) {
  return local ? Intl.DateTimeFormat().resolvedOptions().timeZone : "Etc/UTC";
}

/** Return an ISO time in the chosen zone, without its "Z". */
export function clockText(ts, local = isLocal) {
  const ms = Date.parse(ts);
  if (!local || Number.isNaN(ms)) return ts.replace("Z", "");
  return new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().replace("Z", "");
}

/** Return a time as "2026-01-02 03:04:05 UTC". */
export function timeText(ts, local = isLocal) {
  return ts ? `${clockText(ts, local).slice(0, 19).replace("T", " ")} ${zoneText(Date.parse(ts), local)}` : "";
}

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** Return the name of a phase as the page shows it. */
export function phaseText(phase) {
  return phase === "outside" ? "outside of phases" : phase;
}

/** Return a whole number with separators: "12,345". */
export function wholeText(number) {
  return WHOLE.format(number);
}

/** Return "1 label" or "3 labels". */
export function countText(number, noun) {
  return `${wholeText(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** Return seconds of a measurement, however short, as "1.2 ms", "0.31 s", "25 min"; null as "–". */
export function secondsText(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  const size = Math.abs(value);
  if (size < 0.001) return `${Number((value * 1e6).toPrecision(digits))} µs`;
  if (size < 0.1) return `${Number((value * 1000).toPrecision(digits))} ms`;
  if (size < 300) return `${Number(value.toPrecision(size < 100 ? digits : Math.max(digits, 3)))} s`;
  return size < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

/** Return bytes as "512 B", "1.5 GiB"; null as "–". */
export function bytesText(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const at = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), units.length - 1);
  return `${(value / 1024 ** at).toFixed(at ? 1 : 0)} ${units[at]}`;
}

/** Return by which code or signal a label ended; "" if it has not. */
export function exitText(row) {
  if (row.exit_signal !== null) return `signal ${row.exit_signal}`;
  return row.exit_code === null ? "" : `exit ${row.exit_code}`;
}
