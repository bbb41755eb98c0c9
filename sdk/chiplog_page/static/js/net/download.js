// Downloads of data that the page itself builds.

import { h } from "../dom.js";

/** Let the browser save a blob under a name. */
export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Return rows of values as CSV. */
export function csvOf(rows) {
  return rows.map((row) => row.map(cellOf).join(",")).join("\r\n") + "\r\n";
}

function cellOf(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  // A spreadsheet would evaluate a text that begins like a formula; a number with a sign is none.
  const safe = /^[=+\-@\t\r]/.test(text) && !/^-\d+(\.\d+)?$/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
