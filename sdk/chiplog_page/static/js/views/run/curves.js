// The curves of a run: a panel per metric, in groups by the part of the name before the slash. Panels load when they are
// visible, several in one request; while the run changes, only their last buckets are asked for again.

import { lineMark, lineStyle } from "../../charts/chart.js";
import { h, show } from "../../dom.js";
import { checkbox, emptySection, quiet } from "../../elements.js";
import { addressOf, setParameters, wholeOf } from "../../net/address.js";
import { part } from "../../net/api.js";
import { isActive } from "../../net/live.js";
import { grid } from "../../tables/grid.js";
import { nameFilter } from "../../text/filter.js";
import { labelsChoice, noLabelsText } from "../../text/labels.js";
import { byName, countText, timeText, valueText, wholeText } from "../../text/texts.js";
import { MARGIN_PX } from "../view.js";
import { FAR_PAUSE_MS, Panel, X_NAMES } from "./curve_panel.js";
import { RunView } from "./run_view.js";
import { SystemOverlay } from "./system_overlay.js";

const KEYS_AT_ONCE = 6; // in one request: the first curves do not wait for the last
const REQUESTS_AT_ONCE = 2; // as many queries as a collector runs at once
const PAUSE_MS = 500; // between two live requests
const PAUSE_FACTOR = 4; // of the time that the last one took
const STATES_PAUSE_MS = 5000; // between two reports of overlaid runs that have not ended
const STATES_PAUSE_FACTOR = 10;
const CELL_BUCKETS = 32; // keys whose new values begin further apart are not in one request: it reads all from the earliest
const KEYS_LISTED = 10000; // as many as a report has
const AXES_LISTED = 1000;
const OPEN_PANELS = 60; // groups beyond so many panels start closed
const SHOWN_AT_FIRST = 60; // panels of a group, until more are asked for
const RUNS_MAX = 10; // overlaid
const PAN_REST_MS = 150;
const TYPING_MS = 200;
const SIZING_MS = 200;

export default class CurvesTab extends RunView {
  static beginsWithOutline = true; // the first curves do not wait for the report

  others = this.query.getAll("with").filter((other) => other !== this.run).slice(0, RUNS_MAX - 1);
  runs = [{ run: this.run, name: this.report.name || this.run, startMs: Date.parse(this.report.created_at) }];
  filter = this.query.get("filter") ?? "";
  x = axisOf(this.query); // "=KEY" is a metric; "" is as it was defined
  hasDefined = false; // whether a metric has a step metric
  isLog = this.query.get("log") === "1";
  isLogX = this.query.get("logx") === "1";
  weight = Math.min(0.99, Math.max(0, Number(this.query.get("smooth")) || 0));
  zoom = zoomOf(this.query);
  wide = new Set(this.query.getAll("wide")); // keys
  hidden = new Set(this.query.getAll("hide"));
  showsAll = this.query.get("all") === "1"; // also metrics that define_metric hides
  picked = pickedOf(this.query);
  panels = new Map(); // by key
  nShown = new Map(); // panels of a group, by its name
  closed = new Set(this.query.getAll("closed"));
  opened = new Set(this.query.getAll("open"));
  version = 0; // of what is asked for; an answer to an older one is not drawn
  nRequests = 0;
  system = new SystemOverlay(this.run, this.query.get("system") ?? "", {
    onChange: () => {
      setParameters({ system: this.system.name });
      this.loadSystem();
      this.redraw();
    },
    onCurve: () => this.redraw(),
  });

  async start() {
    if (this.others.length) show(this.element, quiet("Loading…"));
    const reports = await Promise.all(this.others.map((run) => this.askReport(run)));
    this.others.forEach((run, at) => {
      if (!reports[at]) return;
      const { name, config, created_at: start, n_running, completeness } = reports[at];
      this.runs.push({ run, name: name || run, startMs: Date.parse(start), config, n_running, completeness });
    });
    if (!this.isOpen) return;
    this.seen = this.observer((entries) => this.onSeen(entries));
    const sizes = new ResizeObserver(() => this.later("size", SIZING_MS, () => this.load())); // a wider panel has more buckets
    this.atEnd(() => sizes.disconnect());
    this.bar = this.drawBar();
    this.place = h("p", { class: "picked", role: "status", hidden: true });
    this.drawPlace();
    this.body = h("div", { class: "curve-groups" });
    sizes.observe(this.body);
    this.overlay = h("div", {});
    show(this.overlay, this.overlaid());
    show(this.element, this.bar, this.filterError, this.overlay, this.place, this.body);
    this.drawGroups();
    this.loadVisible();
    this.loadSystem();
    this.followReports();
    const concerns = () => this.isActive();
    this.live = this.follow(() => this.update(), { pauseMs: PAUSE_MS, pauseFactor: PAUSE_FACTOR, concerns });
    this.follow(() => this.updateStates(), {
      pauseMs: STATES_PAUSE_MS,
      pauseFactor: STATES_PAUSE_FACTOR,
      isQuiet: true,
      concerns: () => this.runs.some(isActive),
    });
  }

  close() {
    super.close();
    this.system.close();
    for (const panel of this.panels.values()) panel.close();
  }

  onLabels() {
    this.drawGroups();
    this.reload();
  }

  onReport(before, hasOtherLabels) {
    this.drawAxis();
    if (!hasOtherLabels && keysText(this.report) !== keysText(before)) this.drawGroups();
    if (before.isOutline) show(this.overlay, this.overlaid());
    this.catchUp(before, this.report);
  }

  /** Return the report of another run; null after an error. */
  async askReport(run, onError) {
    try {
      return await this.ask(`runs/${part(run)}`);
    } catch (error) {
      this.fail(error, `${run}: `);
      onError?.(error);
      return null;
    }
  }

  /** Return true while more values may come: other runs change the database, too. */
  isActive() {
    return [this.report, ...this.runs].some(isActive);
  }

  /** Ask for all curves again when a run has ended, and with what arrives after that: of any step. */
  catchUp(before, after) {
    const hasMore = before.completeness && after.completeness.stored !== before.completeness.stored;
    if (!after.n_running && (before.n_running || hasMore)) this.reload();
  }

  /** Ask whether overlaid runs have ended. A deleted one is not asked about again. */
  async updateStates() {
    const [, ...others] = this.runs;
    let isDone = true;
    await Promise.all(
      others.filter(isActive).map(async (run) => {
        const report = await this.askReport(run.run, ({ kind }) => {
          if (kind === "not_found") Object.assign(run, { n_running: 0, completeness: null });
          else isDone = false;
        });
        if (!report || !this.isOpen) return;
        const before = { ...run };
        Object.assign(run, { n_running: report.n_running, completeness: report.completeness });
        this.catchUp(before, run);
      }),
    );
    return isDone;
  }

  // -- controls --

  drawBar() {
    this.axis = h("select", { onchange: (event) => this.setX(event.target.value), "aria-label": "x axis" });
    this.drawAxis();
    this.weightText = h("output", { class: "number" }, this.weight.toFixed(2));
    const smoothing = h("input", {
      ...{ type: "range", min: 0, max: 0.99, step: 0.01, value: this.weight, "aria-label": "smoothing" },
      oninput: (event) => {
        this.weight = Number(event.target.value);
        this.weightText.textContent = this.weight.toFixed(2);
        setParameters({ smooth: this.weight || null });
        this.redraw();
      },
    });
    const bound = (name) =>
      h("input", {
        ...{ type: "number", class: "step-bound", placeholder: name, "aria-label": `${name} step` },
        onchange: () => this.setBounds(wholeOf(this.first.value), wholeOf(this.last.value)),
      });
    this.first = bound("first");
    this.last = bound("last");
    this.reset = h("button", { onclick: () => this.setZoom(null) }, "Reset zoom");
    this.drawZoom();
    this.filterError = h("p", { id: "metric-filter-error", class: "error small", role: "status", hidden: true });
    const setFilter = (filter) => {
      this.filter = filter;
      setParameters({ filter });
      this.drawGroups();
    };
    this.filterInput = this.searchInput("Filter metrics", this.filter, TYPING_MS, setFilter, {
      ...{ placeholder: "Filter metrics: words or /regex/", spellcheck: "false", "aria-describedby": "metric-filter-error" },
    });
    return h(
      "div",
      { class: "bar" },
      this.filterInput,
      this.axis,
      checkbox("log y", this.isLog, (isLog) => this.setLog(isLog)),
      checkbox("log x", this.isLogX, (isLog) => this.setLogX(isLog)),
      h("label", {}, "smoothing", smoothing, this.weightText),
      this.system.element,
      h("span", { class: "zoom" }, "steps", this.first, "–", this.last, this.reset),
    );
  }

  /** Draw the choice of x if it lacks metrics, unless it is in use. */
  drawAxis() {
    const keys = this.report.keys.map(({ key }) => key);
    const known = keys.slice(0, AXES_LISTED);
    const chosen = this.x.startsWith("=") ? this.x.slice(1) : null;
    if (chosen !== null && !known.includes(chosen)) known.unshift(chosen);
    const usual = [...(this.hasDefined ? [["", "as defined"]] : []), ...Object.entries(X_NAMES)];
    if (this.axis.length === usual.length + known.length || this.axis === document.activeElement) return;
    const shown = this.x || (this.hasDefined ? "" : "step");
    const option = (value, text) => h("option", { value, selected: value === shown }, text);
    show(
      this.axis,
      usual.map(([value, text]) => option(value, `x: ${text}`)),
      h("optgroup", { label: "a metric" }, known.map((key) => option(`=${key}`, key))),
    );
  }

  /** Return the runs that are overlaid, with their colours and how their configs differ. */
  overlaid() {
    if (this.runs.length < 2 || this.report.isOutline) return null;
    const configs = [this.report.config, ...this.runs.slice(1).map(({ config }) => config)];
    const texts = (key) => configs.map((config) => (key in config ? valueText(config[key]) : "–"));
    const isOther = (key) => new Set(configs.map((config) => JSON.stringify(config[key]))).size > 1;
    const differing = [...new Set(configs.flatMap(Object.keys))].sort(byName).filter(isOther);
    const rows = this.runs.map(({ run, name }, at) => [
      [lineMark(lineStyle(at)), " ", h("a", { href: addressOf(["run", run, "curves"]) }, name)],
      ...differing.map((key) => texts(key)[at]),
      at ? h("button", { class: "bare", onclick: () => this.remove(run) }, "Remove") : null,
    ]);
    const table = grid([["run"], ...differing.map((key) => [key]), [""]], rows, { box: {} });
    return h("div", { class: "panel overlaid" }, table, differing.length ? null : quiet("Their configs are equal."));
  }

  remove(run) {
    setParameters({ with: this.others.filter((other) => other !== run) });
    dispatchEvent(new HashChangeEvent("hashchange"));
  }

  setX(x) {
    this.x = x;
    setParameters({ x });
    this.reload();
  }

  setLog(isLog) {
    this.isLog = isLog;
    setParameters({ log: isLog ? 1 : null });
    this.redraw();
  }

  setLogX(isLogX) {
    this.isLogX = isLogX;
    setParameters({ logx: isLogX ? 1 : null });
    this.redraw();
  }

  /** Zoom to steps; null: the first or the last one of the curves. */
  setBounds(first, last) {
    if (first === null && last === null) {
      this.setZoom(null);
      return;
    }
    const curves = [...this.panels.values()].flatMap((panel) => panel.curves).filter(({ kind }) => kind !== "none");
    const ends = (name) => curves.map((curve) => curve[name]);
    if (curves.length) this.setZoom(first ?? Math.min(...ends("first_step")), last ?? Math.max(...ends("last_step")));
  }

  setZoom(first, last) {
    this.zoom = first === null ? null : [Math.min(first, last), Math.max(first, last)].map(Math.round);
    setParameters({ first: this.zoom?.[0], last: this.zoom?.[1] });
    this.drawZoom();
    this.redraw(); // what is known of the part, until the finer buckets are there
    this.reload();
  }

  /**
   * Move the part that all panels show; what is new in it is asked for when the movement rests. The panel that is moved
   * is drawn at once, one of the others in every second frame: all of them would take a tenth of a second.
   */
  pan(panel, least, most, isOver) {
    const rest = () => {
      this.part = null;
      this.setZoom(Math.round(least), Math.round(most));
    };
    this.cancel("pan");
    if (isOver) {
      rest();
      return;
    }
    const isMoving = Boolean(this.part);
    this.part = [least, most];
    panel.chart.showPart(least, most, true);
    this.later("pan", PAN_REST_MS, rest);
    if (!isMoving) this.moveOthers(panel, 0);
  }

  moveOthers(panel, turn) {
    requestAnimationFrame(() => {
      if (!this.part || !this.isOpen) return;
      const others = [...this.panels.values()].filter((other) => other !== panel && other.isVisible && other.chart?.model.kind === "step");
      if (turn % 2) others[(turn >> 1) % others.length]?.chart.showPart(...this.part, true);
      this.moveOthers(panel, turn + 1);
    });
  }

  /** Hide or show a line in all panels; with `others` all of these but it. */
  toggle(id, others) {
    if (others) {
      const rest = new Set(others.filter((other) => other && other !== id));
      const isAlone = [...rest].every((other) => this.hidden.has(other)) && !this.hidden.has(id);
      this.hidden = isAlone ? new Set() : rest;
    } else if (!this.hidden.delete(id)) {
      this.hidden.add(id);
    }
    setParameters({ hide: [...this.hidden] });
    this.redraw();
  }

  /** Keep a step in sight, with links to what happened then. */
  pick(picked) {
    this.picked = picked;
    setParameters({ step: picked?.step, at: picked && new Date(picked.ms).toISOString() });
    this.drawPlace();
    this.redraw();
  }

  drawPlace() {
    this.place.hidden = !this.picked;
    if (!this.picked) return;
    const { step, ms } = this.picked;
    const { run } = this.runs[0];
    const at = new Date(ms).toISOString();
    show(
      this.place,
      h("b", {}, `Step ${wholeText(step)}`),
      ` at ${timeText(at)}: `,
      h("a", { href: addressOf(["run", run, "console"], { at, labels: labelsChoice() }) }, "console at that time"),
      " · ",
      h("a", { href: addressOf(["run", run, "ranks"], { step, labels: labelsChoice() }) }, "ranks at that step"),
      " ",
      h("button", { class: "bare", onclick: () => this.pick(null), "aria-label": "Clear the step" }, "✕"),
    );
  }

  drawZoom() {
    this.first.value = this.zoom?.[0] ?? "";
    this.last.value = this.zoom?.[1] ?? "";
    this.reset.disabled = this.zoom === null;
  }

  // -- panels --

  drawGroups() {
    const filter = nameFilter(this.filter);
    this.filterError.textContent = filter.error ?? "";
    this.filterError.hidden = !filter.error;
    this.filterInput.setAttribute("aria-invalid", String(Boolean(filter.error)));
    if (filter.error && this.panels.size) return; // the panels stay
    const keys = this.report.keys.map(({ key }) => key);
    const hidden = this.showsAll || !filter.isEmpty ? new Set() : hiddenKeys(this.report);
    const found = filter.error ? [] : keys.filter((key) => !hidden.has(key) && filter.test(key)).sort(byName);
    const isFound = new Set(found);
    const groups = new Map(found.some((key) => !key.includes("/")) ? [[" ", []]] : []);
    for (const key of found) {
      const group = key.slice(0, Math.max(0, key.indexOf("/"))) || " "; // a parameter of the address is not empty
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(key);
    }
    for (const [key, panel] of this.panels) {
      if (!isFound.has(key)) {
        panel.close();
        this.panels.delete(key);
      }
    }
    if (!found.length && !hidden.size) {
      show(this.body, filter.error ? null : this.none(keys.length));
      return;
    }
    if (this.hasNoLabels) {
      show(this.body, h("p", { class: "empty" }, noLabelsText(this.report)));
      return;
    }
    const { activeElement: focused } = document;
    let nPanels = 0;
    show(
      this.body,
      keys.length < KEYS_LISTED ? null : h("p", { class: "warn" }, `${wholeText(keys.length)} metrics are listed; SQL finds others: FROM keys.`),
      [...groups].map(([name, of]) => {
        nPanels += of.length;
        const isOpen = this.opened.has(name) || (!this.closed.has(name) && (nPanels <= OPEN_PANELS || of.length === nPanels));
        return this.drawGroup(name, of, isOpen || !filter.isEmpty);
      }),
      hidden.size ? this.drawHidden(hidden.size) : null,
    );
    if (this.body.contains(focused)) focused.focus({ preventScroll: true });
  }

  drawGroup(name, keys, isOpen) {
    const panels = h("div", { class: "panels" });
    const more = h("button", {
      onclick: () => fill(this.nShown.get(name) + SHOWN_AT_FIRST),
    });
    const fill = (n = this.nShown.get(name) ?? SHOWN_AT_FIRST) => {
      this.nShown.set(name, n);
      show(panels, keys.slice(0, n).map((key) => this.panel(key).element));
      more.hidden = n >= keys.length;
      more.textContent = `Show more (${wholeText(n)} of ${wholeText(keys.length)})`;
    };
    if (isOpen) fill();
    more.hidden ||= !isOpen;
    const group = h(
      "details",
      { class: `curve-group${keys.length < 3 ? ` of-${keys.length}` : ""}`, open: isOpen },
      h("summary", {}, h("h2", {}, name.trim() || "metrics"), h("span", { class: "quiet" }, ` ${wholeText(keys.length)}`)),
      panels,
      more,
    );
    group.addEventListener("toggle", () => {
      if (group.open && !panels.childElementCount) fill();
      if (group.open === isOpen) return;
      this.closed.delete(name);
      this.opened.delete(name);
      (group.open ? this.opened : this.closed).add(name);
      setParameters({ closed: [...this.closed], open: [...this.opened] });
    });
    return group;
  }

  /** Return what shows the metrics that define_metric hides. A filter finds them, too. */
  drawHidden(nHidden) {
    const onclick = () => {
      this.showsAll = true;
      setParameters({ all: "1" });
      this.drawGroups();
    };
    return h("p", {}, h("button", { onclick }, `Show ${countText(nHidden, "hidden metric")}`));
  }

  none(nKeys) {
    if (nKeys) return h("p", { class: "empty" }, `None of ${countText(nKeys, "metric")} matches “${this.filter}”.`);
    const why = h("p", {}, "This run has logged no number. What it printed is in its console.");
    return emptySection("h2", "No metrics yet", why, h("a", { href: addressOf(["run", this.run, "console"]) }, "Console"));
  }

  panel(key) {
    if (!this.panels.has(key)) {
      const panel = new Panel(this, key);
      this.panels.set(key, panel);
      this.seen.observe(panel.element);
    }
    return this.panels.get(key);
  }

  onSeen(entries) {
    for (const { target, isIntersecting } of entries) {
      const panel = this.panels.get(target.dataset.key);
      if (!panel) continue;
      panel.isVisible = isIntersecting;
      if (isIntersecting && panel.isStale) panel.draw();
    }
    this.load();
    if (this.isActive()) this.live?.changed(); // panels that were not visible while the run went on
  }

  /** Load what is on the screen now. The observer would report it only after the browser has drawn the empty panels. */
  loadVisible() {
    for (const panel of this.panels.values()) {
      const { top, bottom } = panel.element.getBoundingClientRect();
      panel.isVisible = bottom > -MARGIN_PX && top < innerHeight + MARGIN_PX && bottom > top;
    }
    this.load();
  }

  redraw() {
    for (const panel of this.panels.values()) panel.draw();
  }

  /** Ask for all curves again, those that are visible at once. */
  reload() {
    this.version += 1;
    this.load();
    this.loadSystem();
  }

  loadSystem() {
    this.system.load(this.zoom, this.labels);
  }

  // -- requests --

  load() {
    let waiting = [...this.panels.values()].filter((panel) => panel.isVisible && panel.needs(this.version));
    const onScreen = waiting.filter((panel) => panel.isOnScreen());
    if (onScreen.length) waiting = onScreen;
    else if (this.nRequests) return; // panels on the screen load first
    const byPoints = Map.groupBy(waiting, (panel) => panel.points);
    for (const [points, panels] of byPoints) {
      for (let at = 0; at < panels.length && this.nRequests < REQUESTS_AT_ONCE; at += KEYS_AT_ONCE) {
        this.request(panels.slice(at, at + KEYS_AT_ONCE), points);
      }
    }
  }

  async request(panels, points) {
    const version = this.version;
    this.nRequests += 1;
    for (const panel of panels) Object.assign(panel, { asked: version, askedPoints: points, hasFailed: false });
    const keys = panels.map(({ key }) => key);
    const range = this.zoom ? { first: this.zoom[0], last: this.zoom[1] } : {};
    try {
      const answers = await Promise.all(this.runs.map(({ run }) => this.askFor(run, { key: keys, points, ...range })));
      if (version !== this.version) return;
      panels.forEach((panel, at) => panel.askedPoints === points && panel.setCurves(answers.map((curves) => curves[at])));
      this.offerDefined(answers.flat());
    } catch (error) {
      if (error.name === "AbortError" || version !== this.version) return;
      for (const panel of panels) if (panel.askedPoints === points) panel.fail(error.message);
      this.live?.changed(); // asks again
    } finally {
      this.nRequests -= 1;
      if (this.isOpen) this.load();
    }
  }

  /** Offer x "as defined" once an answer has a metric with a step metric. */
  offerDefined(curves) {
    this.hasDefined ||= curves.some(({ step_metric: metric }) => metric);
    this.drawAxis();
  }

  askFor(run, query) {
    const x = this.x.startsWith("=") ? this.x.slice(1) : null;
    const defined = this.x ? null : 1;
    // Of several runs each has one colour: a line, or a band if it has several labels.
    const lines = this.runs.length > 1 ? 1 : null;
    const parameters = { ...query, x, defined, lines, label: this.labels };
    return this.ask(`runs/${part(run)}/curves`, parameters);
  }

  // -- live --

  /** Ask for the last buckets of the visible curves. */
  async update() {
    this.system.refresh(this.zoom, this.labels);
    const version = this.version;
    const visible = [...this.panels.values()].filter((panel) => panel.isVisible);
    const failed = visible.filter((panel) => panel.hasFailed);
    for (const panel of failed) panel.asked = -1;
    const panels = visible.filter((panel) => panel.loaded === version);
    for (const [at, { run }] of this.runs.entries()) {
      if (!isActive(at ? this.runs[at] : this.report)) continue; // all of it is known
      const groups = new Map();
      const requests = [];
      for (const panel of panels) {
        const from = panel.from(at);
        if (from === null) continue;
        const { width } = panel.curves[at];
        const name = `${width}/${panel.askedPoints}/${Math.floor(from / (CELL_BUCKETS * width))}`;
        let group = groups.get(name);
        if (!(group?.panels.length < KEYS_AT_ONCE)) {
          groups.set(name, (group = { width, from, points: panel.askedPoints, panels: [] }));
          requests.push(group);
        }
        group.from = Math.min(group.from, from);
        group.panels.push(panel);
      }
      for (const { width, from, points, panels: those } of requests) {
        try {
          const query = { key: those.map(({ key }) => key), width, first: from, points, last: this.zoom?.[1] };
          const parts = await this.askFor(run, query);
          if (version !== this.version || !this.isOpen) return true;
          those.forEach((panel, place) => panel.append(at, parts[place], from));
          this.offerDefined(parts);
        } catch {
          return false; // the header says why
        }
      }
    }
    this.load();
    return !failed.length; // later it is known whether they have failed again
  }

  /** Update again once parts of curves that are far back may be asked for: also after the last change. */
  updateFar() {
    this.later("far", FAR_PAUSE_MS, this.live.changed);
  }
}

function axisOf(query) {
  const x = query.get("x") ?? "";
  return x.startsWith("=") || Object.hasOwn(X_NAMES, x) ? x : "";
}

function zoomOf(query) {
  const bounds = ["first", "last"].map((name) => wholeOf(query.get(name)));
  return bounds.includes(null) ? null : bounds.sort((a, b) => a - b);
}

function pickedOf(query) {
  const picked = { step: wholeOf(query.get("step")), ms: Date.parse(query.get("at") ?? "") };
  return picked.step !== null && Number.isFinite(picked.ms) ? picked : null;
}

/** Return the metrics that define_metric hides. */
function hiddenKeys({ keys }) {
  return new Set(keys.filter((one) => one.is_hidden).map(({ key }) => key));
}

/** Return a text that changes when panels appear or disappear. */
const keysText = (report) => JSON.stringify([report.keys.length, [...hiddenKeys(report)]]);
