// A panel of the Curves tab: the curve of one metric with its notes, its legend and its downloads.

import { Chart } from "../../charts/chart.js";
import { holesOf, isNumber, merge, modelOf, placesOf, rowsOf } from "../../charts/curve_model.js";
import { h, show } from "../../dom.js";
import { setParameters } from "../../net/address.js";
import { csvOf, save } from "../../net/download.js";
import { countText, durationText, wholeText } from "../../text/texts.js";

const POINTS = 400; // of a panel of usual width, and for each further so many pixels; pages that show the same ask the same
const POINTS_MAX = 2000; // a bound of the server
const VALUES_MAX = 2000; // a curve has buckets from so many values of a label on: a bound of the server
const FAR_BUCKETS = 64; // a label that is further behind, or has stopped logging a key, would make each answer long
export const FAR_PAUSE_MS = 10_000; // between two answers that are so long
const BUCKETS_ALIGNED = 8; // pages that show the same then ask the same, and share the answer
export const X_NAMES = { step: "step", time: "wall time", relative: "time since the start" };

/** Return the first step of the bucket that a step is in. */
function startOf(step, width) {
  return Math.floor(step / width) * width;
}

/** Return notes about labels that lack values which others have: lines bridge them. */
function holeNotes(curve, where) {
  const holes = holesOf(curve);
  if (!holes.length) return [];
  const places = curve.width > 1 ? "points" : "steps";
  const texts = holes.map(({ label, n, of }) => `${label} has no value for ${wholeText(n)} of ${wholeText(of)} ${places}`);
  const more = holes.length > 1 ? `, and ${countText(holes.length - 1, "other label")} for some` : "";
  const isLost = holes.some(({ n, of }) => 2 * n < of); // else it logs less often
  return [h("span", { class: isLost ? "warn" : "quiet", title: texts.join("; ") }, `${where}${texts[0]}${more}`)];
}

/** One metric of the runs that a view shows. The view loads and zooms all panels together. */
export class Panel {
  constructor(view, key) {
    this.view = view;
    this.key = key;
    this.asked = -1;
    this.askedPoints = 0;
    this.loaded = -1;
    this.isVisible = false;
    this.isStale = false;
    this.hasFailed = false;
    this.curves = [];
    this.times = null; // the part of the time that is shown of metrics with one step: [least, most]; null: all
    this.farAt = []; // when all of each curve was asked for, from the label on that is furthest behind
    this.box = h("div", { class: "curve-box" });
    this.legend = h("div", { class: "curve-legend" });
    this.notes = h("p", { class: "curve-notes" }, h("span", { class: "quiet" }, "Loading…"));
    this.state = h("p", { class: "curve-state quiet", hidden: true });
    this.wide = h("button", { class: "bare", onclick: () => this.widen(), "aria-pressed": String(this.isWide) }, "Wide");
    this.element = h(
      "section",
      { class: `panel curve${this.isWide ? " wide" : ""}`, "data-key": key },
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

  /** Return true if it was not asked for since, or is wider now and has buckets. */
  needs(version) {
    return this.asked !== version || (this.askedPoints < this.points && this.curves.some(({ width }) => width > 1));
  }

  isOnScreen() {
    const { top, bottom } = this.element.getBoundingClientRect();
    return bottom > 0 && top < innerHeight;
  }

  get isWide() {
    return this.view.wide.has(this.key);
  }

  get points() {
    return Math.min(POINTS_MAX, Math.max(1, Math.floor(this.element.clientWidth / POINTS)) * POINTS);
  }

  widen() {
    const { wide } = this.view;
    if (!wide.delete(this.key)) wide.add(this.key);
    setParameters({ wide: [...wide] });
    this.element.classList.toggle("wide", this.isWide);
    this.wide.setAttribute("aria-pressed", String(this.isWide));
    this.again();
  }

  setCurves(curves) {
    this.curves = curves;
    this.farAt = curves.map(() => performance.now());
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

  /**
   * Return the first step from which a curve may have changed; null if it cannot have, or is not on the screen.
   *
   * Labels append: what is new follows the last step of the running label that was furthest behind in the last answer.
   * If that is far back, most answers are of the end of the curve only. `append` asks for all again where this does not
   * hold: after values of a label that is new or has ended, and when a label begins again at an earlier step. Values that
   * are logged for earlier steps in any other order are there once the run has ended, when the view asks for all curves
   * again.
   */
  from(at) {
    const curve = this.curves[at];
    const { zoom } = this.view;
    if (!curve.step.length) {
      if (curve.kind !== "none") return zoom?.[0] ?? null; // the run may have reached these steps now
      this.asked = -1; // its first value may be there now
      return null;
    }
    const { width, least_running_step: late } = curve;
    const last = curve.step.at(-1);
    const fromStep = (step) => {
      const from = startOf(step, BUCKETS_ALIGNED * width);
      return zoom ? Math.max(from, zoom[0]) : from;
    };
    const [end, from] = [fromStep(last), fromStep(Math.min(last, late ?? last))];
    if (zoom && from > zoom[1]) return null;
    if (end - from <= FAR_BUCKETS * width) return from;
    const now = performance.now();
    if (now - this.farAt[at] < FAR_PAUSE_MS) {
      this.view.updateFar();
      return end;
    }
    this.farAt[at] = now;
    return from;
  }

  append(at, part, from) {
    const curve = this.curves[at];
    const merged = merge(curve, part, startOf(from, curve.width));
    const isOther = part.n_labels !== curve.n_labels || part.n_values_ended !== curve.n_values_ended;
    const isBack = part.least_running_step < curve.least_running_step;
    const hasOtherX = part.x_name !== curve.x_name; // the step metric was defined in the meantime
    // As values, or as buckets, of which one at each end may be cut.
    const isFull = curve.width === 1 && part.most_values >= VALUES_MAX && part.last_step - part.first_step >= VALUES_MAX;
    const isTooFine = !this.view.zoom && (curve.width > 1 ? merged?.step.length > this.askedPoints + 1 : isFull);
    if (!merged || isOther || isBack || hasOtherX || isTooFine) {
      this.asked = -1;
      return;
    }
    const { least_running_step: late } = curve;
    const hasLeftOut = late !== null && Math.max(late, this.view.zoom?.[0] ?? late) < from;
    if (hasLeftOut) merged.least_running_step = late; // what follows it is asked for later
    this.curves[at] = merged;
    if (hasLeftOut && part.least_running_step >= from) {
      this.farAt[at] = -Infinity; // the label has caught up: its values in between are asked for at once
      this.view.live.changed();
    } else {
      this.draw();
    }
  }

  /**
   * Return {kind, name} of x; only a metric has a name. As it was defined, where the runs agree and the metric has values
   * at the same steps, else the step; then `lacks` is the metric without values. In place of a step that all values of a
   * run have it is the time; then `still` is that run.
   */
  axis() {
    const { x } = this.view;
    if (x.startsWith("=")) return { kind: "value", name: x.slice(1) };
    if (x && x !== "step") return { kind: x };
    const curves = this.curves.filter(({ step }) => step.length);
    const [name, ...others] = new Set(curves.map(({ step_metric: metric }) => metric));
    const isDefined = !x && name && !others.length;
    if (isDefined && curves.some((curve) => curve.x?.some(isNumber))) return { kind: "value", name, isDefined };
    const still = this.shown().find(({ curve }) => curve?.is_one_step && curve.step.length);
    return { kind: still ? "relative" : "step", still, lacks: isDefined ? name : undefined };
  }

  /** Return true if a part of x is a part of the time: no part of the steps. */
  get isOverTime() {
    return ["time", "relative"].includes(this.axis().kind) && this.curves.some(({ is_one_step: isOne }) => isOne);
  }

  /** Draw what is known; a panel that is not on the screen is drawn when it comes there. */
  draw() {
    if (!this.curves.length) return;
    this.isStale = !this.isVisible;
    if (this.isStale) return;
    const { view } = this;
    const runs = this.shown();
    const { kind, name } = this.axis();
    const isOnTheWay = ({ step, x_name: known }) => name && step.length && known !== name;
    if (this.curves.some(isOnTheWay)) return;
    const { isLog, weight, zoom: range, hidden } = view;
    const isLogX = view.isLogX && kind !== "time";
    const { model, nHidden, nLeft } = modelOf(runs, { x: kind, isLog, isLogX, weight, range, hidden });
    if (this.isOverTime) model.range = this.times;
    this.drawNotes(runs, nHidden, nLeft);
    const hasNumbers = model.lines.some(({ isHidden, values }) => isHidden || values.some(isNumber));
    this.state.hidden = hasNumbers;
    this.box.classList.toggle("blank", !hasNumbers);
    this.legend.hidden = !hasNumbers;
    if (!hasNumbers) {
      this.state.textContent = this.why(nHidden, nLeft);
      return;
    }
    this.chart ??= new Chart(this.box, this.legend, {
      onZoom: (least, most) => this.zoom(least, most),
      onPan: (least, most, isOver) => (this.chart.model.kind === "step" ? view.pan(this, least, most, isOver) : null),
      onReset: () => {
        this.times = null;
        view.setZoom(null);
      },
      onPick: (at) => view.pick(this.placeOf(this.chart.model.x[at])),
      onToggle: (id, isOthers) => view.toggle(id, isOthers && this.chart.model.lines.map((line) => line.id)),
      label: `Curve of ${this.key}`,
    });
    const { startMs } = view.runs[0];
    const marks = [...this.marks(kind), ...view.system.marks(kind, startMs)];
    this.chart.draw({ ...view.system.over(model, view.runs), xName: name, marks });
  }

  /** Return the step and the time at a value of the chart's x, of the first run that has one from there on. */
  placeOf(value) {
    for (const { curve, startMs } of this.shown()) {
      if (!curve?.step.length) continue;
      const { x, order } = placesOf(curve, this.chart.model.kind, startMs);
      const place = order[x.findIndex((one) => one >= value)];
      if (place !== undefined) return { step: curve.step[place], ms: curve.ts[place] };
    }
    return null;
  }

  /** Return the place that was picked, as a line in the chart. */
  marks(kind) {
    const { picked, runs } = this.view;
    if (!picked) return [];
    const places = { step: picked.step, time: picked.ms / 1000, relative: (picked.ms - runs[0].startMs) / 1000 };
    return kind in places ? [{ x: places[kind] }] : [];
  }

  shown() {
    return this.view.runs.map((run, at) => ({ ...run, curve: this.curves[at] }));
  }

  why(nHidden, nLeft) {
    const [curve] = this.curves;
    const { zoom } = this.view;
    const { name } = this.axis();
    if (nHidden) return "No value is above 0, so a logarithmic axis shows none.";
    if (nLeft) return "No x is above 0, so a logarithmic axis shows no value.";
    if (!curve || curve.kind === "none") return this.view.labels ? "The chosen labels did not log this metric." : "No value yet.";
    if (curve.n_nan && curve.n_nan === curve.n_values) return curve.n_values === 1 ? "The only value is NaN." : `All ${wholeText(curve.n_values)} values are NaN.`;
    if (zoom) return `No number between the steps ${wholeText(zoom[0])} and ${wholeText(zoom[1])}.`;
    return name ? `No value of ${name} at the same steps.` : "No number.";
  }

  drawNotes(runs, nHidden, nLeft) {
    const notes = [];
    const axis = this.axis();
    for (const { name, curve } of runs) {
      if (!curve || curve.kind === "none") continue;
      const where = runs.length > 1 ? `${name}: ` : "";
      const { n_labels: nLabels, n_peers: nPeers, n_behind: nBehind, n_silent: nSilent, behind, width } = curve;
      if (nBehind) {
        const verb = nBehind === 1 ? "has" : "have";
        const text = `${where}${wholeText(nBehind)} of ${countText(curve.n_expected, "label")} ${verb} not sent step`;
        const last = nSilent ? `${wholeText(nSilent)} never logged it` : `the last one is at step ${wholeText(curve.least_step)}`;
        const title = `${behind.join(", ")}${nBehind > behind.length ? ", …" : ""}; ${last}`;
        notes.push(h("span", { class: "warn", title }, `${text} ${wholeText(curve.newest_step)} (${behind[0]}${nBehind > 1 ? ", …" : ""})`));
      }
      if (nLabels < nPeers && !nSilent) notes.push(`${where}${wholeText(nLabels)} of ${countText(nPeers, "label")} ${nLabels === 1 ? "logs" : "log"} this`);
      else if (curve.kind === "band" && runs.length === 1 && !nBehind) notes.push(countText(nLabels, "label"));
      if (!curve.is_one_step) notes.push(...holeNotes(curve, where)); // labels share no times
      if (curve.n_nan) notes.push(`${where}${wholeText(curve.n_nan)} NaN`);
      if (curve.n_infinite) notes.push(`${where}${countText(curve.n_infinite, "point")} with infinities`);
      if (width > 1 && runs.length === 1) notes.push(`each point covers ${wholeText(width)} steps`);
      if (curve.width_s && runs.length === 1) notes.push(`each point covers ${durationText(curve.width_s)}`);
    }
    if (axis.isDefined) notes.push(`x: ${axis.name}`);
    if (axis.still) notes.push(`x: time (all steps${runs.length > 1 ? ` of ${axis.still.name}` : ""} are ${wholeText(axis.still.curve.first_step)})`);
    else if (axis.lacks) notes.push(`x: step, as ${axis.lacks} has no value at these steps`);
    if (nHidden) notes.push(`${countText(nHidden, "value")} ≤ 0 not shown`);
    if (nLeft) notes.push(`${countText(nLeft, "value")} at x ≤ 0 not shown`);
    show(this.notes, notes.map((note, at) => [at ? " · " : null, typeof note === "string" ? h("span", { class: "quiet" }, note) : note]));
  }

  /** Zoom to a part of x: the steps that are in it. */
  zoom(least, most) {
    const { view } = this;
    const { kind } = this.chart.model;
    if (kind === "step") {
      view.setZoom(Math.ceil(least), Math.floor(most));
      return;
    }
    if (this.isOverTime) {
      this.times = [least, most];
      this.draw();
      return;
    }
    const steps = [];
    view.runs.forEach(({ startMs }, number) => {
      const curve = this.curves[number];
      if (!curve?.step.length) return;
      const { x, order } = placesOf(curve, kind, startMs);
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
