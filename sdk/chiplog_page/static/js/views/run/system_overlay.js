// A system metric over the curves of a run, on an axis at the right: a line, or the median and the range of its devices.

import { combined, modelOf } from "../../charts/curve_model.js";
import { h, show } from "../../dom.js";
import { part } from "../../net/api.js";
import { inUnit, leastWidth, marksAt } from "../../text/sample_units.js";
import { View } from "../view.js";

const POINTS = 400;
const PAUSE_MS = 5000; // between two requests of a run that has not ended: agents sample every few seconds
const PAUSE_FACTOR = 10; // an answer that takes long is asked for less often
const LINES_MAX = 1; // several devices are a band, so that curves stay readable
const COLOUR = "--quiet";

/** The metric `name` of a run, "" for none; onChange() after one was chosen, onCurve() after its curve has arrived. */
export class SystemOverlay extends View {
  found = null; // names and marks
  curve = null;
  asked = new AbortController(); // ends the request for a curve

  constructor(run, name, { onChange, onCurve }) {
    super();
    Object.assign(this, { run, name, onChange, onCurve });
    this.path = `runs/${part(run)}/system`;
    this.select = h("select", {
      "aria-label": "system metric",
      onpointerdown: () => this.loadNames(),
      onfocus: () => this.loadNames(),
      onchange: () => {
        this.name = this.select.value;
        this.curve = null;
        this.onChange();
      },
    });
    this.why = h("span", { class: "quiet", role: "status" }); // nothing is drawn
    this.element = h("span", { class: "zoom" }, this.select, this.why);
    this.drawNames();
  }

  close() {
    super.close();
    this.asked.abort();
  }

  drawNames() {
    const names = [...(this.found?.names ?? [])];
    if (this.name && !names.some(({ name }) => name === this.name)) names.unshift({ name: this.name, title: this.name });
    const option = (value, text) => h("option", { value, selected: value === this.name }, text);
    const none = this.found && !names.length ? "no system metric was sampled" : "add system metric";
    show(
      this.select,
      option("", this.name ? "no system metric" : none),
      names.map(({ name, title }) => option(name, title)),
    );
  }

  /** Ask once for the names, and for the marks; again while there is no name. */
  loadNames() {
    this.naming ??= this.ask(this.path).then(
      (found) => {
        this.found = found;
        if (!found.names.length) this.naming = null; // the first sample may come
        this.drawNames();
      },
      (error) => {
        this.naming = null; // the next use tries again
        this.fail(error);
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
      [this.curve] = await this.ask(`${this.path}/curves`, query, { signal });
      this.notBefore = performance.now() + Math.max(PAUSE_MS, PAUSE_FACTOR * (performance.now() - began));
      this.onCurve();
    } catch (error) {
      this.fail(error, `${this.name}: `);
    }
  }

  /** Ask again if that was long ago. */
  refresh(zoom, labels) {
    if (this.name && performance.now() > this.notBefore) this.load(zoom, labels);
  }

  /**
   * Return a chart's model with the metric in it. Other axes than "step", "time" and "relative" have no place for it.
   * @param {Array<{name: string, startMs: number}>} runs those of the chart; the metric is of the first one
   */
  over(model, runs) {
    const [{ name: runName, startMs }] = runs;
    const isKnown = ["step", "time", "relative"].includes(model.kind);
    const hasCurve = Boolean(this.name && this.curve?.step.length);
    if (!this.name || (isKnown && !this.curve)) this.why.textContent = "";
    else
      this.why.textContent = !isKnown
        ? "is drawn over steps and times only"
        : hasCurve
          ? ""
          : "has no sample in these steps";
    if (!hasCurve || !isKnown) return model;
    const { title, scaled } = inUnit(this.curve);
    const tables = [{ run: this.run, name: runName, curve: scaled, startMs }];
    const other = modelOf(tables, { x: model.kind, isLog: false, isLogX: model.isLogX, weight: 0, range: null }).model;
    const of = this.curve.n_labels > 1 ? `, median of ${this.curve.n_labels}` : "";
    const name = `${runs.length > 1 ? `${runName} ` : ""}${title}${of}, right axis`;
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
