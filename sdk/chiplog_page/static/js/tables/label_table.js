// The table of a run's labels: where each of them is, and how it ended. Its order is in the address.

import { h, show } from "../dom.js";
import { titledPanel } from "../elements.js";
import { addressOf, readAddress, setParameters } from "../net/address.js";
import { objects } from "../net/api.js";
import { chosenLabels, labelText, noLabelsText } from "../text/labels.js";
import { bytesText, countText, durationText, exitText, secondsText, wholeText } from "../text/texts.js";
import { rowOf } from "./grid.js";

const ROWS_SHOWN = 64; // until more are asked for
const COLUMNS = [
  ["label", "Label", consoleLink, "row"],
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

const HEADS = COLUMNS.map(([, title, , kind]) => [title, kind]);

function consoleLink({ label }, run) {
  const href = addressOf(["run", run, "console"], { labels: `=${label}` });
  return h("a", { href, title: "its console" }, labelText(label));
}

/**
 * Build the table.
 * @param {string} run
 * @param {{label: ?string}} state the chosen label, whose row is marked
 * @param {Object} report
 * @returns {{element: Element, setReport: function(report), draw: function(answer)}} draw: an answer of api/runs/RUN/ranks
 */
export function labelTable(run, state, report) {
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
  const table = h("div", { class: "scroll" }, h("table", { class: "grid" }, h("thead", {}, head), body));
  const element = titledPanel("Labels", table, none, more);

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
          { class: kind === "row" ? null : kind, scope: "col", "aria-sort": sort === name ? (isDown ? "descending" : "ascending") : null },
          h("button", { class: "bare", onclick: () => order(name) }, title, sort === name ? (isDown ? " ▾" : " ▴") : ""),
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
      sorted.slice(0, shown).map((row) => {
        const cells = COLUMNS.map(([, , cell]) => cell(row, run));
        return rowOf(HEADS, cells, { class: row.label === state.label ? "chosen" : null });
      }),
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
