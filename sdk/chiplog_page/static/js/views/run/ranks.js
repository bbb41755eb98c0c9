// Ranks beside each other: a heat map of rank and step, the phases of a step, all labels.

import { HeatMap } from "../../charts/heat_map.js";
import { Timeline } from "../../charts/timeline.js";
import { h, show } from "../../dom.js";
import { addressOf, wholeOf } from "../../net/address.js";
import { hasGrown, isActive } from "../../net/live.js";
import { labelTable } from "../../tables/label_table.js";
import { countText, phaseText, timeText, wholeText } from "../../text/texts.js";
import { RunView } from "./run_view.js";
import { stepPhases } from "./step_phases.js";

const VERDICT_PAUSE_MS = 10000; // it reads all phases of the run
const OVERLAP_COLUMNS = 16; // asked for again; all of them are with each sentence
const AROUND = 10; // steps before and after a chosen one on the timeline
const LANES = 64; // labels on the timeline

export default class RanksTab extends RunView {
  static beginsWithOutline = true; // nothing here waits for the report of the run

  state = readState(this.query);
  heat = null;
  phaseNames = []; // in the order of their colours
  shownLanes = null; // the last answer of the timeline
  isLoaded = false;
  verdictAt = performance.now();

  async start() {
    const chooses = {
      onChoose: (label, step) => this.go({ label, step }),
      onRange: (first, last) => this.go({ first, last }),
    };
    this.map = new HeatMap(chooses);
    this.lanes = new Timeline(chooses);
    this.steps = stepPhases({
      onStep: (step) => this.go({ step }),
      onClose: () => this.go({ step: null, label: null }),
      consoleOf: this.consoleOf,
    });
    this.table = labelTable(this.run, this.state, this.report);
    show(this.element, this.heatPanel(), this.lanesPanel(), this.steps.element, this.table.element);
    this.verdict.follow = (changes) => this.followVerdict(changes);
    const concerns = () => isActive(this.report);
    this.live = this.follow(() => this.refresh(), { canRefresh: () => this.isLoaded, concerns });
    this.followReports();
    this.loadAll();
  }

  close() {
    super.close();
    this.map.close();
    this.lanes.close();
  }

  onLabels() {
    this.heat = null;
    for (const load of [this.loadHeat(), this.loadStep(), this.loadLanes()]) load.catch((error) => this.fail(error));
  }

  onReport(before) {
    this.table.setReport(this.report);
    if (hasGrown(before, this.report)) this.live.changed();
  }

  fail(error) {
    if (this.verdict.found || error.name === "AbortError") return super.fail(error);
    this.verdict.fail(error);
    return false;
  }

  heatPanel() {
    const bound = (name, title) => {
      const onchange = ({ target }) => {
        const value = target.value === "" ? null : Math.max(0, Math.round(Number(target.value)));
        this.go({ first: this.state.first, last: this.state.last, [name]: value });
      };
      return h("input", { type: "number", min: 0, step: 1, class: "step-bound", "aria-label": title, onchange });
    };
    this.bounds = { first: bound("first", "First step"), last: bound("last", "Last step") };
    this.phases = h("select", { "aria-label": "Phase", onchange: () => this.go({ phase: this.phases.value }) });
    this.allSteps = h("button", { onclick: () => this.go({ first: null, last: null }) }, "All steps");
    this.heatRange = h("span", { class: "quiet" });
    this.heatElement = h(
      "section",
      { class: "panel", hidden: true, "aria-label": "Excess over the median" },
      h(
        "div",
        { class: "bar" },
        h("h2", {}, "Excess over the median of each step"),
        h("label", {}, "Phase ", this.phases),
        h("span", {}, "Steps ", this.bounds.first, " to ", this.bounds.last),
        this.allSteps,
        this.heatRange,
      ),
      this.map.element,
    );
    return this.heatElement;
  }

  lanesPanel() {
    this.lanesRange = h("span", { class: "quiet" });
    this.lanesOrder = h(
      "select",
      { "aria-label": "Order of labels", onchange: () => this.go({ lanes: this.lanesOrder.value, skip: 0 }) },
      h("option", { value: "rank" }, "by rank"),
      h("option", { value: "slow" }, "slowest first"),
    );
    const move = (by, text, title) =>
      h("button", { "aria-label": title, onclick: () => this.go({ skip: Math.max(0, this.state.skip + by) }) }, text);
    this.lanesBefore = move(-LANES, "‹", "Labels before");
    this.lanesAfter = move(LANES, "›", "Labels after");
    this.lanesCount = h("span");
    this.lanesMore = h("span", { hidden: true }, this.lanesBefore, this.lanesCount, this.lanesAfter);
    this.lanesElement = h(
      "section",
      { class: "panel", hidden: true, "aria-label": "Phases over time" },
      h(
        "div",
        { class: "bar" },
        h("h2", {}, "Phases over time"),
        h("label", {}, "Order ", this.lanesOrder),
        this.lanesMore,
        this.lanesRange,
      ),
      this.lanes.element,
    );
    return this.lanesElement;
  }

  /** Load what the address asks for. Without a choice, the sentence says which phase and steps to show. */
  async loadAll() {
    const { verdict } = this;
    const failFirst = (error) => {
      this.fail(error);
      this.live.changed(); // asks again
    };
    const isVerdictLoaded = verdict.found ? Promise.resolve() : verdict.load(this.signal);
    const isPhaseKnown = this.state.phase ? Promise.resolve() : isVerdictLoaded;
    const areStepsKnown = Object.keys(this.chosenSteps()).length ? Promise.resolve() : isVerdictLoaded;
    const pictures = [
      isPhaseKnown.then(() => this.loadHeat()).then(() => this.loadStep()),
      areStepsKnown.then(() => this.loadLanes()),
      isVerdictLoaded,
    ];
    await Promise.all([this.loadTable().catch(failFirst), Promise.all(pictures).catch(failFirst)]);
    if (!this.isOpen) return;
    this.reveal();
    this.isLoaded = true;
    this.live.later();
  }

  go(given) {
    const changes = { panel: null, ...given };
    this.change(changes);
    const loads = [];
    if ("phase" in changes || "first" in changes || "last" in changes) this.heat = null;
    if (!this.heat) loads.push(this.loadHeat());
    if ("step" in changes || "label" in changes) {
      this.map.mark(this.state);
      this.lanes.mark(this.state);
      loads.push(this.loadStep());
    }
    if (!this.isOnTimeline(changes)) loads.push(this.loadLanes());
    const reveal = () => {
      if ("step" in given) this.steps.reveal();
      this.reveal();
    };
    Promise.all(loads).then(reveal, (error) => this.fail(error));
  }

  /** Go to the panel that a part of the sentence has its proof in. */
  reveal() {
    const panel = { heat: this.heatElement, timeline: this.lanesElement, step: this.steps.element }[this.state.panel];
    if (!panel || panel.hidden) return;
    panel.tabIndex = -1;
    panel.focus({ preventScroll: true });
    panel.scrollIntoView({ block: "nearest" });
  }

  /** Go where a part of the sentence leads. */
  followVerdict(changes) {
    const end = this.heat?.last_step ?? Infinity; // a run has no data after its last step
    if (changes.last !== null) changes = { ...changes, last: Math.max(Math.min(changes.last, end), changes.first) };
    if (this.labels) location.hash = addressOf(["run", this.run, "ranks"], changes); // of all labels
    else this.go(changes);
  }

  // -- the heat map --

  askHeat(query) {
    const { state, labels: label } = this;
    const phase = state.phase ?? this.verdict.found?.culprit?.phase ?? null;
    return this.ask(`${this.path}/heat`, { phase, first: state.first, last: state.last, columns: this.map.columns(), label, ...query });
  }

  async loadHeat() {
    const isNewest = this.begin("heat");
    this.heatElement.hidden = this.hasNoLabels; // the table says why
    if (this.hasNoLabels) return;
    if (!this.heat) show(this.heatRange, "Reading the phases…");
    let answer;
    try {
      answer = await this.askHeat();
    } catch (error) {
      if (!isNewest()) return;
      this.heatElement.hidden = !this.heat;
      throw error;
    }
    if (!isNewest()) return;
    this.heatElement.hidden = !answer.n_columns;
    if (!answer.n_columns) return;
    this.heat = inSeconds(answer);
    this.drawHeat();
  }

  /** Ask for the last columns and those after them, and put them in: some labels arrive later than others. */
  async growHeat() {
    const { heat } = this;
    const isNewest = this.begin("heat");
    const from = heat.start + Math.max(0, heat.n_columns - OVERLAP_COLUMNS) * heat.width;
    const answer = inSeconds(await this.askHeat({ since: from }));
    if (!isNewest()) return;
    const isSame = answer.width === heat.width && answer.labels.length === heat.labels.length;
    if (!isSame || answer.start !== from || answer.phase !== heat.phase) return this.loadHeat();
    this.heat = joined(heat, answer);
    this.drawHeat();
  }

  drawHeat() {
    const { heat, state, phases } = this;
    this.phaseNames = heat.phases;
    // A list that is open stays as it is.
    if (document.activeElement !== phases) {
      const isSame = String([...phases.options].map(({ value }) => value)) === String(heat.phases);
      if (!isSame) show(phases, heat.phases.map((name) => h("option", { value: name }, phaseText(name))));
      phases.value = heat.phase;
    }
    this.allSteps.hidden = state.first === null && state.last === null;
    const last = Math.min(heat.start + heat.n_columns * heat.width, heat.last_step + 1) - 1;
    const sizes = [
      heat.width > 1 ? `${heat.width} steps in a column` : null,
      heat.per_row > 1 ? `${heat.per_row} labels in a row` : null,
    ].filter(Boolean);
    const words = [sizes.length ? `${sizes.join(", ")}: the largest is shown` : null];
    if (this.labels) words.push("the median is that of all labels");
    show(this.heatRange, words.filter(Boolean).join("; "));
    const shown = { first: state.first ?? Math.max(heat.start, heat.first_step), last: state.last ?? last };
    for (const [name, input] of Object.entries(this.bounds)) if (document.activeElement !== input) input.value = shown[name];
    this.map.draw(heat, state, this.verdict.found?.culprit?.label ?? null);
  }

  async loadStep() {
    const isNewest = this.begin("step");
    const { element } = this.steps;
    element.hidden = this.state.step === null || this.hasNoLabels;
    if (element.hidden) return;
    const { step, label } = this.state;
    const answer = await this.ask(`${this.path}/step`, { step, mark: label, label: this.labels });
    if (isNewest()) this.steps.draw(answer, label, this.phaseNames);
  }

  // -- the timeline --

  /** Return the steps of the timeline: the chosen ones, else around the step in which a label began to be slow. */
  lanesSteps() {
    const at = this.verdict.found?.culprit?.first;
    return { ...(at === undefined ? {} : stepsAround(at)), ...this.chosenSteps() };
  }

  chosenSteps() {
    const { first, last, step } = this.state;
    if (first !== null || last !== null) return { first, last };
    return step === null ? {} : stepsAround(step);
  }

  /** Return true if the timeline stays as it is after changes: another phase, or a step and a label that it shows. */
  isOnTimeline(changes) {
    if (["first", "last", "lanes", "skip"].some((name) => name in changes) || !this.shownLanes) return false;
    const { first, last, labels } = this.shownLanes;
    const { step, label } = this.state;
    return (step === null || (step >= first && step <= last)) && (!label || labels.includes(label));
  }

  async loadLanes() {
    const isNewest = this.begin("timeline");
    const { lanes: order, label: mark, skip } = this.state;
    this.lanesElement.hidden = this.hasNoLabels;
    if (this.hasNoLabels) return;
    const columns = this.lanes.columns(this.element.clientWidth);
    const query = { ...this.lanesSteps(), order, mark, label: this.labels, skip: skip || null, rows: LANES, columns };
    const answer = await this.ask(`${this.path}/timeline`, query);
    if (!isNewest()) return;
    this.lanesElement.hidden = !answer.n_labels;
    if (!answer.n_labels) return;
    this.shownLanes = answer;
    this.lanes.draw(answer, this.state);
    this.drawLanes(answer);
  }

  drawLanes(answer) {
    const begun = new Date(answer.begun_us / 1000);
    const { skip } = this.state;
    show(
      this.lanesRange,
      `steps ${wholeText(answer.first)} to ${wholeText(answer.last)}, from ${timeText(begun.toISOString())}`,
      answer.width > 1 ? `; ${answer.width} steps in a bar are added up` : "",
    );
    if (document.activeElement !== this.lanesOrder) this.lanesOrder.value = answer.order;
    this.lanesMore.hidden = answer.n_labels <= LANES;
    this.lanesCount.textContent = ` ${answer.labels.length} of ${countText(answer.n_labels, "label")} `;
    this.lanesBefore.disabled = skip === 0;
    this.lanesAfter.disabled = skip + LANES >= answer.n_labels;
  }

  // -- live --

  async loadTable() {
    this.table.draw(await this.ask(`${this.path}/ranks`));
  }

  async refresh() {
    const now = performance.now();
    const isFirst = this.heat?.labels.length > 1 && !this.verdict.found?.parts.length; // there was nothing to compare before
    const isVerdictDue = isFirst || now - this.verdictAt > VERDICT_PAUSE_MS;
    const { last } = this.state;
    const pictures = async () => {
      if (isVerdictDue) await this.verdict.load(this.signal);
      if (this.heat && !isVerdictDue && last === null) await this.growHeat();
      else if (!this.heat || isVerdictDue) await this.loadHeat();
    };
    try {
      await Promise.all([this.loadTable(), pictures(), last === null ? this.loadLanes() : null]);
    } catch (error) {
      return this.fail(error);
    }
    if (isVerdictDue) {
      this.verdictAt = now;
      this.cancel("verdict");
    } else {
      // Also after the last change of the run.
      this.later("verdict", VERDICT_PAUSE_MS - (now - this.verdictAt) + 1, this.live.changed);
    }
    return true;
  }
}

function stepsAround(step) {
  return { first: Math.max(0, step - AROUND), last: step + AROUND };
}

function readState(query) {
  const whole = (name) => wholeOf(query.get(name));
  return {
    panel: query.get("panel"),
    phase: query.get("phase"),
    label: query.get("label"),
    step: whole("step"),
    first: whole("first"),
    last: whole("last"),
    lanes: query.get("lanes"),
    skip: Math.max(0, whole("skip") ?? 0),
  };
}

function inSeconds(answer) {
  answer.excess = (answer.excess ?? []).map((value) => (value === null ? null : value * answer.unit_s));
  return answer;
}

/** Return a heat map with the columns of another one in place of its own from there on. */
function joined(old, next) {
  const keep = (next.start - old.start) / old.width;
  const n = keep + next.n_columns;
  const rows = (name) => {
    if (!old[name]) return null;
    const values = [];
    for (let row = 0; row < old.n_rows; row++) {
      for (let at = 0; at < keep; at++) values.push(old[name][row * old.n_columns + at]);
      for (let at = 0; at < next.n_columns; at++) values.push(next[name][row * next.n_columns + at]);
    }
    return values;
  };
  const typical = [...old.typical_s.slice(0, keep), ...next.typical_s];
  return {
    ...next,
    start: old.start,
    n_columns: n,
    excess: rows("excess"),
    label: rows("label"),
    step: rows("step"),
    typical_s: typical,
  };
}
