// A picture on a canvas, with a line that describes the place under the pointer, and a legend. It is painted without the
// cursor, so that a cursor costs one copy.

import { h } from "../dom.js";
import { onTheme } from "../theme.js";
import { dragRange } from "./drag.js";

const TEXT_PX = 11;
const NAME_CHARS = 13; // of a name at the left

/**
 * A subclass has
 *   hint: what a reader may do; isEmpty: whether there is nothing to paint; height: of the whole, in pixels of CSS
 *   placeAt(x, y): the place there, null for none; describe(place): in words; moved(event): the place after an arrow key
 *   choose(place): after a click or Enter; span(from, to), or box({x, y}): after a drag, see `dragRange`
 *   paint(context, style, ratio): the picture in pixels of CSS; paintMarks(context, style): what is above it
 *   drawLegend()
 */
export class Picture {
  data = null;
  cursor = null; // the place under the pointer, or where keys have moved it

  /** left, top, bottom: room for the axes, in pixels of CSS. */
  constructor({ label, left, top = 0, bottom = 18 }) {
    Object.assign(this, { left, top, bottom });
    const onkeydown = (event) => this.onKey(event);
    this.canvas = h("canvas", { tabindex: 0, class: "heat", role: "img", "aria-label": label, onkeydown });
    this.line = h("p", { class: "quiet heat-line", "aria-live": "polite" });
    this.legend = h("span", { class: "heat-legend quiet small" });
    this.painted = document.createElement("canvas");
    const brush = dragRange(this.canvas, {
      left,
      height: () => this.canvas.clientHeight - bottom,
      cellAt: (x, y) => this.placeAt(x, y),
      onPoint: (place) => this.point(place),
      onClick: (place) => this.choose(place),
      onSpan: (from, to) => this.span(from, to),
      onBox: this.box && ((box) => this.box(box)),
    });
    this.element = h(
      "div",
      { class: "heat-box" },
      h("div", { class: "heat-canvas" }, this.canvas, brush),
      h("div", { class: "bar" }, this.line, this.legend),
    );
    this.sizes = new ResizeObserver(() => this.repaint());
    this.sizes.observe(this.canvas);
    this.endTheme = onTheme(() => this.redraw());
  }

  close() {
    this.sizes.disconnect();
    this.endTheme();
  }

  /** Return the width of the picture without its axes. */
  get innerWidth() {
    return this.canvas.clientWidth - this.left;
  }

  get innerHeight() {
    return this.canvas.clientHeight - this.top - this.bottom;
  }

  point(place) {
    this.cursor = place;
    this.drawLine();
    this.paintCursor();
  }

  drawLine() {
    const text = this.cursor ? this.describe(this.cursor) : this.data && !this.isEmpty ? this.hint : "";
    if (this.line.textContent !== text) this.line.textContent = text; // the same again would be read out again
  }

  onKey(event) {
    if (!this.data || this.isEmpty) return;
    if (event.key === "Enter" && this.cursor) this.choose(this.cursor);
    if (!/^Arrow(Left|Right|Up|Down)$/.test(event.key)) return;
    event.preventDefault();
    this.point(this.moved(event));
  }

  /** Draw all again: `data` or the theme is another one. */
  redraw() {
    if (!this.data) return;
    this.drawLine();
    this.drawLegend();
    this.repaint();
  }

  repaint() {
    if (!this.data) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.style.height = `${this.height}px`;
    for (const size of ["Width", "Height"]) {
      const pixels = Math.round(this.canvas[`client${size}`] * ratio);
      this.canvas[size.toLowerCase()] = this.painted[size.toLowerCase()] = pixels;
    }
    if (this.innerWidth <= 0 || this.isEmpty) return;
    const context = this.painted.getContext("2d");
    context.scale(ratio, ratio);
    this.paint(context, getComputedStyle(this.element), ratio);
    this.paintCursor();
  }

  paintCursor() {
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (!this.data || this.isEmpty || !this.painted.width) return;
    context.drawImage(this.painted, 0, 0);
    const ratio = devicePixelRatio || 1;
    context.scale(ratio, ratio);
    this.paintMarks(context, getComputedStyle(this.element));
  }
}

/** Prepare a context for texts. */
export function writeWith(context, style, { align, baseline, isBold = false }) {
  context.fillStyle = style.color;
  context.font = `${isBold ? "bold " : ""}${TEXT_PX}px ${style.fontFamily}`;
  context.textAlign = align;
  context.textBaseline = baseline;
}

/** Return a name that has room at the left. */
export function shortName(name) {
  return name.length > NAME_CHARS ? `${name.slice(0, NAME_CHARS - 1)}…` : name;
}

/** Return an entry of a legend. colour: a class, or [red, green, blue]. */
export function swatch(colour, ...words) {
  const element = h("span", { class: `heat-swatch ${typeof colour === "string" ? colour : ""}` });
  if (typeof colour !== "string") element.style.background = `rgb(${colour.join(" ")})`;
  return h("span", {}, element, " ", words);
}
