// Ranks beside each other: a heat map of rank and step, the phases of a step, all labels.

import { heatMap } from "../../charts/heat_map.js";
import { timeline } from "../../charts/timeline.js";
import { h, notice, show } from "../../dom.js";
import { addressOf, readAddress, setParameters, wholeOf } from "../../net/address.js";
import { ask, objects, part } from "../../net/api.js";
import { hasGrown, isActive, liveRefresh } from "../../net/live.js";
import { chosenLabels, labelText, noLabelsText, onOtherLabels } from "../../text/labels.js";
import { bytesText, countText, durationText, exitText, phaseText, secondsText, timeText, wholeText } from "../../text/texts.js";
import { stepPhases } from "./step_phases.js";

const VERDICT_PAUSE_MS = 10000; // it reads all phases of the run
const OVERLAP_COLUMNS = 16; // asked for again; all of them are with each sentence
const AROUND = 10; // steps before and after a chosen one on the timeline
const LANES = 64; // labels on the timeline
const ROWS_SHOWN = 64; // of the table, until more are asked for

/** Nothing here waits for the report of the run. */
export const beginsWithOutline = true;

export async function open(element, run, query, firstReport, verdict) {
  let report = firstReport;
  const path = `runs/${part(run)}`;
  const aborted = new AbortController();
  const { signal } = aborted;
  const state = readState(query);
  let heat = null;
  let turn = 0; // of the heat map: an answer for what is no longer chosen is not drawn
  let phaseNames = []; // in the order of their colours
  let lanesTurn = 0; // of the timeline, likewise
  let stepTurn = 0; // of the phases of a step, likewise
  let lanesShown = null; // its last answer

  const phases = h("select", { "aria-label": "Phase", onchange: () => go({ phase: phases.value }) });
  const whole = h("button", { onclick: () => go({ first: null, last: null }) }, "All steps");
  const range = h("span", { class: "quiet" });
  const bound = (name, title) =>
    h("input", {
      type: "number",
      min: 0,
      step: 1,
      class: "step-bound",
      "aria-label": title,
      onchange: ({ target }) => choose(name, target),
    });
  const bounds = { first: bound("first", "First step"), last: bound("last", "Last step") };
  const map = heatMap({
    onChoose: (label, step) => go({ label, step }),
    onRange: (first, last) => go({ first, last }),
  });
  const mapPanel = h(
    "section",
    { class: "panel", hidden: true, "aria-label": "Excess over the median" },
    h(
      "div",
      { class: "bar" },
      h("h2", {}, "Excess over the median of each step"),
      h("label", {}, "Phase ", phases),
      h("span", {}, "Steps ", bounds.first, " to ", bounds.last),
      whole,
      range,
    ),
    map.element,
  );
  const lanes = timeline({
    onChoose: (label, step) => go({ label, step }),
    onRange: (first, last) => go({ first, last }),
  });
  const lanesRange = h("span", { class: "quiet" });
  const lanesOrder = h(
    "select",
    { "aria-label": "Order of labels", onchange: () => go({ lanes: lanesOrder.value, skip: 0 }) },
    h("option", { value: "rank" }, "by rank"),
    h("option", { value: "slow" }, "slowest first"),
  );
  const move = (by, text, title) =>
    h("button", { "aria-label": title, onclick: () => go({ skip: Math.max(0, state.skip + by) }) }, text);
  const [lanesBefore, lanesAfter] = [move(-LANES, "‹", "Labels before"), move(LANES, "›", "Labels after")];
  const lanesCount = h("span");
  const lanesMore = h("span", { hidden: true }, lanesBefore, lanesCount, lanesAfter);
  const lanesPanel = h(
    "section",
    { class: "panel", hidden: true, "aria-label": "Phases over time" },
    h(
      "div",
      { class: "bar" },
      h("h2", {}, "Phases over time"),
      h("label", {}, "Order ", lanesOrder),
      lanesMore,
      lanesRange,
    ),
    lanes.element,
  );
  const stepBars = stepPhases({
    onStep: (step) => go({ step }),
    onClose: () => go({ step: null, label: null }),
    consoleOf: (label, at) => addressOf(["run", run, "console"], { labels: `=${label}`, at }),
  });
  const table = labelTable(run, state, report);
  const changeLabels = onOtherLabels(report, () => {
    heat = null;
    for (const load of [loadHeat, loadStep, loadTimeline]) load().catch(fail);
  });
  let isLoaded = false;
  const live = liveRefresh(refresh, { canRefresh: () => isLoaded, concerns: () => isActive(report) });
  const onReport = ({ detail }) => {
    const isNew = hasGrown(report, detail);
    report = detail;
    table.setReport(detail);
    changeLabels(detail);
    if (isNew) live.changed();
  };
  element.addEventListener("report", onReport);
  show(element, mapPanel, lanesPanel, stepBars.element, table.element);

  function go(given) {
    const changes = { panel: null, ...given };
    Object.assign(state, changes);
    setParameters(changes);
    const loads = [];
    if ("phase" in changes || "first" in changes || "last" in changes) heat = null;
    if (!heat) loads.push(loadHeat());
    if ("step" in changes || "label" in changes) {
      map.mark(state);
      lanes.mark(state);
      loads.push(loadStep());
    }
    if (!isOnTimeline(changes)) loads.push(loadTimeline());
    Promise.all(loads).then(state.step === given.step ? stepBars.reveal : null).then(reveal, fail);
  }

  /** Go to the panel that a part of the sentence has its proof in. */
  function reveal() {
    const panel = { heat: mapPanel, timeline: lanesPanel, step: stepBars.element }[state.panel];
    if (!panel || panel.hidden) return;
    panel.tabIndex = -1;
    panel.focus({ preventScroll: true });
    panel.scrollIntoView({ block: "nearest" });
  }

  function choose(name, input) {
    const value = input.value === "" ? null : Math.max(0, Math.round(Number(input.value)));
    go({ first: state.first, last: state.last, [name]: value });
  }

  function fail(error) {
    if (error.name === "AbortError") return;
    if (verdict.found) notice(error.message, true);
    else verdict.fail(error);
  }

  verdict.follow = (changes) => {
    const end = heat?.last_step ?? Infinity; // a run has no data after its last step
    if (changes.last !== null) changes = { ...changes, last: Math.max(Math.min(changes.last, end), changes.first) };
    if (labels()) location.hash = addressOf(["run", run, "ranks"], changes); // of all labels
    else go(changes);
  };

  const chosenPhase = () => state.phase ?? verdict.found?.culprit?.phase ?? null;
  const labels = () => chosenLabels(report);
  const isNone = () => labels()?.length === 0; // the table says why
  const asked = () => ({
    phase: chosenPhase(),
    first: state.first,
    last: state.last,
    columns: map.columns(),
    label: labels(),
  });

  async function loadHeat() {
    const mine = ++turn;
    mapPanel.hidden = isNone();
    if (isNone()) return;
    if (!heat) show(range, "Reading the phases…");
    let answer;
    try {
      answer = await ask(`${path}/heat`, asked(), { signal });
    } catch (error) {
      if (mine !== turn) return;
      mapPanel.hidden = !heat;
      throw error;
    }
    if (mine !== turn) return;
    if (!answer.n_columns) {
      mapPanel.hidden = true;
      return;
    }
    heat = inSeconds(answer);
    drawHeat();
  }

  /** Ask for the last columns and those after them, and put them in: some labels arrive later than others. */
  async function growHeat() {
    const mine = turn;
    const from = heat.start + Math.max(0, heat.n_columns - OVERLAP_COLUMNS) * heat.width;
    const answer = inSeconds(await ask(`${path}/heat`, { ...asked(), since: from }, { signal }));
    if (mine !== turn) return;
    const isSame = answer.width === heat.width && answer.labels.length === heat.labels.length;
    if (!isSame || answer.start !== from || answer.phase !== heat.phase) return loadHeat();
    heat = joined(heat, answer);
    drawHeat();
  }

  function drawHeat() {
    phaseNames = heat.phases;
    // A list that is open stays as it is.
    if (document.activeElement !== phases) {
      const isSame = String([...phases.options].map(({ value }) => value)) === String(heat.phases);
      if (!isSame) show(phases, heat.phases.map((name) => h("option", { value: name }, phaseText(name))));
      phases.value = heat.phase;
    }
    const isZoomed = state.first !== null || state.last !== null;
    whole.hidden = !isZoomed;
    const last = Math.min(heat.start + heat.n_columns * heat.width, heat.last_step + 1) - 1;
    const sizes = [
      heat.width > 1 ? `${heat.width} steps in a column` : null,
      heat.per_row > 1 ? `${heat.per_row} labels in a row` : null,
    ].filter(Boolean);
    const words = [sizes.length ? `${sizes.join(", ")}: the largest is shown` : null];
    if (labels()) words.push("the median is that of all labels");
    show(range, words.filter(Boolean).join("; "));
    const shown = { first: state.first ?? Math.max(heat.start, heat.first_step), last: state.last ?? last };
    for (const [name, input] of Object.entries(bounds)) if (document.activeElement !== input) input.value = shown[name];
    map.draw(heat, state, verdict.found?.culprit?.label ?? null);
  }

  async function loadStep() {
    const mine = ++stepTurn;
    stepBars.element.hidden = state.step === null || isNone();
    if (stepBars.element.hidden) return;
    const { step, label } = state;
    const answer = await ask(`${path}/step`, { step, mark: label, label: labels() }, { signal });
    if (mine === stepTurn) stepBars.draw(answer, label, phaseNames);
  }

  /** Return the steps of the timeline: the chosen ones, else around the step in which a label began to be slow. */
  function lanesSteps() {
    const at = verdict.found?.culprit?.first;
    return { ...(at === undefined ? {} : stepsAround(at)), ...chosenSteps() };
  }

  function chosenSteps() {
    if (state.first !== null || state.last !== null) return { first: state.first, last: state.last };
    return state.step === null ? {} : stepsAround(state.step);
  }

  const stepsAround = (step) => ({ first: Math.max(0, step - AROUND), last: step + AROUND });

  /** Return true if the timeline stays as it is after changes: another phase, or a step and a label that it shows. */
  function isOnTimeline(changes) {
    if (["first", "last", "lanes", "skip"].some((name) => name in changes) || !lanesShown) return false;
    const { first, last, labels } = lanesShown;
    return (
      (state.step === null || (state.step >= first && state.step <= last)) &&
      (!state.label || labels.includes(state.label))
    );
  }

  async function loadTimeline() {
    const mine = ++lanesTurn;
    const { lanes: order, label: mark, skip } = state;
    lanesPanel.hidden = isNone();
    if (isNone()) return;
    const query = {
      ...lanesSteps(),
      order,
      mark,
      label: labels(),
      skip: skip || null,
      rows: LANES,
      columns: lanes.columns(element.clientWidth),
    };
    const answer = await ask(`${path}/timeline`, query, { signal });
    if (mine !== lanesTurn) return;
    lanesPanel.hidden = !answer.n_labels;
    if (!answer.n_labels) return;
    lanesShown = answer;
    lanes.draw(answer, state);
    drawLanes(answer);
  }

  function drawLanes(answer) {
    const begun = new Date(answer.begun_us / 1000);
    show(
      lanesRange,
      `steps ${wholeText(answer.first)} to ${wholeText(answer.last)}, from ${timeText(begun.toISOString())}`,
      answer.width > 1 ? `; ${answer.width} steps in a bar are added up` : "",
    );
    if (document.activeElement !== lanesOrder) lanesOrder.value = answer.order;
    lanesMore.hidden = answer.n_labels <= LANES;
    lanesCount.textContent = ` ${answer.labels.length} of ${countText(answer.n_labels, "label")} `;
    lanesBefore.disabled = state.skip === 0;
    lanesAfter.disabled = state.skip + LANES >= answer.n_labels;
  }

  let verdictAt = performance.now();
  let verdictTimer = null;
  async function refresh() {
    const now = performance.now();
    const isFirst = heat?.labels.length > 1 && !verdict.found?.parts.length; // there was nothing to compare before
    const isVerdictDue = isFirst || now - verdictAt > VERDICT_PAUSE_MS;
    const pictures = async () => {
      if (isVerdictDue) await verdict.load(signal);
      if (heat && !isVerdictDue && state.last === null) await growHeat();
      else if (!heat || isVerdictDue) await loadHeat();
    };
    try {
      await Promise.all([
        ask(`${path}/ranks`, {}, { signal }).then(table.draw),
        pictures(),
        state.last === null ? loadTimeline() : null,
      ]);
    } catch (error) {
      fail(error);
      return false;
    }
    clearTimeout(verdictTimer);
    if (isVerdictDue) verdictAt = now;
    // Also after the last change of the run.
    else verdictTimer = setTimeout(live.changed, VERDICT_PAUSE_MS - (now - verdictAt) + 1);
    return true;
  }

  const failFirst = (error) => {
    fail(error);
    live.changed(); // asks again
  };
  const tables = ask(`${path}/ranks`, {}, { signal }).then(table.draw, failFirst);
  // Without a choice, the sentence says which phase and steps to show.
  const verdictLoaded = verdict.found ? Promise.resolve() : verdict.load(signal);
  const pictures = Promise.all([
    (state.phase ? Promise.resolve() : verdictLoaded).then(loadHeat).then(loadStep),
    (Object.keys(chosenSteps()).length ? Promise.resolve() : verdictLoaded).then(loadTimeline),
    verdictLoaded,
  ]).catch(failFirst);
  Promise.allSettled([tables, pictures]).then(() => {
    if (signal.aborted) return;
    reveal();
    isLoaded = true;
    live.later();
  });

  return () => {
    aborted.abort();
    clearTimeout(verdictTimer);
    live.close();
    map.close();
    lanes.close();
    element.removeEventListener("report", onReport);
  };
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

const COLUMNS = [
  ["label", "Label", (row) => row.label, null],
  ["status", "State", (row) => h("span", { class: `chip ${row.status}`, title: row.reason }, row.status), null],
  ["exit", "Exit", (row) => row.exit ?? "–", null],
  ["step", "Step", (row) => orDash(row.step), "number"],
  ["steps_behind", "Behind", (row) => orDash(row.steps_behind), "number"],
  ["step_time_s", "Step time", (row) => secondsText(row.step_time_s), "number"],
  [
    "phase",
    "Phase",
    (row) => (row.open_phase ? `${row.open_phase} for ${secondsText(row.open_s)}` : row.is_over ? "–" : (row.phase ?? "")),
    null,
  ],
  [
    "gpu_utilization",
    "GPU",
    (row) => (row.gpu_utilization === null ? "–" : `${Math.round(row.gpu_utilization * 100)} %`),
    "number",
  ],
  ["gpu_memory_bytes", "GPU memory", (row) => bytesText(row.gpu_memory_bytes), "number"],
  ["memory_bytes", "Memory", (row) => bytesText(row.memory_bytes), "number"],
  ["node", "Node", (row) => row.node ?? "", null],
  ["seen_s", "Last seen", (row) => (row.is_over ? `ended ${agoOf(row.ended_s)}` : agoOf(row.seen_s)), "number"],
];

/** Build the table of labels. Its order is in the address. */
function labelTable(run, state, report) {
  const { query } = readAddress();
  let [sort, isDown] = [query.get("sort"), query.get("order") === "down"];
  let shown = ROWS_SHOWN;
  let rows = [];
  const head = h("tr");
  const body = h("tbody");
  const more = h("button", {
    hidden: true,
    onclick: () => {
      shown = rows.length;
      fill();
    },
  });
  const none = h("p", { class: "quiet", hidden: true });
  const element = h(
    "section",
    { class: "panel", "aria-label": "Labels" },
    h("h2", {}, "Labels"),
    h("div", { class: "scroll" }, h("table", { class: "grid" }, h("thead", {}, head), body)),
    none,
    more,
  );

  function order(name) {
    isDown = sort === name ? !isDown : false;
    sort = name;
    setParameters({ sort, order: isDown ? "down" : null });
    drawHead();
    fill();
  }

  function drawHead() {
    show(
      head,
      COLUMNS.map(([name, title, , kind]) =>
        h(
          "th",
          { class: kind, scope: "col", "aria-sort": sort === name ? (isDown ? "descending" : "ascending") : null },
          h(
            "button",
            { class: "bare", onclick: () => order(name) },
            title,
            sort === name ? (isDown ? " ▾" : " ▴") : "",
          ),
        ),
      ),
    );
  }

  function fill() {
    const column = COLUMNS.find(([name]) => name === sort)?.[0];
    const chosen = chosenLabels(report);
    // Later attempts of a label come after earlier ones.
    const exits = new Map(report.labels.map((row) => [row.label, exitText(row)]));
    for (const row of rows) row.exit = exits.get(row.label) || null;
    const sorted = rows.filter(({ label }) => chosen === null || chosen.includes(label));
    none.hidden = chosen === null || chosen.length > 0;
    none.textContent = none.hidden ? "" : noLabelsText(report);
    if (column) sorted.sort((a, b) => compare(a[column], b[column], isDown) || compare(a.place, b.place));
    show(
      body,
      sorted.slice(0, shown).map((row) =>
        h(
          "tr",
          { class: row.label === state.label ? "chosen" : null },
          COLUMNS.map(([name, , cell, kind]) =>
            name === "label"
              ? h(
                  "th",
                  { scope: "row" },
                  h(
                    "a",
                    { href: addressOf(["run", run, "console"], { labels: `=${row.label}` }), title: "its console" },
                    labelText(row.label),
                  ),
                )
              : h("td", { class: kind }, cell(row)),
          ),
        ),
      ),
    );
    more.hidden = sorted.length <= shown;
    more.textContent = `Show all ${countText(sorted.length, "label")}`;
  }

  drawHead();
  return {
    element,
    setReport(newReport) {
      report = newReport;
      fill();
    },
    draw(answer) {
      rows = objects(answer).map((row, place) => ({ ...row, place, is_over: row.ended_s !== null }));
      fill();
    },
  };
}

function compare(a, b, isDown = false) {
  if (a === null || b === null) return (a === null) - (b === null); // unknown values are last in both orders
  const by = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return isDown ? -by : by;
}

function orDash(value) {
  return value === null || value === undefined ? "–" : wholeText(value);
}

function agoOf(seconds) {
  if (seconds === null) return "–";
  return seconds < 1 ? "just now" : `${durationText(Math.round(seconds))} ago`;
}
