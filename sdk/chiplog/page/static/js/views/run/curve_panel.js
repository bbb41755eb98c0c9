// A panel of the Curves tab: the curve of one metric with its notes, its legend and its downloads.

import { Chart } from "../../chart.js";
import { merge, modelOf, placesOf, rowsOf } from "../../curve_model.js";
import { h, show } from "../../dom.js";
import { csvOf, save } from "../../download.js";
import { countText, valueText, wholeText } from "../../texts.js";

const POINTS = 400;
const POINTS_WIDE = 1000; // a bound of the server
const BUCKETS_BACK_MAX = 32; // how far back a live request looks for labels that are late
const BUCKETS_ALIGNED = 8; // pages that show the same then ask the same, and share the answer
export const X_NAMES = { step: "step", time: "wall time", relative: "time since the start" };

/** One metric of the runs that a view shows. The view loads and zooms all panels together. */
export class Panel {
  constructor(view, key) {
    this.view = view;
    this.key = key;
    this.points = POINTS;
    this.asked = -1;
    this.loaded = -1;
    this.isVisible = false;
    this.isStale = false;
    this.hasFailed = false;
    this.curves = [];
    this.box = h("div", { class: "curve-box" });
    this.legend = h("div", { class: "curve-legend" });
    this.notes = h("p", { class: "curve-notes" }, h("span", { class: "quiet" }, "Loading…"));
    this.state = h("p", { class: "curve-state quiet", hidden: true });
    this.wide = h("button", { class: "bare", onclick: () => this.widen(), "aria-pressed": "false" }, "Wide");
    this.element = h(
      "section",
      { class: "panel curve", "data-key": key },
      h(
        "header",
        {},
        h("h3", { class: "clip", title: key }, key),
        this.wide,
        h("button", { class: "bare", onclick: () => this.savePng(), "aria-label": `${key} as PNG` }, "PNG"),
        h("button", { class: "bare", onclick: () => this.saveCsv(), "aria-label": `${key} as CSV` }, "CSV"),
      ),
      this.notes,
      h("div", { class: "curve-frame" }, this.box, this.state),
      this.legend,
    );
    this.chart = null;
  }

  close() {
    this.view.seen.unobserve(this.element);
    this.chart?.close();
  }

  needs(version) {
    return this.asked !== version;
  }

  isOnScreen() {
    const { top, bottom } = this.element.getBoundingClientRect();
    return bottom > 0 && top < innerHeight;
  }

  widen() {
    const isWide = this.element.classList.toggle("wide");
    this.wide.setAttribute("aria-pressed", String(isWide));
    this.points = isWide ? POINTS_WIDE : POINTS;
    this.asked = -1;
    this.view.load();
  }

  setCurves(curves) {
    this.curves = curves;
    this.loaded = this.asked;
    this.draw();
  }

  fail(message) {
    this.loaded = -1;
    this.hasFailed = true;
    show(this.notes, h("span", { class: "error" }, message), " ", h("button", { onclick: () => this.again() }, "Try again"));
  }

  again() {
    this.asked = -1;
    this.view.load();
  }

  /** Return the first step from which a curve may have changed; null if it cannot have, or is not on the screen. */
  from(at) {
    const curve = this.curves[at];
    if (!curve.step.length) {
      if (curve.kind !== "none") return this.view.zoom?.[0] ?? null; // the run may have reached these steps now
      this.asked = -1; // its first value may be there now
      return null;
    }
    const { width, step, least_step: least } = curve;
    const last = step[step.length - 1];
    const floor = last - BUCKETS_BACK_MAX * width;
    const late = Math.max(Math.min(last, least), floor);
    const span = BUCKETS_ALIGNED * width;
    const from = Math.max(late - (((late % span) + span) % span), step[0]);
    return this.view.zoom && from > this.view.zoom[1] ? null : from;
  }

  append(at, curve, from) {
    const merged = merge(this.curves[at], curve, from);
    if (!merged || (merged.step.length > 2 * this.points && !this.view.zoom)) {
      this.asked = -1; // other buckets: all of them again
      return;
    }
    this.curves[at] = merged;
    this.draw();
  }

  /** Draw what is known; a panel that is not on the screen is drawn when it comes there. */
  draw() {
    if (!this.curves.length) return;
    this.isStale = !this.isVisible;
    if (this.isStale) return;
    const { view } = this;
    const runs = this.shown();
    const { x, isLog, weight, zoom: range, hidden } = view;
    const { model, nHidden } = modelOf(runs, { x, isLog, weight, range, hidden });
    this.drawNotes(runs, nHidden);
    const isNumber = (value) => value !== null && value !== undefined;
    const hasNumbers = model.lines.some(({ isHidden, values }) => isHidden || values.some(isNumber));
    this.state.hidden = hasNumbers;
    this.box.classList.toggle("blank", !hasNumbers);
    this.legend.hidden = !hasNumbers;
    if (!hasNumbers) {
      this.state.textContent = this.why(nHidden);
      return;
    }
    this.chart ??= new Chart(this.box, this.legend, {
      onZoom: (least, most) => this.zoom(least, most),
      onPan: (least, most, isOver) => (view.x === "step" ? view.pan(this, least, most, isOver) : null),
      onReset: () => view.setZoom(null),
      onPick: (at) => view.pick(this.placeOf(this.chart.model.x[at])),
      onToggle: (id, isOthers) => view.toggle(id, isOthers && this.chart.model.lines.map((line) => line.id)),
      label: `Curve of ${this.key}`,
    });
    const { startMs } = view.runs[0];
    const marks = [...this.marks(), ...view.system.marks(view.x, startMs)];
    this.chart.draw({ ...view.system.over(model, view.runs), marks });
  }

  /** Return the step and the time at a value of the chart's x, of the first run that has one from there on. */
  placeOf(value) {
    for (const { curve, startMs } of this.shown()) {
      if (!curve?.step.length) continue;
      const { x, order } = placesOf(curve, this.view.x, startMs);
      const place = order[x.findIndex((one) => one >= value)];
      if (place !== undefined) return { step: curve.step[place], ms: curve.ts[place] };
    }
    return null;
  }

  /** Return the place that was picked, as a line in the chart. */
  marks() {
    const { picked, x, runs } = this.view;
    if (!picked) return [];
    const places = { step: picked.step, time: picked.ms / 1000, relative: (picked.ms - runs[0].startMs) / 1000 };
    return x in places ? [{ x: places[x] }] : [];
  }

  shown() {
    return this.view.runs.map((run, at) => ({ ...run, curve: this.curves[at] }));
  }

  why(nHidden) {
    const [curve] = this.curves;
    const { zoom, x } = this.view;
    if (nHidden) return "No value is above 0: a logarithmic axis cannot show them.";
    if (!curve || curve.kind === "none") return this.view.chosenLabels() ? "The chosen labels have no value of it." : "No value yet.";
    if (curve.n_nan && curve.n_nan === curve.n_values) return `All ${wholeText(curve.n_values)} values are NaN.`;
    if (zoom) return `No number between the steps ${wholeText(zoom[0])} and ${wholeText(zoom[1])}.`;
    return x in X_NAMES ? "No number." : `No value of ${x} at the same steps.`;
  }

  drawNotes(runs, nHidden) {
    const notes = [];
    for (const { name, curve } of runs) {
      if (!curve || curve.kind === "none") continue;
      const where = runs.length > 1 ? `${name}: ` : "";
      if (curve.n_behind) {
        const verb = curve.n_behind === 1 ? "has" : "have";
        const text = `${where}${wholeText(curve.n_behind)} of ${countText(curve.n_labels, "label")} ${verb} not sent step`;
        const more = curve.n_behind > curve.behind.length ? ", …" : "";
        const title = `${curve.behind.join(", ")}${more}; the last one is at step ${wholeText(curve.least_step)}`;
        notes.push(h("span", { class: "warn", title }, `${text} ${wholeText(curve.newest_step)} (${curve.behind[0]}${curve.n_behind > 1 ? ", …" : ""})`));
      }
      if (curve.kind === "band" && runs.length === 1 && !curve.n_behind) notes.push(countText(curve.n_labels, "label"));
      if (curve.n_nan) notes.push(`${where}${wholeText(curve.n_nan)} NaN`);
      if (curve.n_infinite) notes.push(`${where}${countText(curve.n_infinite, "point")} with infinities`);
      if (curve.width > 1 && runs.length === 1) notes.push(`each point covers ${wholeText(curve.width)} steps`);
    }
    if (nHidden) notes.push(`${countText(nHidden, "value")} not above 0`);
    show(this.notes, notes.map((note, at) => [at ? " · " : null, typeof note === "string" ? h("span", { class: "quiet" }, note) : note]));
  }

  /** Zoom to a part of x: the steps that are in it. */
  zoom(least, most) {
    const { view } = this;
    if (view.x === "step") {
      view.setZoom(Math.ceil(least), Math.floor(most));
      return;
    }
    const steps = [];
    view.runs.forEach(({ startMs }, number) => {
      const curve = this.curves[number];
      if (!curve?.step.length) return;
      const { x, order } = placesOf(curve, view.x, startMs);
      x.forEach((value, at) => {
        if (value >= least && value <= most) steps.push(curve.step[order[at]], curve.step[order[at]] + curve.width - 1);
      });
    });
    if (!steps.length) return;
    view.setZoom(steps.reduce((a, b) => Math.min(a, b)), steps.reduce((a, b) => Math.max(a, b)));
  }

  savePng() {
    if (!this.chart?.plot) return;
    this.chart.picture(this.key).toBlob((blob) => save(blob, this.fileName("png")));
  }

  saveCsv() {
    const runs = this.view.runs.map(({ run }, at) => ({ run, curve: this.curves[at] })).filter(({ curve }) => curve);
    save(new Blob([csvOf(rowsOf(runs))], { type: "text/csv" }), this.fileName("csv"));
  }

  fileName(type) {
    const [{ run }, ...others] = this.view.runs;
    const name = [run, others.length ? `and_${others.length}_more` : "", this.key].filter(Boolean).join("-");
    return `${name.replaceAll(/[^\w.-]+/g, "_").slice(0, 150)}.${type}`;
  }
}
