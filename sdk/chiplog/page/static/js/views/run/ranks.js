// Ranks beside each other: a sentence on who was slow, a heat map of rank and step, the phases of a step, all labels.

import { addressOf, readAddress, setParameters } from "../../address.js";
import { ask, follow, objects, part } from "../../api.js";
import { h, show } from "../../dom.js";
import { heatMap, secondsText } from "./heat_map.js";

const PAUSE_MS = 1000; // between two requests for what is new
const VERDICT_PAUSE_MS = 10000; // it reads all phases of the run
const OVERLAP_COLUMNS = 16; // asked for again; all of them are with each sentence
const PAUSE_FACTOR = 5; // an answer that takes long is asked for less often
const ROWS_SHOWN = 64; // of the table, until more are asked for

/** The last sentence, so that a link within the view is drawn at once. */
let known = null;

export async function open(element, run, query) {
  const path = `runs/${part(run)}`;
  const aborted = new AbortController();
  const { signal } = aborted;
  const state = readState(query);
  let verdict = known?.run === run ? known.verdict : null;
  let heat = null;
  let turn = 0; // of the heat map: an answer for what is no longer chosen is not drawn

  const sentence = h("section", { class: "verdict", "aria-label": "Who was slow" }, h("p", { class: "quiet" }, "Comparing the labels…"));
  const phases = h("select", { "aria-label": "Phase", onchange: () => go({ phase: phases.value }) });
  const whole = h("button", { onclick: () => go({ first: null, last: null }) }, "All steps");
  const range = h("span", { class: "quiet" });
  const map = heatMap({
    onChoose: (label, step) => go({ label, step }),
    onRange: (first, last) => go({ first, last }),
  });
  const mapPanel = h("section", { class: "panel", hidden: true, "aria-label": "Excess over the median" },
    h("div", { class: "bar" }, h("h2", {}, "Excess over the median of each step"), h("label", {}, "Phase ", phases), range, whole),
    map.element);
  const stepPanel = h("section", { class: "panel step", hidden: true, "aria-label": "Phases of a step" });
  const table = labelTable(run, state);
  show(element, sentence, mapPanel, stepPanel, table.element);

  function go(changes) {
    Object.assign(state, changes);
    setParameters(changes);
    if ("phase" in changes || "first" in changes || "last" in changes) heat = null;
    if (!heat) loadHeat().catch(fail);
    if ("step" in changes || "label" in changes) {
      map.mark(state);
      loadStep().catch(fail);
    }
  }

  function fail(error) {
    if (error.name !== "AbortError") show(sentence, h("p", { class: "error" }, error.message));
  }

  async function loadVerdict() {
    verdict = await ask(`${path}/verdict`, {}, { signal });
    known = { run, verdict };
    drawVerdict();
  }

  function drawVerdict() {
    const linked = (parts) =>
      parts.map(({ text, link }) =>
        link ? h("a", { href: addressOf(["run", run, "ranks"], link), onclick: (event) => follows(event, link) }, text) : text,
      );
    show(
      sentence,
      verdict.parts.length
        ? h("p", { class: verdict.is_slow ? "slow" : "even" }, linked(verdict.parts))
        : h("p", { class: "quiet" }, "No phases of two labels at the same step: nothing to compare. ",
            h("code", {}, "run.step()"), " and ", h("code", {}, "run.phase(\"data\")"), " record them."),
      verdict.others.length ? h("ul", { class: "quiet" }, verdict.others.map((parts) => h("li", {}, linked(parts)))) : null,
    );
  }

  function follows(event, link) {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const changes = { phase: null, first: null, last: null, ...link };
    if (link.label) changes.step ??= Math.floor((link.first + link.last) / 2);
    // Some steps before and after, so that the difference is seen.
    const room = Math.max(10, Math.round((link.last - link.first + 1) / 4));
    if ("first" in link) Object.assign(changes, { first: Math.max(link.first - room, 0), last: link.last + room });
    go(changes);
    mapPanel.scrollIntoView({ block: "nearest" });
  }

  const chosenPhase = () => state.phase ?? verdict?.culprit?.phase ?? null;
  const bounds = () => ({ phase: chosenPhase(), first: state.first, last: state.last, columns: map.columns() });

  async function loadHeat() {
    const mine = ++turn;
    mapPanel.hidden = false;
    if (!heat) show(range, "Reading the phases…");
    let answer;
    try {
      answer = await ask(`${path}/heat`, bounds(), { signal });
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
    const answer = inSeconds(await ask(`${path}/heat`, { ...bounds(), since: from }, { signal }));
    if (mine !== turn) return;
    const isSame = answer.width === heat.width && answer.labels.length === heat.labels.length;
    if (!isSame || answer.start !== from || answer.phase !== heat.phase) return loadHeat();
    heat = joined(heat, answer);
    drawHeat();
  }

  function drawHeat() {
    show(phases, heat.phases.map((name) => h("option", { value: name, selected: name === heat.phase }, name)));
    const isZoomed = state.first !== null || state.last !== null;
    whole.hidden = !isZoomed;
    const last = Math.min(heat.start + heat.n_columns * heat.width, heat.last_step + 1) - 1;
    show(range, `steps ${number(Math.max(heat.start, heat.first_step))} to ${number(last)}`,
      heat.width > 1 ? `, ${heat.width} in a column` : "", heat.per_row > 1 ? `, ${heat.per_row} labels in a row` : "",
      heat.width > 1 || heat.per_row > 1 ? ": the largest is shown" : "");
    map.draw(heat, state);
  }

  async function loadStep() {
    stepPanel.hidden = state.step === null;
    if (state.step === null) return;
    const { step, label } = state;
    const answer = await ask(`${path}/step`, { step, label }, { signal });
    if (state.step === step && state.label === label) drawStep(stepPanel, run, answer, state, () => go({ step: null, label: null }));
  }

  // Live: a second between two answers at least, longer where they take long; nothing while the tab is hidden.
  let isBusy = false;
  let isStale = false;
  let timer = null;
  let verdictAt = performance.now();
  let verdictTimer = null;
  async function refresh() {
    timer = null;
    if (document.hidden) return;
    isBusy = true;
    isStale = false;
    const began = performance.now();
    try {
      table.draw(await ask(`${path}/ranks`, {}, { signal }));
      if (heat && state.last === null) await growHeat();
      else if (!heat) await loadHeat();
      if (began - verdictAt > VERDICT_PAUSE_MS) {
        await loadVerdict();
        await loadHeat();
        verdictAt = performance.now();
      } else {
        // Also after the last change of the run.
        clearTimeout(verdictTimer);
        verdictTimer = setTimeout(() => changed({}), VERDICT_PAUSE_MS - (began - verdictAt) + 1);
      }
    } catch (error) {
      fail(error);
    }
    isBusy = false;
    if (!signal.aborted) later(Math.max(PAUSE_MS, PAUSE_FACTOR * (performance.now() - began)));
  }
  let notBefore = 0;
  function later(pause) {
    if (pause) notBefore = performance.now() + pause;
    if (!isStale || isBusy || timer !== null || document.hidden) return;
    timer = setTimeout(refresh, Math.max(0, notBefore - performance.now()));
  }
  const changed = (change) => {
    if (change.error) return;
    isStale = true;
    later(0);
  };
  const onVisible = () => later(0);
  document.addEventListener("visibilitychange", onVisible);

  if (verdict) drawVerdict();
  const tables = ask(`${path}/ranks`, {}, { signal }).then(table.draw, fail);
  const pictures = (verdict ? Promise.resolve() : loadVerdict()).then(loadHeat).then(loadStep).catch(fail);
  let unfollow = () => {};
  Promise.allSettled([tables, pictures]).then(() => {
    if (!signal.aborted) unfollow = follow(changed);
  });

  return () => {
    aborted.abort();
    clearTimeout(timer);
    clearTimeout(verdictTimer);
    unfollow();
    map.close();
    document.removeEventListener("visibilitychange", onVisible);
  };
}

function readState(query) {
  const whole = (name) => (/^-?\d{1,15}$/.test(query.get(name) ?? "") ? Number(query.get(name)) : null);
  return { phase: query.get("phase"), label: query.get("label"), step: whole("step"), first: whole("first"), last: whole("last") };
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
  return { ...next, start: old.start, n_columns: n, excess: rows("excess"), label: rows("label"), step: rows("step"), typical_s: typical };
}

/** Draw the phases of one step, a bar for each label, the chosen label first. */
function drawStep(panel, run, answer, state, onClose) {
  const bars = new Map();
  for (const row of objects(answer)) {
    if (!bars.has(row.label)) bars.set(row.label, []);
    bars.get(row.label).push(row);
  }
  // Work first, then what may be waiting: a slow phase moves the others to the right.
  const isWait = new Map(objects(answer).filter((row) => row.phase !== "step").map((row) => [row.phase, row.may_wait]));
  const names = [...isWait.keys()].sort((a, b) => isWait.get(a) - isWait.get(b) || (a < b ? -1 : 1));
  const total = (rows) => rows.filter((row) => row.phase !== "step").reduce((sum, row) => sum + row.seconds, 0);
  const longest = Math.max(...[...bars.values()].map(total), ...objects(answer).filter((row) => row.phase === "step").map((row) => row.seconds), 1e-9);
  const move = (by) => h("a", { class: "button", href: addressOf(["run", run, "ranks"], { ...state, step: state.step + by }), "aria-label": by < 0 ? "Step before" : "Step after" }, by < 0 ? "‹" : "›");
  const consoleLink = (label, rows, text = label) => {
    const at = rows.map((row) => row.ts).sort().at(-1);
    return h("a", { href: addressOf(["run", run, "console"], { label, at }), title: `console of ${label} at this step` }, text);
  };
  const own = state.label ? bars.get(state.label) : null;
  show(
    panel,
    h("div", { class: "bar" }, h("h2", {}, `Phases of step ${number(answer.step)}`), move(-1), move(1),
      names.map((name, at) => h("span", { class: "small" }, h("span", { class: `heat-swatch series-${(at % 8) + 1}` }), ` ${name}`)),
      h("button", { onclick: onClose }, "Close")),
    own
      ? h("p", {}, h("strong", {}, state.label), ": ",
          own.filter((row) => row.phase !== "step").sort((a, b) => b.seconds - b.typical_s - (a.seconds - a.typical_s)).map((row, at) => [at ? ", " : "", h("span", { class: row.seconds > 1.2 * row.typical_s ? "error" : "" }, `${row.phase} ${secondsText(row.seconds)}`), ` (median ${secondsText(row.typical_s)})`]),
          ". ", consoleLink(state.label, own, "Its console at that time"))
      : state.label ? h("p", { class: "quiet" }, `${state.label} has no phases at this step.`) : null,
    bars.size
      ? h("div", { class: "phase-bars" }, [...bars].map(([label, rows]) =>
          h("div", { class: label === state.label ? "phase-row chosen" : "phase-row" },
            h("span", { class: "clip" }, consoleLink(label, rows)),
            h("span", { class: "phase-bar" }, names.map((name, at) => {
              const row = rows.find((one) => one.phase === name);
              if (!row) return null;
              const piece = h("span", { class: `series-${(at % 8) + 1}`, title: `${label} ${name}: ${secondsText(row.seconds)}, median ${secondsText(row.typical_s)}` });
              piece.style.width = `${(row.seconds / longest) * 100}%`;
              return piece;
            })),
            h("span", { class: "number" }, secondsText(total(rows) || rows[0].seconds)))))
      : h("p", { class: "quiet" }, "No label has phases at this step."),
    bars.size < answer.n_labels ? h("p", { class: "quiet" }, `${bars.size} of ${answer.n_labels} labels: those that worked longest.`) : null,
  );
}

const COLUMNS = [
  ["label", "Label", (row) => row.label, null],
  ["status", "State", (row) => h("span", { class: `chip ${row.status}`, title: row.reason }, row.status), null],
  ["step", "Step", (row) => number(row.step), "number"],
  ["steps_behind", "Behind", (row) => number(row.steps_behind), "number"],
  ["step_time_s", "Step time", (row) => secondsText(row.step_time_s), "number"],
  ["phase", "Phase", (row) => (row.open_phase ? `${row.open_phase} for ${secondsText(row.open_s)}` : row.phase ?? ""), null],
  ["gpu_utilization", "GPU", (row) => (row.gpu_utilization === null ? "–" : `${Math.round(row.gpu_utilization * 100)} %`), "number"],
  ["gpu_memory_bytes", "GPU memory", (row) => bytes(row.gpu_memory_bytes), "number"],
  ["memory_bytes", "Memory", (row) => bytes(row.memory_bytes), "number"],
  ["node", "Node", (row) => row.node ?? "", null],
  ["seen_s", "Last seen", (row) => (row.is_over ? `ended ${ago(row.ended_s)}` : ago(row.seen_s)), "number"],
];

/** Build the table of labels. Its order is in the address. */
function labelTable(run, state) {
  const { query } = readAddress();
  let [sort, isDown] = [query.get("sort"), query.get("order") === "down"];
  let shown = ROWS_SHOWN;
  let rows = [];
  const head = h("tr");
  const body = h("tbody");
  const more = h("button", { hidden: true, onclick: () => { shown = rows.length; fill(); } });
  const element = h("section", { class: "panel", "aria-label": "Labels" }, h("h2", {}, "Labels"),
    h("div", { class: "scroll" }, h("table", { class: "grid" }, h("thead", {}, head), body)), more);

  function order(name) {
    isDown = sort === name ? !isDown : false;
    sort = name;
    setParameters({ sort, order: isDown ? "down" : null });
    drawHead();
    fill();
  }

  function drawHead() {
    show(head, COLUMNS.map(([name, title, , kind]) =>
      h("th", { class: kind, scope: "col", "aria-sort": sort === name ? (isDown ? "descending" : "ascending") : null },
        h("button", { class: "bare", onclick: () => order(name) }, title, sort === name ? (isDown ? " ▾" : " ▴") : ""))));
  }

  function fill() {
    const column = COLUMNS.find(([name]) => name === sort)?.[0];
    const sorted = [...rows];
    if (column) sorted.sort((a, b) => compare(a[column], b[column], isDown) || compare(a.place, b.place));
    show(body, sorted.slice(0, shown).map((row) =>
      h("tr", { class: row.label === state.label ? "chosen" : null }, COLUMNS.map(([name, , cell, kind]) =>
        name === "label"
          ? h("th", { scope: "row" }, h("a", { href: addressOf(["run", run, "console"], { label: row.label }), title: "its console" }, row.label))
          : h("td", { class: kind }, cell(row))))));
    more.hidden = sorted.length <= shown;
    more.textContent = `Show all ${sorted.length}`;
  }

  drawHead();
  return {
    element,
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

function number(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en-US");
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const at = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), 4);
  return `${(value / 1024 ** at).toFixed(at ? 1 : 0)} ${units[at]}`;
}

function ago(value) {
  if (value === null || value === undefined) return "–";
  if (value < 90) return `${Math.round(value)} s ago`;
  if (value < 5400) return `${Math.round(value / 60)} min ago`;
  return value < 172800 ? `${Math.round(value / 3600)} h ago` : `${Math.round(value / 86400)} days ago`;
}
