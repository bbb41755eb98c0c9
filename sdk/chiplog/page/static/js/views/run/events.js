// What happened: the failures of each round from the first one on, tracebacks, alerts, losses, and all events.

import { addressOf, setParameters } from "../../address.js";
import { ask, follow, objects, part } from "../../api.js";
import { h, notice, show } from "../../dom.js";
import { timeText } from "../../texts.js";

const EVENTS_MAX = 500;
const TRACEBACKS_MAX = 50;
const PAUSE_MS = 1000; // between two requests for what is new
const PAUSE_FACTOR = 5; // an answer that takes long is asked for less often
const LEVELS = ["error", "warning", "info", "debug"];

export async function open(element, run, query, firstReport) {
  const path = `runs/${part(run)}/events`;
  const aborted = new AbortController();
  const { signal } = aborted;
  const state = { kind: query.get("kind") ?? "", level: query.get("level") ?? "" };
  let report = firstReport;
  let answer = null;
  let tracebacks = [];

  const top = h("div");
  const filters = h("div", { class: "bar" });
  const body = h("tbody");
  const more = h("p", { class: "quiet" });
  const table = h("section", { class: "panel", "aria-label": "All events" }, h("h2", {}, "All events"), filters,
    h("div", { class: "scroll" }, h("table", { class: "grid" },
      h("thead", {}, h("tr", {}, ["Time", "Level", "Kind", "Label", "Message"].map((title) => h("th", { scope: "col" }, title)))), body)), more);
  show(element, top, table);

  async function load() {
    const asked = [ask(path, { ...state, limit: EVENTS_MAX }, { signal })];
    asked.push(ask(path, { kind: "traceback", limit: TRACEBACKS_MAX }, { signal }));
    const [events, found] = await Promise.all(asked);
    answer = events;
    tracebacks = objects(found);
    draw();
  }

  function draw() {
    const links = { console: (label, at) => addressOf(["run", run, "console"], { label, at }), ranks: (label) => addressOf(["run", run, "ranks"], { label }) };
    show(top,
      answer.failures.length ? answer.failures.map((failure) => failurePanel(failure, report, links, answer.failures.length > 1)) : null,
      tracebackPanel(tracebacks, links), alertPanel(report.alerts, links), lossPanel(report));
    drawFilters();
    const rows = objects(answer);
    show(body, rows.map((row) => eventRow(row, links)));
    const total = answer.kinds.filter((one) => (!state.kind || one.kind === state.kind) && (!state.level || one.level === state.level))
      .reduce((sum, one) => sum + one.n, 0);
    more.textContent = !rows.length ? "No event." : total > rows.length ? `The newest ${rows.length} of ${total.toLocaleString("en-US")}.` : "";
  }

  function drawFilters() {
    const counts = (name) => {
      const found = new Map();
      for (const row of answer.kinds) found.set(row[name], (found.get(row[name]) ?? 0) + row.n);
      return found;
    };
    const choice = (name, title, values) => {
      const found = counts(name);
      const select = h("select", { onchange: () => choose({ [name]: select.value }) },
        h("option", { value: "" }, `all ${title}s`),
        [...new Set([...values(found), state[name]])].filter(Boolean)
          .map((value) => h("option", { value, selected: value === state[name] }, `${value} (${found.get(value) ?? 0})`)));
      return h("label", {}, `${title[0].toUpperCase()}${title.slice(1)} `, select);
    };
    if (filters.contains(document.activeElement)) return; // an open list stays as it is
    show(filters, choice("kind", "kind", (found) => [...found.keys()].sort()), choice("level", "level", (found) => LEVELS.filter((level) => found.has(level))));
  }

  function choose(changes) {
    Object.assign(state, changes);
    setParameters(state);
    load().catch(fail);
  }

  function fail(error) {
    if (error.name === "AbortError") return;
    if (answer) notice(error.message, true);
    else show(top, h("p", { class: "error" }, error.message));
  }

  let timer = null;
  let isStale = false;
  let notBefore = 0;
  async function refresh() {
    const began = performance.now();
    isStale = false;
    await load().catch(fail);
    timer = null;
    notBefore = performance.now() + Math.max(PAUSE_MS, PAUSE_FACTOR * (performance.now() - began));
    if (!signal.aborted) later();
  }
  function later() {
    if (isStale && timer === null && !document.hidden) timer = setTimeout(refresh, Math.max(0, notBefore - performance.now()));
  }
  const onReport = (event) => {
    report = event.detail;
    if (answer) draw();
  };
  element.addEventListener("report", onReport);
  document.addEventListener("visibilitychange", later);
  await load();
  const unfollow = follow((change) => {
    if (change.error) return;
    isStale = true;
    later();
  });
  return () => {
    aborted.abort();
    clearTimeout(timer);
    unfollow();
    element.removeEventListener("report", onReport);
    document.removeEventListener("visibilitychange", later);
  };
}

/** Draw the failures of one round, the first one at time zero. */
function failurePanel(failure, report, links, hasRounds) {
  const first = { ...failure, after_s: 0, is_echo: !failure.is_cause };
  const all = [first, ...failure.others];
  const longest = Math.max(...all.map((one) => one.after_s), 0.001);
  const rows = all.map((one) => {
    const ended = report.labels.filter((row) => row.label === one.label);
    const label = ended.find((row) => row.attempt === failure.attempt) ?? ended.at(-1);
    const dot = h("i", { class: one.is_echo ? "echo" : null });
    dot.style.left = `${Math.max(0, one.after_s / longest) * 100}%`;
    return h("tr", {},
      h("th", { scope: "row" }, h("a", { href: links.ranks(one.label) }, one.label)),
      h("td", { class: "number" }, one === first ? "0 s" : `+${offsetText(one.after_s)}`),
      h("td", { class: "wide" }, h("div", { class: "failure-line" }, dot)),
      h("td", {}, one.is_echo ? h("span", { class: "chip" }, "echo") : h("span", { class: "chip failed" }, one === first ? "first" : "own cause")),
      h("td", {}, exitText(label)),
      h("td", { class: "number" }, label?.last_step?.toLocaleString("en-US") ?? "–"),
      h("td", {}, one.node ?? ""),
      h("td", { class: "message" }, one.reason ?? ""),
      h("td", {}, h("a", { href: links.console(one.label, one.ts) }, "last lines")));
  });
  const doubt = [];
  if (!failure.is_cause) doubt.push("Only echoes are known: something outside ended the labels.");
  if (!failure.is_certain) doubt.push(`Another label may have failed before it: times are exact to ${offsetText(failure.uncertainty_s)}.`);
  const n = failure.others.filter((one) => one.is_echo).length;
  return h("section", { class: "panel", "aria-label": "Failures" },
    h("h2", {}, hasRounds ? `Round ${failure.attempt}: ` : "", `${failure.label} failed first`, n ? `; ${n} ${n === 1 ? "echo" : "echoes"}` : ""),
    h("p", { class: "quiet" }, `Time zero is ${timeText(failure.ts)}. `, doubt.join(" ")),
    h("div", { class: "scroll" }, h("table", { class: "grid" },
      h("thead", {}, h("tr", {}, [["Label"], ["After", "number"], [""], [""], ["Exit"], ["Last step", "number"], ["Node"], ["Reason"], ["Console"]]
        .map(([title, kind]) => h("th", { class: kind, scope: "col" }, title)))),
      h("tbody", {}, rows))));
}

function tracebackPanel(rows, links) {
  if (!rows.length) return null;
  // The first one happened first; it is open, the others follow from it or are many.
  const oldest = [...rows].reverse();
  return h("section", { class: "panel", "aria-label": "Tracebacks" }, h("h2", {}, "Tracebacks"),
    oldest.map((row, at) => h("details", { open: at === 0 },
      h("summary", {}, h("a", { href: links.console(row.label, row.ts) }, row.label ?? row.node ?? "?"), ` ${timeText(row.ts)} `, h("span", { class: "error" }, row.message)),
      h("pre", {}, row.body?.traceback ?? JSON.stringify(row.body, null, 2)))),
    rows.length === TRACEBACKS_MAX ? h("p", { class: "quiet" }, `The newest ${TRACEBACKS_MAX}.`) : null);
}

function alertPanel(alerts, links) {
  if (!alerts?.length) return null;
  return h("section", { class: "panel", "aria-label": "Alerts" }, h("h2", {}, "Alerts"),
    h("div", { class: "scroll" }, h("table", { class: "grid" },
      h("thead", {}, h("tr", {}, [["Level"], ["Alert"], ["Times", "number"], ["Last"], ["Label"], ["Text"]].map(([title, kind]) => h("th", { class: kind, scope: "col" }, title)))),
      h("tbody", {}, alerts.map((alert) => h("tr", {},
        h("td", {}, levelChip(alert.level)), h("td", { class: "message" }, alert.title), h("td", { class: "number" }, alert.times.toLocaleString("en-US")),
        h("td", {}, timeText(alert.last_at)), h("td", {}, h("a", { href: links.console(alert.label, alert.last_at) }, alert.label ?? "")),
        h("td", { class: "message" }, alert.text ?? "")))))));
}

function lossPanel(report) {
  const lossy = report.labels.filter((row) => row.lost || row.pending === null);
  if (!lossy.length) return null;
  return h("section", { class: "panel", "aria-label": "Losses" }, h("h2", {}, "Losses"),
    h("div", { class: "scroll" }, h("table", { class: "grid" },
      h("thead", {}, h("tr", {}, [["Label"], ["Lost", "number"], ["Of", "number"], ["Reasons"]].map(([title, kind]) => h("th", { class: kind, scope: "col" }, title)))),
      h("tbody", {}, lossy.map((row) => h("tr", {},
        h("th", { scope: "row" }, row.attempt ? `${row.label}, attempt ${row.attempt}` : row.label),
        h("td", { class: "number" }, (row.lost ?? 0).toLocaleString("en-US")),
        h("td", { class: "number" }, row.produced?.toLocaleString("en-US") ?? "unknown"), h("td", { class: "message" }, row.reasons ?? "")))))));
}

function eventRow(row, links) {
  const who = row.label ?? row.node ?? "";
  return h("tr", {}, h("td", {}, timeText(row.ts)), h("td", {}, levelChip(row.level)), h("td", {}, row.kind),
    h("td", {}, row.label ? h("a", { href: links.console(row.label, row.ts) }, who) : who),
    h("td", { class: "message" }, row.message,
      row.body && Object.keys(row.body).length
        ? h("details", {}, h("summary", { class: "quiet small" }, "details"), h("pre", {}, row.body.traceback ?? JSON.stringify(row.body, null, 2))) : null));
}

function levelChip(level) {
  return h("span", { class: `chip ${level === "error" ? "failed" : level === "warning" ? "warn" : ""}` }, level);
}

function exitText(label) {
  if (!label) return "–";
  if (label.exit_signal !== null) return `signal ${label.exit_signal}`;
  return label.exit_code === null ? label.state : `exit ${label.exit_code}`;
}

function offsetText(seconds) {
  if (Math.abs(seconds) < 0.01) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  return Math.abs(seconds) < 300 ? `${Number(seconds.toPrecision(3))} s` : `${Math.round(seconds / 60)} min`;
}
