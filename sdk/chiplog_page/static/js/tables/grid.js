// A table of data in a box that scrolls.

import { h } from "../dom.js";

/**
 * Return a box with a table.
 * @param {Array<[(string|Node), ?string]>} heads title and class of each column
 * @param {Element} body a tbody
 * @param {{table: Object, box: Object}} attributes of both elements
 */
export function grid(heads, body, { table = { class: "grid" }, box = { class: "scroll" } } = {}) {
  const cells = heads.map(([title, kind]) => h("th", { class: kind, scope: "col" }, title));
  return h("div", box, h("table", table, h("thead", {}, h("tr", {}, cells)), body));
}
