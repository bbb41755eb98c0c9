// What happened: the failures of each round from the first one on, tracebacks, alerts, losses, and all events.

import { h, show } from "../../dom.js";
import { quiet, titledPanel } from "../../elements.js";
import { objects } from "../../net/api.js";
import { agentActivity } from "../../net/live.js";
import { grid } from "../../tables/grid.js";
import { ansiPieces } from "../../text/ansi.js";
import { labelText, noLabelsText } from "../../text/labels.js";
import { countText, exitText, secondsText, timeText, wholeText } from "../../text/texts.js";
import { RunView } from "./run_view.js";

const EVENTS_MAX = 500;
const TRACEBACKS_MAX = 50;
const LABELS_SHOWN = 64; // of a round, until more are asked for
const LEVELS = ["error", "warning", "info", "debug"];
const ROLES = {
  first: ["failed", "failed first", "The first failure of this round that follows from no other"],
  echo: ["", "echo", "It ended because another label had failed"],
  cause: ["failed", "failed too", "It failed on its own, not because of another label"],
};

const GPU_HEAD = "GPU at its end"; // a column only if something is known of one
const ROUND_HEADS = [
  ["Time", "number"],
  ["Over time", "wide"],
  ["Label"],
  ["Role"],
  ["How it ended"],
  ["Last step", "number"],
  ["Node"],
  [GPU_HEAD],
  ["Reason, and last line of its console"],
];

export default class EventsTab extends RunView {
  state = Object.fromEntries(["kind", "level", "attempt"].map((name) => [name, this.query.get(name) ?? ""]));
  answer = null;
  round = null;
  labelsShown = LABELS_SHOWN;
  known = null; // digest of the events that are shown; null: others are chosen

  async start() {
    this.rounds = roundPanel(this.consoleOf, (attempt) => this.choose({ attempt }), () => {
      this.labelsShown = Infinity;
      this.drawRound();
    });
    this.tracebacks = tracebackPanel(this.consoleOf);
    this.alerts = h("div");
    this.losses = h("div");
    this.filters = h("div", { class: "bar" });
    this.body = h("tbody");
    this.more = h("p", { class: "quiet" });
    const table = grid([["Time"], ["Level"], ["Kind"], ["Label"], ["Message"]], this.body);
    this.failure = h("p", { class: "error", hidden: true });
    show(this.element, this.rounds.element, this.failure, this.tracebacks.element, this.alerts, this.losses, titledPanel("All events", this.filters, table, this.more));
    this.followReports();
    const isLoaded = await this.load();
    const mayGrow = agentActivity(() => this.report);
    this.live = this.follow(() => this.load(), { concerns: () => this.known === null || mayGrow() });
    if (!isLoaded) this.live.changed();
  }

  onLabels() {
    this.loadOthers();
  }

  onReport(before, hasOtherLabels) {
    if (hasOtherLabels) return;
    if (this.answer) this.drawReport();
    if (eventsOf(this.report) !== eventsOf(before)) this.live?.changed(); // also the last ones of a run that has ended
  }

  /** Return false after a failure. */
  async load() {
    const isNewest = this.begin("events");
    const { kind, level, attempt } = this.state;
    const label = this.labels;
    const { known } = this;
    const askTracebacks = () => this.ask(`${this.path}/events`, { kind: "traceback", label, limit: TRACEBACKS_MAX });
    try {
      const [events, failures, first] = await Promise.all([
        this.ask(`${this.path}/events`, { kind, level, label, limit: EVENTS_MAX, known }),
        this.report.first_failure || attempt ? this.ask(`${this.path}/failures`, { attempt }) : null,
        known ? null : askTracebacks(),
      ]);
      const found = known && events.rows ? await askTracebacks() : first; // what is known has not changed
      if (!isNewest()) return true;
      this.known = events.digest;
      this.round = failures;
      this.drawRound();
      this.drawReport();
      if (found) {
        // Without a label of this choice the answers are about all of them.
        const isNone = label?.length === 0;
        this.answer = events;
        this.tracebacks.draw(isNone ? [] : objects(found));
        this.drawEvents(isNone);
      }
      this.failure.hidden = true;
      this.succeed();
    } catch (error) {
      return isNewest() ? this.fail(error) : true;
    }
    return true;
  }

  fail(error) {
    this.failure.hidden = Boolean(this.answer);
    if (this.answer) return super.fail(error);
    show(this.failure, error.message);
    return false;
  }

  drawRound() {
    this.rounds.draw(this.round, this.labelsShown);
  }

  titleOf(kind) {
    return this.answer.kinds.find((one) => one.kind === kind)?.title ?? kind;
  }

  drawReport() {
    showOnce(this.alerts, this.report.alerts, (found) => alertPanel(found, this.consoleOf));
    showOnce(this.losses, lossesOf(this.report), lossPanel);
  }

  drawEvents(isNone) {
    this.drawFilters();
    const { kind, level } = this.state;
    const rows = isNone ? [] : objects(this.answer);
    showRows(this.body, rows, (row) => eventRow(row, this.titleOf(row.kind), this.consoleOf));
    const total = this.answer.kinds
      .filter((one) => (!kind || one.kind === kind) && (!level || one.level === level))
      .reduce((sum, one) => sum + one.n, 0);
    const cut = total > rows.length ? `The newest ${rows.length} of ${wholeText(total)}.` : "";
    this.more.textContent = isNone ? noLabelsText(this.report) : rows.length ? cut : "No event.";
  }

  drawFilters() {
    const counts = (name) => {
      const found = new Map();
      for (const row of this.answer.kinds) found.set(row[name], (found.get(row[name]) ?? 0) + row.n);
      return found;
    };
    const choice = (name, values, textOf = (value) => value) => {
      const found = counts(name);
      const chosen = this.state[name];
      const option = (value) => h("option", { value, selected: value === chosen }, `${textOf(value)} (${found.get(value) ?? 0})`);
      const select = h(
        "select",
        { onchange: () => this.choose({ [name]: select.value }) },
        h("option", { value: "" }, `all ${name}s`),
        [...new Set([...values(found), chosen])].filter(Boolean).map(option),
      );
      return h("label", {}, `${name[0].toUpperCase()}${name.slice(1)} `, select);
    };
    if (this.filters.contains(document.activeElement)) return; // an open list stays as it is
    show(
      this.filters,
      choice("kind", (found) => [...found.keys()].sort(), (kind) => this.titleOf(kind)),
      choice("level", (found) => LEVELS.filter((level) => found.has(level))),
    );
  }

  choose(changes) {
    this.change(changes);
    this.loadOthers();
  }

  loadOthers() {
    this.known = null;
    this.load();
  }
}

const eventsOf = (report) => JSON.stringify([report.events, report.alerts, report.completeness, report.first_failure]);

/** Draw a part again only if it has changed: what a reader has opened or selected in it stays. */
function showOnce(element, value, draw) {
  const text = JSON.stringify(value);
  if (element.shown === text) return;
  element.shown = text;
  show(element, draw(value));
}

/** Show rows, and keep the elements of those that are shown already. */
function showRows(parent, rows, draw) {
  const old = Map.groupBy(parent.children, (element) => element.row);
  const elements = rows.map((row, at) => {
    const text = JSON.stringify(row);
    const element = old.get(text)?.shift() ?? draw(row, at);
    element.row = text;
    return element;
  });
  for (const gone of [...old.values()].flat()) gone.remove();
  let next = parent.firstChild;
  for (const element of elements) {
    if (element === next) next = next.nextSibling;
    else parent.insertBefore(element, next);
  }
}

/** Return a panel of all labels of a round, the first failure at time zero. */
function roundPanel(consoleOf, onChoose, onMore) {
  const title = h("h2");
  const choice = h("span");
  const times = h("p", { class: "quiet" });
  const table = h("div");
  const body = h("tbody");
  const more = h("button", { onclick: onMore });
  const element = h(
    "section",
    { class: "panel", "aria-label": "Failures", hidden: true },
    h("div", { class: "bar" }, title, choice),
    times,
    table,
    more,
  );

  function drawChoice({ rounds, attempt }) {
    const option = (number) => h("option", { value: number, selected: number === attempt }, `round ${number}`);
    const onchange = ({ target }) => onChoose(target.value);
    return rounds.length > 1 ? h("select", { "aria-label": "Round", onchange }, rounds.map(option)) : null;
  }

  function drawTable(hasGpus) {
    const heads = hasGpus ? ROUND_HEADS : ROUND_HEADS.filter(([head]) => head !== GPU_HEAD);
    return grid(heads, body, { table: { class: "grid ends" } });
  }

  function draw(round, nShown) {
    element.hidden = !round?.first;
    if (element.hidden) return;
    const { rounds, first, labels } = round;
    const hasGpus = labels.some(({ gpu }) => gpu);
    showOnce(title, roundTitle(round), (text) => text);
    showOnce(choice, { rounds, attempt: first.attempt }, drawChoice);
    showOnce(times, `Times are counted from the first failure, at ${timeText(first.ts)}. ${doubts(round)}`, (text) => text);
    showOnce(table, hasGpus, drawTable);
    const after = labels.map((row) => row.after_s).filter((seconds) => seconds !== null);
    const [least, most] = [Math.min(0, ...after), Math.max(0.001, ...after)];
    const rows = labels.slice(0, nShown).map((row) => [row, (row.after_s - least) / (most - least), hasGpus]);
    showRows(body, rows, (row) => endRow(...row, consoleOf));
    more.hidden = labels.length <= nShown;
    more.textContent = `Show all ${countText(labels.length, "label")}`;
  }
  return { element, draw };
}

function roundTitle({ first, labels }) {
  const counts = [
    ["cause", "failed too"],
    ["echo", "ended because of it"],
  ]
    .map(([role, words]) => [labels.filter((row) => row.role === role).length, words])
    .filter(([n]) => n)
    .map(([n, words]) => `${wholeText(n)} ${n === 1 ? "other" : "others"} ${words}`);
  return [`${labelText(first.label)} failed${counts.length ? " first" : ""}`, ...counts].join("; ");
}

/** Return what limits the certainty of an order of failures. */
function doubts({ first, labels }) {
  const words = [];
  if (labels.some(({ role }) => role === "echo")) words.push("An echo ended because another label had failed.");
  if (!first.is_cause) words.push("No label failed on its own: something outside ended them.");
  if (!first.is_certain)
    words.push(`Another label may have failed before it: times are exact to ${secondsText(first.uncertainty_s)}.`);
  return words.join(" ");
}

function endRow(row, share, hasGpus, consoleOf) {
  const [kind, text, title] = ROLES[row.role] ?? [];
  const dot = h("i", { class: row.role === "first" || row.role === "cause" ? null : "echo" });
  dot.style.left = `${share * 100}%`;
  const line =
    row.last_line === null
      ? ""
      : ansiPieces(row.last_line)
          .map((piece) => piece.text)
          .join("");
  return h(
    "tr",
    { class: row.role === "first" ? "chosen" : null },
    h("td", { class: "number" }, row.after_s === null ? "" : afterText(row.after_s)),
    h("td", { class: "wide" }, row.after_s === null ? null : h("div", { class: "failure-line" }, dot)),
    h(
      "th",
      { scope: "row" },
      h("a", { href: consoleOf(row.label, row.ts), title: "its console at that time" }, attemptText(row)),
    ),
    h("td", {}, text ? h("span", { class: `chip ${kind}`, title }, text) : ""),
    h("td", {}, h("span", { class: `chip ${row.state}` }, row.state), ` ${exitText(row)}`),
    h("td", { class: "number" }, row.last_step === null ? "–" : wholeText(row.last_step)),
    h("td", {}, row.node ?? ""),
    hasGpus && h(
      "td",
      { class: "message gpu" },
      gpuTexts(row.gpu).map(([isBad, words], at) => [
        at ? ", " : "",
        h("span", { class: isBad ? "error" : null }, words),
      ]),
    ),
    h(
      "td",
      { class: "message last-line" },
      row.reason ? h("div", {}, row.reason) : null,
      line && line !== row.reason ? h("div", { class: "line-text clip", title: line }, line) : null,
    ),
  );
}

function afterText(seconds) {
  if (seconds === 0) return "0 s";
  return `${seconds > 0 ? "+" : "−"}${secondsText(Math.abs(seconds), 3)}`;
}

/** Return what is known about the GPUs of a label at its end, the bad first: [is it bad, text]. */
function gpuTexts(gpu) {
  if (!gpu) return [[false, "–"]];
  const found = (gpu.events ?? []).map((text) => [true, text]);
  if (gpu.throttled) found.push([true, `throttled: ${gpu.throttled}`]);
  if (gpu.temperature_c != null) found.push([false, `${Math.round(gpu.temperature_c)} °C`]);
  if (gpu.memory_share != null) found.push([gpu.memory_share > 0.98, `memory ${Math.round(gpu.memory_share * 100)} %`]);
  if (gpu.utilization != null) found.push([false, `${Math.round(gpu.utilization * 100)} % busy`]);
  return found;
}

function tracebackPanel(consoleOf) {
  const list = h("div");
  const bound = quiet(`The newest ${TRACEBACKS_MAX}.`);
  const title = h("h2", {}, "Tracebacks");
  const element = h("section", { class: "panel", "aria-label": "Tracebacks", hidden: true }, title, list, bound);

  function draw(rows) {
    element.hidden = !rows.length;
    bound.hidden = rows.length < TRACEBACKS_MAX;
    // The first one happened first; it is open, the others follow from it or are many.
    showRows(list, [...rows].reverse(), (row, at) =>
      h(
        "details",
        { open: at === 0 },
        h(
          "summary",
          {},
          h("strong", {}, labelText(row.label) ?? row.node ?? "?"),
          ` ${timeText(row.ts)} `,
          h("span", { class: "error" }, row.message),
        ),
        row.label ? h("p", {}, h("a", { href: consoleOf(row.label, row.ts) }, "Its console at that time")) : null,
        h("pre", {}, row.body?.traceback ?? JSON.stringify(row.body, null, 2)),
      ),
    );
  }
  return { element, draw };
}

function alertPanel(alerts, consoleOf) {
  if (!alerts.length) return null;
  const rows = alerts.map(({ level, title, times, last_at: at, label, text }) => [
    levelChip(level),
    title,
    wholeText(times),
    timeText(at),
    h("a", { href: consoleOf(label, at) }, labelText(label) ?? ""),
    text ?? "",
  ]);
  return titledPanel("Alerts", grid([["Level"], ["Alert", "message"], ["Count", "number"], ["Last"], ["Label"], ["Text", "message"]], rows));
}

/** Return the labels that have lost events, or may have. */
function lossesOf({ labels }) {
  return labels
    .filter((row) => row.lost || row.pending === null)
    .map(({ label, attempt, lost, produced, reasons }) => ({ label, attempt, lost, produced, reasons }));
}

function lossPanel(lossy) {
  if (!lossy.length) return null;
  const rows = lossy.map((row) => [
    attemptText(row),
    wholeText(row.lost ?? 0),
    row.produced === null ? "unknown" : wholeText(row.produced),
    row.reasons ?? "",
  ]);
  const heads = [["Label", "row"], ["Events lost", "number"], ["Events produced", "number"], ["Why", "message"]];
  return h("section", { class: "panel", "aria-label": "Losses" }, h("h2", {}, "Lost or unknown data"), grid(heads, rows));
}

/** Return a label with its attempt, if that is not the first. */
function attemptText({ label, attempt }) {
  return attempt ? `${labelText(label)}, attempt ${attempt}` : labelText(label);
}

function eventRow(row, title, consoleOf) {
  const who = labelText(row.label) ?? row.node ?? "";
  return h(
    "tr",
    {},
    h("td", {}, timeText(row.ts)),
    h("td", {}, levelChip(row.level)),
    h("td", { title: row.kind }, title),
    h("td", {}, row.label ? h("a", { href: consoleOf(row.label, row.ts) }, who) : who),
    h(
      "td",
      { class: "message" },
      row.body?.logger ? h("span", { class: "quiet" }, `${row.body.logger}: `) : null,
      row.message,
      row.body?.advice ? h("div", {}, `To do: ${row.body.advice}`) : null,
      row.body && Object.keys(row.body).length
        ? h(
            "details",
            {},
            h("summary", { class: "quiet small" }, "details"),
            h("pre", {}, row.body.traceback ?? JSON.stringify(row.body, null, 2)),
          )
        : null,
    ),
  );
}

function levelChip(level) {
  return h("span", { class: `chip ${level === "error" ? "failed" : level === "warning" ? "warn" : ""}` }, level);
}
