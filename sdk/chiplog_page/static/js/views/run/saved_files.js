// Saved files as previews. Nothing that a run saved is ever run or laid out: images are blobs of a raster type that
// their first bytes prove, tables and texts become text nodes.

import { part } from "../../net/api.js";
import { grid } from "../../tables/grid.js";
import { countText, wholeText } from "../../text/texts.js";

export const IMAGE_BYTES_MAX = 16 << 20;
export const TEXT_BYTES_MAX = 256 << 10;
const CELL_CHARS_MAX = 500;
const COLUMNS_MAX = 200;
const NO_STEP = /(?:rank|gpu|node|worker|layer|head|fold|class|part|v)[_=-]?$/i; // a number after it counts something else
const TABLES = { csv: ",", tsv: "\t", tab: "\t" };
// SVG may have scripts: it is shown as text.
const IMAGES = [
  ["image/png", (bytes) => starts(bytes, [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])],
  ["image/jpeg", (bytes) => starts(bytes, [0xff, 0xd8, 0xff])],
  ["image/gif", (bytes) => starts(bytes, [0x47, 0x49, 0x46, 0x38])],
  [
    "image/webp",
    (bytes) => starts(bytes, [0x52, 0x49, 0x46, 0x46]) && starts(bytes.subarray(8), [0x57, 0x45, 0x42, 0x50]),
  ],
];

function starts(bytes, known) {
  return known.every((byte, at) => bytes[at] === byte);
}

/** Return "image", "table", "json" or "text", by the end of a name: what a preview tries first. */
export function kindOf(path) {
  const end = path.split(".").at(-1).toLowerCase();
  if (["png", "jpg", "jpeg", "gif", "webp"].includes(end)) return "image";
  if (Object.hasOwn(TABLES, end) || path.endsWith(".table.json")) return "table";
  return end === "json" ? "json" : "text";
}

/** Return the address of a saved file. */
export function fileAddress(run, path) {
  return `api/runs/${part(run)}/files/${path.split("/").map(part).join("/")}`;
}

/** Return the first bytes of a file; the server sends no more. */
export async function readStart(run, path, bytesMax, signal) {
  const response = await fetch(`${fileAddress(run, path)}?bytes=${bytesMax}`, { signal });
  if (!response.ok) throw new Error((await response.json().catch(() => null))?.error?.message ?? response.statusText);
  return new Uint8Array(await response.arrayBuffer());
}

/** Return an image as a blob of a fixed type, or null if the bytes are no known image. */
export function imageOf(content) {
  const type = IMAGES.find(([, isIt]) => isIt(content))?.[0];
  return type ? new Blob([content], { type }) : null;
}

/**
 * Return a table {head, rows, nRows} of at most so many rows; null if the text is none. nRows: of all, null if unknown.
 * @param {string} path its end says what separates values
 * @param {string} text perhaps only the start of the file
 * @param {boolean} isPart whether more of the file follows: then the last line may be half
 */
export function tableOf(path, text, rowsMax, isPart) {
  if (path.endsWith(".json")) {
    let value = null;
    try {
      value = JSON.parse(text);
    } catch {
      return null;
    }
    if (!Array.isArray(value?.columns) || !Array.isArray(value.data) || !value.data.every(Array.isArray)) return null;
    const cells = (row) => row.map((cell) => (typeof cell === "string" ? cell : (JSON.stringify(cell) ?? "")));
    return {
      head: cells(value.columns),
      rows: value.data.slice(0, rowsMax).map(cells),
      nRows: value.data.length,
    };
  }
  const rows = separated(text, TABLES[path.split(".").at(-1).toLowerCase()] ?? ",", isPart ? rowsMax + 2 : Infinity);
  if (isPart && rows.length < rowsMax + 2) rows.pop();
  return rows.length ? { head: rows[0], rows: rows.slice(1, rowsMax + 1), nRows: isPart ? null : rows.length - 1 } : null;
}

/** Return the first rows of separated values with quotes as of RFC 4180. */
function separated(text, separator, rowsMax) {
  const rows = [];
  let row = [];
  let at = text.charCodeAt(0) === 0xfeff ? 1 : 0;
  while (at < text.length && rows.length < rowsMax) {
    let cell = "";
    if (text[at] === '"') {
      for (at += 1; at < text.length; at += 1) {
        if (text[at] !== '"') cell += text[at];
        else if (text[at + 1] === '"') cell += text[++at];
        else break;
      }
      at += 1;
    }
    const start = at;
    while (at < text.length && text[at] !== separator && text[at] !== "\n" && text[at] !== "\r") at += 1;
    row.push(cell + text.slice(start, at));
    if (text[at] === separator && at + 1 < text.length) {
      at += 1;
      continue;
    }
    if (text[at] === separator) row.push("");
    at += text[at] === "\r" && text[at + 1] === "\n" ? 2 : 1;
    if (row.length > 1 || row[0] !== "") rows.push(row);
    row = [];
  }
  return rows;
}

/** Return a table as an element. */
export function tableElement({ head, rows }) {
  const isNumber = head.map(
    (_, at) => rows.length > 0 && rows.every((row) => (row[at] ?? "") === "" || Number.isFinite(Number(row[at]))),
  );
  const text = (value = "") => (value.length > CELL_CHARS_MAX ? `${value.slice(0, CELL_CHARS_MAX)}… (${CELL_CHARS_MAX} of ${countText(value.length, "character")})` : value);
  const shown = head.slice(0, COLUMNS_MAX);
  const kinds = isNumber.map((is) => (is ? "number" : null));
  return grid(
    shown.map((name, at) => [text(name), kinds[at]]),
    rows.map((row) => shown.map((_, at) => text(row[at]))),
    { box: { class: "scroll saved-table", tabindex: 0, role: "group", "aria-label": "Rows" } },
  );
}

/** Return what of a table is shown, in words. */
export function tableText({ head, rows, nRows }) {
  const [n, nColumns] = [nRows ?? rows.length, head.length];
  const of = (nShown, nAll) => (nShown < nAll ? `${wholeText(nShown)} of ` : "");
  const columns = `${of(COLUMNS_MAX, nColumns)}${countText(nColumns, "column")}`;
  return `${nRows === null ? "The first " : of(rows.length, n)}${countText(n, "row")}, ${columns}.`;
}

/**
 * Group files whose names differ only in a number, as of `samples/step_100.png`.
 * @returns {Array<{name: string, files: Array<{step: ?number, file: Object}>}>} by name; step is null for a single file
 */
export function seriesOf(files) {
  const groups = new Map();
  for (const file of files) {
    const found = numberIn(file.path);
    const name = found ? `${file.path.slice(0, found.at)}*${file.path.slice(found.at + found.text.length)}` : file.path;
    const entry = { step: found ? Number(found.text) : null, file };
    groups.set(name, [...(groups.get(name) ?? []), entry]);
  }
  return [...groups].flatMap(([name, entries]) => {
    const isSeries = entries.length > 1 && new Set(entries.map(({ step }) => step)).size === entries.length;
    if (!isSeries) return entries.map(({ file }) => ({ name: file.path, files: [{ step: null, file }] }));
    return [{ name, files: entries.sort((a, b) => a.step - b.step) }];
  });
}

/** Return where a path has its step: after a word for it, else the last number of the file's name. */
function numberIn(path) {
  const named = [...path.matchAll(/(?:^|[^a-z])(?:global_?step|step|iter|iteration|epoch)[_=-]?(\d{1,15})(?!\d)/gi)].at(-1);
  if (named) return { at: named.index + named[0].length - named[1].length, text: named[1] };
  const start = path.lastIndexOf("/") + 1;
  const stem = path.slice(start, path.lastIndexOf(".") > start ? path.lastIndexOf(".") : undefined);
  const last = [...stem.matchAll(/\d+/g)].at(-1);
  if (last && NO_STEP.test(stem.slice(0, last.index))) return null;
  return last && last[0].length <= 15 ? { at: start + last.index, text: last[0] } : null;
}
