// A system metric over the curves of a run, on an axis at the right: a line, or the median and the range of its devices.

import { ask, part } from "../../api.js";
import { combined, modelOf } from "../../curve_model.js";
import { h, notice, show } from "../../dom.js";
import { inUnit, leastWidth, marksAt } from "../../sample_units.js";

const POINTS = 400;
const PAUSE_MS = 5000; // between two requests while the run goes on: agents sample every few seconds
const PAUSE_FACTOR = 10; // an answer that takes long is asked for less often
const LINES_MAX = 1; // several devices are a band, so that curves stay readable
const COLOUR = "--quiet";

/** The metric `name` of a run, "" for none; onChange() after one was chosen, onCurve() after its curve has arrived. */
export class SystemOverlay {
  constructor(run, name, { onChange, onCurve }) {
    Object.assign(this, { run, name, onChange, onCurve });
    this.path = `runs/${part(run)}/system`;
    this.found = null; // names and marks
    this.curve = null;
    this.asked = new AbortController();
    this.element = h("select", {
      "aria-label": "system metric",
      onpointerdown: () => this.loadNames(),
      onfocus: () => this.loadNames(),
      onchange: () => {
        this.name = this.element.value;
        this.curve = null;
        this.onChange();
      },
    });
    this.drawNames();
  }

  close() {
    this.asked.abort();
  }

  drawNames() {
    const names = (this.found?.names ?? []).map(({ name }) => name);
    if (this.name && !names.includes(this.name)) names.unshift(this.name);
    const option = (value, text) => h("option", { value, selected: value === this.name }, text);
    const none = this.found && !names.length ? "no system metric was sampled" : "add system metric";
    show(
      this.element,
      option("", this.name ? "no system metric" : none),
      names.map((name) => option(name, name)),
    );
  }

  /** Ask once for the names, and for the marks. */
  loadNames() {
    this.naming ??= ask(this.path).then(
      (found) => {
        this.found = found;
        this.drawNames();
      },
      (error) => {
        this.naming = null; // the next use tries again
        notice(error.message, true);
      },
    );
    return this.naming;
  }

  /** Ask for the curve between two steps, or of all; labels: only their devices. */
  async load(zoom, labels) {
    this.asked.abort();
    if (!this.name) return;
    this.asked = new AbortController();
    const { signal } = this.asked;
    const began = performance.now();
    this.notBefore = Infinity; // until there is an answer
    await this.loadNames();
    if (signal.aborted) return;
    this.notBefore = began + PAUSE_MS;
    if (!this.found) return;
    this.labels = new Set(labels);
    const isChosen = this.labels.size ? ({ label }) => this.labels.has(label) : null;
    const width = leastWidth(this.found, this.name, { isByStep: true, linesMax: LINES_MAX, isChosen });
    const query = {
      name: this.name,
      x: "step",
      first: zoom?.[0],
      last: zoom?.[1],
      points: POINTS,
      width,
      lines: LINES_MAX,
      label: labels,
    };
    try {
      [this.curve] = await ask(`${this.path}/curves`, query, { signal });
      this.notBefore = performance.now() + Math.max(PAUSE_MS, PAUSE_FACTOR * (performance.now() - began));
      this.onCurve();
    } catch (error) {
      if (error.name !== "AbortError") notice(`${this.name}: ${error.message}`, true);
    }
  }

  /** Ask again if that was long ago. */
  refresh(zoom, labels) {
    if (this.name && performance.now() > this.notBefore) this.load(zoom, labels);
  }

  /** Return a chart's model with the metric in it. x: "step", "time" or "relative"; other axes have no place for it. */
  over(model, startMs) {
    if (!this.name || !this.curve?.step.length || !["step", "time", "relative"].includes(model.kind)) return model;
    const { unit, scaled } = inUnit(this.curve);
    const runs = [{ run: this.run, name: this.run, curve: scaled, startMs }];
    const other = modelOf(runs, { x: model.kind, isLog: false, weight: 0, range: null }).model;
    const of = this.curve.n_labels > 1 ? `, median of ${this.curve.n_labels}` : "";
    const name = `${this.name}${unit ? ` (${unit})` : ""}${of}, right axis`;
    const lines = other.lines.map((line) => {
      const bounds = { isOnRight: true, id: null, tail: null, colour: COLOUR, dash: null, isSilent: line.isThin };
      return { ...line, ...bounds, name };
    });
    const fills = other.fills.map(([upper, lower]) => [upper, lower, COLOUR]);
    return combined(model, { ...other, lines, fills });
  }

  /** Return throttling and events of the GPUs, if the metric is one of GPUs. */
  marks(x, startMs) {
    if (!this.name.startsWith("hw.") || !this.found) return [];
    const isChosen = ({ label }) => !this.labels?.size || this.labels.has(label);
    return marksAt(this.found.marks.filter(isChosen), x, startMs);
  }
}
