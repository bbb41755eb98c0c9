// GPUs, hosts and processes of a run over time or over steps, with throttling and events of GPUs as marks.

import { Chart } from "../../charts/chart.js";
import { modelOf } from "../../charts/curve_model.js";
import { h, show } from "../../dom.js";
import { quiet } from "../../elements.js";
import { setParameters, wholeOf } from "../../net/address.js";
import { agentActivity, hasGrown } from "../../net/live.js";
import { grid } from "../../tables/grid.js";
import { labelText, noLabelsText } from "../../text/labels.js";
import { inUnit, leastWidth, marksAt, sampleText } from "../../text/sample_units.js";
import { timeText, wholeText } from "../../text/texts.js";
import { NODES_MAX, deviceChooser } from "./device_chooser.js";
import { RunView } from "./run_view.js";

const PAUSE_MS = 5000; // between two requests for what is new: agents sample every few seconds
const POINTS = 400;
const NAMES_AT_ONCE = 6; // in one request
const LINES_MAX = 16; // of a panel; above that a band
const MARKS_SHOWN = 100; // in the list
const X_NAMES = { time: "wall time", step: "step", relative: "time since the start" };
const KINDS = [
  ["GPUs", ["hw."]],
  ["Hosts", ["system."]],
  ["Processes", ["process.", "cgroup."]],
];
const STEP_TEXT =
  "The step of a sample is the last one that the primary, or else the lowest rank, of its node had logged by then. " +
  "Samples before the first step are left out.";
const NO_SAMPLE =
  "No samples of GPUs, hosts or processes for this run yet. The agent records them unless sampling is turned off.";

export default class SystemTab extends RunView {
  static beginsWithOutline = true; // nothing here waits for the report of the run

  startMs = Date.parse(this.report.created_at);
  x = Object.hasOwn(X_NAMES, this.query.get("x")) ? this.query.get("x") : "time";
  zoom = zoomOf(this.query); // µs, or steps
  nodes = new Set(this.query.getAll("node").slice(0, NODES_MAX));
  devices = new Set(); // the labels that are chosen for all tabs
  panels = new Map(); // by name

  async start() {
    this.onLabels();
    this.followReports();
    this.found = await this.ask(`${this.path}/system`);
    this.drawAll();
    const concerns = agentActivity(() => this.report);
    this.live = this.follow(() => this.refresh(), { pauseMs: PAUSE_MS, isQuiet: true, concerns });
  }

  close() {
    super.close();
    for (const panel of this.panels.values()) panel.chart?.close();
  }

  /** Use the labels that are chosen, now and whenever they change. */
  onLabels() {
    const { labels, hasNoLabels: isNone } = this;
    if (isNone === this.isNone && String(labels ?? "") === String([...this.devices])) return; // chosen in this tab
    this.isNone = isNone;
    this.devices.clear();
    for (const label of labels ?? []) this.devices.add(label);
    if (!this.body) return;
    this.drawHead();
    this.reload();
  }

  onReport(before) {
    if (hasGrown(before, this.report)) this.live?.changed();
  }

  /** Draw the tab, once there is a sample. */
  drawAll() {
    if (!this.found.names.length) {
      show(this.element, h("p", { class: "empty quiet" }, NO_SAMPLE));
      return;
    }
    if (!this.found.steps && this.x === "step") this.x = "time";
    this.axis = h(
      "select",
      { "aria-label": "x axis", onchange: () => this.setX(this.axis.value) },
      Object.entries(X_NAMES).map(([value, text]) => {
        const isDisabled = value === "step" && !this.found.steps;
        return h("option", { value, selected: value === this.x, disabled: isDisabled }, `x: ${text}`);
      }),
    );
    this.range = h("span", { class: "quiet" });
    this.reset = h("button", { onclick: () => this.setZoom(null) });
    this.about = h("p", { class: "quiet small" }, STEP_TEXT);
    this.chooser = deviceChooser({ nodes: this.nodes, labels: this.devices, onChange: () => this.choose() });
    this.marks = h("details", { class: "panel" });
    this.none = h("p", { class: "empty" });
    this.body = h("div");
    const bar = h("div", { class: "bar" }, this.axis, this.range, this.reset);
    show(this.element, bar, this.about, this.chooser.element, this.marks, this.none, this.body);
    this.seen = this.observer((entries) => this.onSeen(entries));
    this.drawHead();
    this.drawPanels();
  }

  /** Return the first and the last time in µs, or the steps. */
  bounds() {
    if (this.zoom) return this.zoom;
    if (this.x === "step") return [this.found.steps.first_step, this.found.steps.last_step];
    const times = (name) => this.found.names.map((row) => Date.parse(row[name]) * 1000);
    return [Math.min(...times("first")), Math.max(...times("last")) + 1_000_000];
  }

  // -- controls --

  setX(x) {
    if ((x === "step") !== (this.x === "step")) this.zoom = null; // bounds of one are none of the other
    this.x = x;
    setParameters({ x: x === "time" ? null : x, first: this.zoom?.[0], last: this.zoom?.[1] });
    this.drawHead();
    this.reload();
  }

  setZoom(zoom) {
    this.zoom = zoom;
    setParameters({ first: zoom?.[0], last: zoom?.[1] });
    this.drawHead();
    this.reload();
  }

  /** Zoom to a part of an axis. */
  zoomTo(least, most) {
    if (this.x === "step") this.setZoom([Math.ceil(least), Math.max(Math.floor(most), Math.ceil(least))]);
    else {
      const start = this.x === "time" ? 0 : this.startMs * 1000;
      this.setZoom([Math.floor(start + least * 1e6), Math.ceil(start + most * 1e6)]);
    }
  }

  choose() {
    setParameters({ node: [...this.nodes] });
    if (String([...this.devices]) !== String(this.labels ?? "")) {
      this.isNone = false;
      setParameters({ labels: [...this.devices].map((label) => `=${label}`) });
      this.element.dispatchEvent(new Event("labels"));
    }
    this.drawHead();
    this.reload();
  }

  isChosen({ node, label }) {
    return (!this.nodes.size && !this.devices.size) || this.nodes.has(node) || this.devices.has(label);
  }

  drawHead() {
    const [first, last] = this.bounds();
    const time = (us) => timeText(new Date(us / 1000).toISOString());
    this.range.textContent =
      this.x === "step" ? `steps ${wholeText(first)} to ${wholeText(last)}` : `${time(first)} to ${time(last)}`;
    this.reset.hidden = !this.zoom;
    this.reset.textContent = this.x === "step" ? "All steps" : "All times";
    this.about.hidden = this.x !== "step";
    this.chooser.draw(this.found.labels);
    this.body.hidden = this.isNone && !this.nodes.size;
    this.none.hidden = !this.body.hidden;
    this.none.textContent = this.body.hidden ? noLabelsText(this.report) : "";
    const marks = this.found.marks.filter((mark) => this.isChosen(mark));
    const isAll = !this.nodes.size && !this.devices.size; // the server does not count those of a choice
    const nAll = isAll ? this.found.n_marks : marks.length;
    const ofAll = nAll > marks.length ? ` of ${wholeText(nAll)}` : "";
    // The newest first, events before throttling: a lost GPU is not below a hundred lines on a power cap.
    const isThrottling = (mark) => mark.kind === "throttled";
    const shown = marks.toReversed().sort((a, b) => isThrottling(a) - isThrottling(b)).slice(0, MARKS_SHOWN);
    this.marks.hidden = !marks.length;
    if (!this.hasShownErrors && marks.some(({ level }) => level === "error")) {
      this.hasShownErrors = this.marks.open = true; // once: a person may close it
    }
    show(
      this.marks,
      h("summary", {}, `GPU events and throttling: ${wholeText(marks.length)}${ofAll}`),
      h(
        "ul",
        {},
        shown.map((mark) => {
          const where = mark.step === null ? "" : `, step ${wholeText(mark.step)}`;
          const isNamed = mark.xid === null || mark.kind === "gpu.xid"; // whose message has the number
          const code = isNamed ? null : ` (XID ${mark.xid})`;
          return h(
            "li",
            {},
            `${timeText(mark.ts)}${where} `,
            h("strong", {}, labelText(mark.label) ?? mark.node),
            ` ${mark.message}`,
            code,
            isThrottling(mark) ? null : ` · ${mark.level}`,
          );
        }),
      ),
      marks.length > MARKS_SHOWN ? quiet(`The first ${MARKS_SHOWN}: events, then the newest throttling.`) : null,
    );
  }

  // -- panels --

  drawPanels() {
    const { names } = this.found;
    for (const { name, title } of names) {
      if (this.panels.has(name)) continue;
      const panel = { name, version: 0, isStale: true, isSeen: false, chart: null };
      panel.box = h("div", { class: "curve-box sampled" });
      panel.legend = h("div", { class: "curve-legend" }, h("span", { class: "quiet" }, "Loading…"));
      panel.title = h("h3", { class: "clip", title: name }, title);
      const raw = title === name ? null : h("span", { class: "quiet small clip" }, name);
      const attributes = { class: "panel", "aria-label": title, "data-name": name };
      panel.element = h("section", attributes, h("header", {}, panel.title, raw), panel.box, panel.legend);
      this.panels.set(name, panel);
    }
    const kindOf = (name) =>
      KINDS.find(([, starts]) => starts.some((start) => name.startsWith(start)))?.[0] ?? "Others";
    const groups = [...KINDS.map(([title]) => title), "Others"].map((title) => [
      title,
      names.filter(({ name, flat }) => flat === null && kindOf(name) === title),
    ]);
    show(
      this.body,
      groups
        .filter(([, names]) => names.length)
        .map(([title, names]) =>
          h(
            "section",
            { "aria-label": title },
            h("h2", {}, title),
            h("div", { class: "panels" }, names.map(({ name }) => this.panels.get(name).element)),
          ),
        ),
      flatTable(names.filter(({ flat }) => flat !== null)),
    );
    for (const panel of this.panels.values()) this.seen.observe(panel.element);
  }

  onSeen(entries) {
    for (const { target, isIntersecting } of entries) this.panels.get(target.dataset.name).isSeen = isIntersecting;
    this.load();
  }

  reload() {
    for (const panel of this.panels.values()) panel.isStale = true;
    this.load();
  }

  /** Ask for the curves that are visible and stale; return false if some of them failed. */
  async load() {
    if (this.body.hidden) return true;
    const chosen = [...this.panels.values()].filter((panel) => panel.isSeen && panel.isStale);
    for (const panel of chosen) {
      panel.isStale = false;
      panel.version += 1;
    }
    const [first, last] = this.bounds();
    const x = this.x === "step" ? "step" : null;
    const query = { x, first, last, points: POINTS, lines: LINES_MAX, node: [...this.nodes], label: [...this.devices] };
    const isChosen = this.nodes.size || this.devices.size ? (row) => this.isChosen(row) : null;
    const byWidth = new Map();
    for (const panel of chosen) {
      const width = leastWidth(this.found, panel.name, { isByStep: x !== null, linesMax: LINES_MAX, isChosen });
      byWidth.set(width, [...(byWidth.get(width) ?? []), panel]);
    }
    for (const [width, panels] of byWidth) {
      for (let at = 0; at < panels.length; at += NAMES_AT_ONCE) {
        await this.request(panels.slice(at, at + NAMES_AT_ONCE), { ...query, width });
      }
    }
    return !chosen.some(({ isStale }) => isStale);
  }

  async request(panels, query) {
    const versions = panels.map(({ version }) => version);
    const name = panels.map((panel) => panel.name);
    try {
      const curves = await this.ask(`${this.path}/system/curves`, { name, ...query });
      panels.forEach((panel, place) => panel.version === versions[place] && this.drawCurve(panel, curves[place]));
    } catch (error) {
      if (!this.isOpen) return;
      for (const panel of panels) {
        panel.legend.textContent = error.message;
        panel.isStale = true;
      }
      this.fail(error);
    }
  }

  drawCurve(panel, curve) {
    const { title, scaled } = inUnit(curve);
    panel.title.textContent = title + (curve.kind === "band" ? `, ${curve.n_labels} devices` : "");
    panel.box.hidden = curve.kind === "none";
    if (curve.kind === "none") {
      panel.legend.textContent = `No sample ${this.x === "step" ? "in these steps" : "in this time"}.`;
      return;
    }
    panel.chart ??= new Chart(panel.box, panel.legend, {
      onZoom: (least, most) => this.zoomTo(least, most),
      onReset: () => this.setZoom(null),
      label: `Curve of ${curve.title}`,
    });
    const runs = [{ name: this.run, curve: scaled, startMs: this.startMs, noun: "devices" }];
    const range = this.x === "step" ? this.zoom : null;
    const { model } = modelOf(runs, { x: this.x, isLog: false, weight: 0, range });
    panel.chart.draw({ ...model, noun: "devices", marks: panel.name.startsWith("hw.") ? this.marksOf() : [] });
  }

  marksOf() {
    return marksAt(this.found.marks.filter((mark) => this.isChosen(mark)), this.x, this.startMs);
  }

  // -- live --

  async refresh() {
    try {
      const before = this.found;
      const next = await this.ask(`${this.path}/system`);
      if (JSON.stringify(next) !== JSON.stringify(before)) {
        this.found = next;
        if (!this.body) {
          this.drawAll();
          return true;
        }
        this.drawHead();
        if (shapeOf(next) !== shapeOf(before)) this.drawPanels();
        for (const panel of this.panels.values()) panel.isStale = true;
      }
      return this.zoom ? true : await this.load(); // also what an earlier request has failed to get
    } catch (error) {
      return this.fail(error);
    }
  }
}

function zoomOf(query) {
  const bounds = [wholeOf(query.get("first")), wholeOf(query.get("last"))];
  return bounds.includes(null) ? null : bounds;
}

/** Return what decides which panels there are, and what is in the table below them. */
function shapeOf({ names }) {
  return JSON.stringify(names.map(({ name, flat, n_devices: n }) => (flat === null ? name : [name, flat, n])));
}

/** Return a table of names with one value at all times and on all devices; null without any. */
function flatTable(names) {
  if (!names.length) return null;
  const rows = names.map((row) => [
    [row.title, row.title !== row.name && h("span", { class: "quiet small" }, ` ${row.name}`)],
    sampleText(row, row.flat),
    wholeText(row.n_devices),
  ]);
  const table = grid([["Name", "row"], ["Value", "number"], ["Devices", "number"]], rows);
  return h("section", { class: "panel flat", "aria-label": "Constant values" }, h("h2", {}, "Constant values"), table);
}
