// A table of data in a box that scrolls.

import { h } from "../dom.js";

/**
 * Return a box with a table.
 * @param {Array<[(string|Node), ?string]>} heads title and class of each column; "row" for one that names its rows
 * @param {Element|Array<Array>} body a tbody, or the contents of the cells of each row
 * @param {{table: Object, box: Object}} attributes of both elements
 */
export function grid(heads, body, { table = { class: "grid" }, box = { class: "scroll" } } = {}) {
  const cells = heads.map(([title, kind]) => h("th", { class: kind === "row" ? null : kind, scope: "col" }, title));
  const rows = body instanceof Element ? body : h("tbody", {}, body.map((row) => rowOf(heads, row)));
  return h("div", box, h("table", table, h("thead", {}, h("tr", {}, cells)), rows));
}

/** Return a row of a table. */
export function rowOf(heads, cells, attributes = {}) {
  const cellOf = (cell, at) => {
    const [, kind] = heads[at];
    return kind === "row" ? h("th", { scope: "row" }, cell) : h("td", { class: kind }, cell);
  };
  return h("tr", attributes, cells.map(cellOf));
}
