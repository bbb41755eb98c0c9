// Elements that many views have.

import { h } from "./dom.js";

/** Return a paragraph in the colour of what is beside the matter. */
export function quiet(...children) {
  return h("p", { class: "quiet" }, children);
}

/** Return what a view shows that has nothing else to show. heading: "h1", or "h2" in a part of a page. */
export function emptySection(heading, title, ...children) {
  return h("section", { class: "empty" }, h(heading, {}, title), children);
}

/** Return a panel with a title. */
export function titledPanel(title, ...children) {
  return h("section", { class: "panel", "aria-label": title }, h("h2", {}, title), children);
}

/** Return a box to check with its text. onChange(isChecked) */
export function checkbox(text, isChecked, onChange) {
  const onchange = ({ target }) => onChange(target.checked);
  return h("label", {}, h("input", { type: "checkbox", checked: isChecked, onchange }), text);
}
