// What happened: the failures of each round from the first one on, tracebacks, alerts, losses, and all events.

import { addressOf, setParameters } from "../../address.js";
import { ansiPieces } from "../../ansi.js";
import { ask, objects, part } from "../../api.js";
import { h, notice, show } from "../../dom.js";
import { grid } from "../../grid.js";
import { chosenLabels, noLabelsText, onOtherLabels } from "../../labels.js";
import { liveRefresh } from "../../live.js";
import { countText, exitText, secondsText, timeText, wholeText } from "../../texts.js";

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

export async function open(element, run, query, firstReport) {
  const path = `runs/${part(run)}`;
  const aborted = new AbortController();
  const { signal } = aborted;
  const state = Object.fromEntries(["kind", "level", "attempt"].map((name) => [name, query.get(name) ?? ""]));
  let report = firstReport;
  let answer = null;
  let tracebacks = [];
  let isNone = false;
  let round = null;
  let labelsShown = LABELS_SHOWN;

  const top = h("div");
  const rounds = h("div");
  const filters = h("div", { class: "bar" });
  const body = h("tbody");
  const more = h("p", { class: "quiet" });
  const table = h(
    "section",
    { class: "panel", "aria-label": "All events" },
    h("h2", {}, "All events"),
    filters,
    grid([["Time"], ["Level"], ["Kind"], ["Label"], ["Message"]], body),
    more,
  );
  show(element, rounds, top, table);

  async function load() {
    const { kind, level, attempt } = state;
    const label = chosenLabels(report);
    const [events, found, failures] = await Promise.all([
      ask(`${path}/events`, { kind, level, label, limit: EVENTS_MAX }, { signal }),
      ask(`${path}/events`, { kind: "traceback", label, limit: TRACEBACKS_MAX }, { signal }),
      ask(`${path}/failures`, { attempt }, { signal }),
    ]);
    // Without a label of this choice the answer is about all of them.
    isNone = label?.length === 0;
    answer = events;
    tracebacks = isNone ? [] : objects(found);
    if (JSON.stringify(failures) !== JSON.stringify(round)) {
      round = failures;
      drawRound();
    }
    draw();
  }

  const consoleOf = (label, at) => addressOf(["run", run, "console"], { labels: `=${label}`, at });

  function drawRound() {
    const choice = h(
      "select",
      { "aria-label": "Round", onchange: () => choose({ attempt: choice.value }) },
      round.rounds.map((number) =>
        h("option", { value: number, selected: number === round.first?.attempt }, `round ${number}`),
      ),
    );
    show(
      rounds,
      round.first
        ? roundPanel(round, round.rounds.length > 1 ? choice : null, consoleOf, labelsShown, () => {
            labelsShown = Infinity;
            drawRound();
          })
        : null,
    );
  }

  const titleOf = (kind) => answer.kinds.find((one) => one.kind === kind)?.title ?? kind;

  function draw() {
    show(top, tracebackPanel(tracebacks, consoleOf), alertPanel(report.alerts, consoleOf), lossPanel(report));
    drawFilters();
    const rows = isNone ? [] : objects(answer);
    show(
      body,
      rows.map((row) => eventRow(row, titleOf(row.kind), consoleOf)),
    );
    const total = answer.kinds
      .filter((one) => (!state.kind || one.kind === state.kind) && (!state.level || one.level === state.level))
      .reduce((sum, one) => sum + one.n, 0);
    if (isNone) more.textContent = noLabelsText(report);
    else
      more.textContent = !rows.length
        ? "No event."
        : total > rows.length
          ? `The newest ${rows.length} of ${wholeText(total)}.`
          : "";
  }

  function drawFilters() {
    const counts = (name) => {
      const found = new Map();
      for (const row of answer.kinds) found.set(row[name], (found.get(row[name]) ?? 0) + row.n);
      return found;
    };
    const choice = (name, title, values, textOf = (value) => value) => {
      const found = counts(name);
      const select = h(
        "select",
        { onchange: () => choose({ [name]: select.value }) },
        h("option", { value: "" }, `all ${title}s`),
        [...new Set([...values(found), state[name]])]
          .filter(Boolean)
          .map((value) =>
            h("option", { value, selected: value === state[name] }, `${textOf(value)} (${found.get(value) ?? 0})`),
          ),
      );
      return h("label", {}, `${title[0].toUpperCase()}${title.slice(1)} `, select);
    };
    if (filters.contains(document.activeElement)) return; // an open list stays as it is
    show(
      filters,
      choice("kind", "kind", (found) => [...found.keys()].sort(), titleOf),
      choice("level", "level", (found) => LEVELS.filter((level) => found.has(level))),
    );
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

  const changeLabels = onOtherLabels(report, () => load().catch(fail));
  const onReport = (event) => {
    report = event.detail;
    if (!changeLabels(report) && answer) draw();
  };
  element.addEventListener("report", onReport);
  await load();
  const live = liveRefresh(() => load().catch(fail));
  return () => {
    aborted.abort();
    live.close();
    element.removeEventListener("report", onReport);
  };
}

/** Draw all labels of a round, the first failure at time zero. */
function roundPanel({ first, labels }, choice, consoleOf, nShown, onMore) {
  const times = labels.map((row) => row.after_s).filter((after) => after !== null);
  const [least, most] = [Math.min(0, ...times), Math.max(0.001, ...times)];
  const doubt = [];
  if (labels.some(({ role }) => role === "echo")) doubt.push("An echo ended because another label had failed.");
  if (!first.is_cause) doubt.push("No label failed on its own: something outside ended them.");
  if (!first.is_certain)
    doubt.push(`Another label may have failed before it: times are exact to ${secondsText(first.uncertainty_s)}.`);
  const counts = [
    ["cause", "failed, too"],
    ["echo", "ended because of it"],
  ]
    .map(([role, words]) => [labels.filter((row) => row.role === role).length, words])
    .filter(([n]) => n)
    .map(([n, words]) => `${wholeText(n)} ${n === 1 ? "other" : "others"} ${words}`);
  const hasGpus = labels.some(({ gpu }) => gpu);
  return h(
    "section",
    { class: "panel", "aria-label": "Failures" },
    h("div", { class: "bar" }, h("h2", {}, [`${first.label} failed${counts.length ? " first" : ""}`, ...counts].join("; ")), choice),
    h("p", { class: "quiet" }, `Times are counted from the first failure, at ${timeText(first.ts)}. `, doubt.join(" ")),
    grid(
      hasGpus ? ROUND_HEADS : ROUND_HEADS.filter(([title]) => title !== GPU_HEAD),
      h(
        "tbody",
        {},
        labels.slice(0, nShown).map((row) => endRow(row, (row.after_s - least) / (most - least), hasGpus, consoleOf)),
      ),
      { table: { class: "grid ends" } },
    ),
    labels.length > nShown ? h("button", { onclick: onMore }, `Show all ${countText(labels.length, "label")}`) : null,
  );
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
      h(
        "a",
        { href: consoleOf(row.label, row.ts), title: "its console at that time" },
        row.attempt ? `${row.label}, attempt ${row.attempt}` : row.label,
      ),
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

function tracebackPanel(rows, consoleOf) {
  if (!rows.length) return null;
  // The first one happened first; it is open, the others follow from it or are many.
  const oldest = [...rows].reverse();
  return h(
    "section",
    { class: "panel", "aria-label": "Tracebacks" },
    h("h2", {}, "Tracebacks"),
    oldest.map((row, at) =>
      h(
        "details",
        { open: at === 0 },
        h(
          "summary",
          {},
          h("strong", {}, row.label ?? row.node ?? "?"),
          ` ${timeText(row.ts)} `,
          h("span", { class: "error" }, row.message),
        ),
        row.label ? h("p", {}, h("a", { href: consoleOf(row.label, row.ts) }, "Its console at that time")) : null,
        h("pre", {}, row.body?.traceback ?? JSON.stringify(row.body, null, 2)),
      ),
    ),
    rows.length === TRACEBACKS_MAX ? h("p", { class: "quiet" }, `The newest ${TRACEBACKS_MAX}.`) : null,
  );
}

function alertPanel(alerts, consoleOf) {
  if (!alerts?.length) return null;
  return h(
    "section",
    { class: "panel", "aria-label": "Alerts" },
    h("h2", {}, "Alerts"),
    grid(
      [["Level"], ["Alert"], ["How often", "number"], ["Last"], ["Label"], ["Text"]],
      h(
        "tbody",
        {},
        alerts.map((alert) =>
          h(
            "tr",
            {},
            h("td", {}, levelChip(alert.level)),
            h("td", { class: "message" }, alert.title),
            h("td", { class: "number" }, wholeText(alert.times)),
            h("td", {}, timeText(alert.last_at)),
            h("td", {}, h("a", { href: consoleOf(alert.label, alert.last_at) }, alert.label ?? "")),
            h("td", { class: "message" }, alert.text ?? ""),
          ),
        ),
      ),
    ),
  );
}

function lossPanel(report) {
  const lossy = report.labels.filter((row) => row.lost || row.pending === null);
  if (!lossy.length) return null;
  return h(
    "section",
    { class: "panel", "aria-label": "Losses" },
    h("h2", {}, "Data that is lost"),
    grid(
      [["Label"], ["Events lost", "number"], ["Of", "number"], ["Why"]],
      h(
        "tbody",
        {},
        lossy.map((row) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, row.attempt ? `${row.label}, attempt ${row.attempt}` : row.label),
            h("td", { class: "number" }, wholeText(row.lost ?? 0)),
            h("td", { class: "number" }, row.produced === null ? "unknown" : wholeText(row.produced)),
            h("td", { class: "message" }, row.reasons ?? ""),
          ),
        ),
      ),
    ),
  );
}

function eventRow(row, title, consoleOf) {
  const who = row.label ?? row.node ?? "";
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
      row.message,
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
