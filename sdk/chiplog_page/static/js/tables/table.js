// A table whose rows have one height. Only the visible ones are elements, so 20,000 rows scroll like 20.

import { h, show } from "../dom.js";

const CELL_PX = 18; // of a cell beside its text
const ARROW_PX = 34; // the arrow and the padding beside the title of the sorted column
const WANTED_MAX = 900; // px of one column
const MORE = 8; // rows above and below the visible ones
let tables = 0;

/**
 * Return the widths of columns in px: their own, and of the room beside them what their contents lack.
 * @param {Array<{width: number}>} columns
 * @param {Array<number>} wanted the widths of the contents
 */
export function fittedWidths(columns, wanted, room) {
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
  const lacks = columns.map(({ width }, at) => Math.max(0, (wanted[at] ?? 0) - width));
  const free = Math.max(0, room - sum(columns.map(({ width }) => width)));
  const share = Math.min(1, free / (sum(lacks) || 1));
  return columns.map(({ width }, at) => Math.floor(width + share * lacks[at]));
}

/**
 * Return a table: {element, set, redraw, close}.
 *
 * set(columns, rows, sort, keepsPlace): columns are {name, title, width (px), grows, isFluid, isNumber, cell(data), isSortable}; rows are
 * {key, data}, or {key, heading, isFolded} for a line over a group; sort is {name, isDown} or null. Rows with the same key and the
 * same `data` keep their elements. keepsPlace: the first visible row stays where it is, although rows come above it; else
 * the table begins at its top again.
 * @param {Object} options label; onSort(name), onOpen(row), onMark(row), onFold(row): called by mouse and keyboard, the
 *   last one for a line over a group; isMarked(row)
 */
export function createTable({ label, onSort, onOpen, onMark, onFold, isMarked = () => false }) {
  const id = `table${++tables}`;
  let columns = [];
  let rows = [];
  let sort = null;
  let active = -1;
  let height = 30;
  let frame = 0;
  let drawn = new Map();
  let wanted = []; // widths of contents, px

  const head = h("div", { class: "row head", role: "row", "aria-rowindex": 1 });
  const body = h("div", { class: "rows", role: "rowgroup" });
  const element = h(
    "div",
    { class: "table", role: "grid", tabindex: 0, "aria-label": label, onscroll: later, onkeydown: onKey },
    h("div", { class: "heads", role: "rowgroup" }, head),
    body,
  );
  const sizes = new ResizeObserver(() => {
    height = parseInt(getComputedStyle(element).getPropertyValue("--row"), 10) || 30;
    body.style.height = `${rows.length * height}px`;
    setWidths();
    redraw();
  });
  sizes.observe(element);

  function set(newColumns, newRows, newSort, keepsPlace = false) {
    const top = Math.floor(element.scrollTop / height);
    const anchor = keepsPlace && top > 0 ? rows[top]?.key : undefined;
    const isSame = columns.length === newColumns.length && columns.every((column, at) => column === newColumns[at]);
    const key = rows[active]?.key;
    [columns, rows, sort] = [newColumns, newRows, newSort];
    active = key === undefined ? -1 : rows.findIndex((row) => row.key === key);
    if (!isSame) {
      drawn.clear();
      wanted = [];
    }
    drawHead();
    element.setAttribute("aria-rowcount", rows.length + 1);
    element.setAttribute("aria-colcount", columns.length);
    body.style.height = `${rows.length * height}px`;
    if (!keepsPlace) element.scrollTop = 0;
    else if (anchor !== undefined && rows[top]?.key !== anchor) {
      const moved = rows.findIndex((row) => row.key === anchor);
      if (moved >= 0) element.scrollTop += (moved - top) * height;
    }
    redraw();
  }

  function drawHead() {
    const focused = head.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    element.style.setProperty("--least", `${columns.reduce((sum, { width }) => sum + width, 0)}px`);
    show(head, columns.map(headOf));
    setWidths();
    if (focused) head.querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus();
  }

  function setWidths() {
    const widths = fittedWidths(columns, wanted, element.clientWidth);
    const tracks = columns.map(({ grows }, at) => (grows ? `minmax(${widths[at]}px, ${grows}fr)` : `${widths[at]}px`));
    element.style.setProperty("--columns", tracks.join(" "));
  }

  /** Note how wide the contents of new rows are. */
  function measure(elements) {
    const range = document.createRange();
    for (const element of elements) {
      [...element.children].forEach((cell, at) => {
        if (columns[at]?.isFluid) return;
        range.selectNodeContents(cell);
        const title = cell.parentNode === head && cell.querySelector(".clip"); // a button is not wider than its cell
        const width = title ? title.scrollWidth + ARROW_PX : range.getBoundingClientRect().width;
        wanted[at] = Math.min(WANTED_MAX, Math.max(wanted[at] ?? 0, Math.ceil(width) + CELL_PX));
      });
    }
    setWidths();
  }

  function headOf({ name, title, isNumber, isSortable, help }) {
    const isSorted = sort?.name === name;
    const arrow = isSorted ? (sort.isDown ? " ↓" : " ↑") : "";
    return h(
      "div",
      {
        role: "columnheader",
        class: isNumber ? "number" : null,
        "aria-sort": isSorted ? (sort.isDown ? "descending" : "ascending") : null,
        title: help ?? title,
      },
      isSortable && onSort
        ? h("button", { class: "bare", "data-name": name, onclick: () => onSort(name) }, h("span", { class: "clip" }, title), arrow)
        : h("span", { class: "clip" }, title),
    );
  }

  function later() {
    frame ||= requestAnimationFrame(redraw);
  }

  /** Draw the visible rows again, those whose key, data or mark has changed. */
  function redraw() {
    cancelAnimationFrame(frame);
    frame = 0;
    const top = element.scrollTop;
    const first = Math.max(0, Math.floor(top / height) - MORE);
    const last = Math.min(rows.length, Math.ceil((top + element.clientHeight) / height) + MORE);
    const next = new Map();
    const made = [];
    let place = body.firstChild;
    for (let at = first; at < last; at++) {
      const row = rows[at];
      const isChosen = isMarked(row);
      let old = drawn.get(row.key);
      if (!old || old.data !== row.data || old.heading !== row.heading || old.isFolded !== row.isFolded || old.isChosen !== isChosen) {
        old = { data: row.data, heading: row.heading, isFolded: row.isFolded, isChosen, element: rowOf(row, isChosen) };
        if (!row.heading) made.push(old.element);
      }
      next.set(row.key, old);
      old.element.id = `${id}-${at}`;
      old.element.setAttribute("aria-rowindex", at + 2);
      old.element.classList.toggle("active", at === active);
      old.element.style.top = `${at * height}px`;
      if (old.element === place) place = place.nextSibling;
      else body.insertBefore(old.element, place);
    }
    while (place) {
      const after = place.nextSibling;
      place.remove();
      place = after;
    }
    drawn = next;
    if (made.length && element.clientWidth) measure([head, ...made]);
    if (active >= first && active < last) element.setAttribute("aria-activedescendant", `${id}-${active}`);
    else element.removeAttribute("aria-activedescendant");
  }

  function rowOf(row, isChosen) {
    const index = () => rows.findIndex(({ key }) => key === row.key);
    const attributes = { class: "row", role: "row", onclick: () => activate(index()) };
    if (row.heading) {
      const onclick = () => {
        activate(index());
        onFold?.(row);
      };
      const arrow = h("span", { "aria-hidden": "true" }, row.isFolded ? "▸ " : "▾ ");
      const cell = h("div", { role: "gridcell", class: "clip", "aria-expanded": String(!row.isFolded) }, arrow, row.heading);
      return h("div", { ...attributes, class: "row heading", onclick }, cell);
    }
    if (onMark) attributes["aria-selected"] = String(isChosen);
    if (onOpen) attributes.ondblclick = () => onOpen(row);
    return h(
      "div",
      attributes,
      columns.map(({ cell, isNumber }) =>
        h("div", { role: "gridcell", class: isNumber ? "number clip" : "clip" }, cell(row.data)),
      ),
    );
  }

  function activate(at) {
    active = at;
    redraw();
  }

  function onKey(event) {
    if (event.target !== element || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(element.clientHeight / height) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in moves) {
      active = Math.min(rows.length - 1, Math.max(0, active + moves[event.key]));
      const headHeight = head.offsetHeight;
      const [above, below] = [active * height, (active + 1) * height + headHeight - element.clientHeight];
      element.scrollTop = Math.min(above, Math.max(below, element.scrollTop));
      redraw();
    } else if ((event.key === "Enter" || event.key === " ") && rows[active]?.heading) onFold?.(rows[active]);
    else if (event.key === "Enter" && rows[active]) onOpen?.(rows[active]);
    else if (event.key === " " && rows[active]) onMark?.(rows[active]);
    else return;
    event.preventDefault();
  }

  function close() {
    cancelAnimationFrame(frame);
    sizes.disconnect();
  }

  /** Draw all visible rows again, because texts such as "5 min ago" are out of date. */
  function refresh() {
    drawn.clear();
    redraw();
  }

  return { element, set, redraw, refresh, close };
}
