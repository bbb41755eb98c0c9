// SQL: an editor with completion, the result as a table and a chart, saved queries. The query is in the address.

import { h, notice, show } from "../dom.js";
import { addressOf, readAddress, setParameters } from "../net/address.js";
import { ask } from "../net/api.js";
import { csvOf, save } from "../net/download.js";
import { createTable } from "../tables/table.js";
import { byName, countText, valueText, wholeText } from "../text/texts.js";
import { savedViews } from "./saved_views.js";

const SUGGESTED_MAX = 10;
const CURVES_MAX = 8;
const LINES_MAX = 16; // of all curves
const TIMEOUT_S = 30; // of a query at the collector
const LOOKED_AT = 200; // rows that decide about kind and width of a column
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d/;
const LONG_NUMBER = /^-?(?=(\d\.?){16,}$)(0|[1-9]\d*)(\.\d+)?$/; // the server sends those that a double cannot hold as texts
const KEYWORDS = ["SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "HAVING", "JOIN", "USING", "count(*)", "DESC"];
const FIRST = "SELECT run_id, state, created_at, n_labels, n_failed\nFROM runs ORDER BY created_at DESC LIMIT 100";

export async function open(content, rest, query) {
  let words = {};
  let result = null; // {columns, rows, n_rows}
  let sort = null;
  let suggested = [];
  let isTyping = false; // since a completion, or a run
  let plot = null;
  let isCharted = query.get("chart") === "1";
  let running = null; // aborts the query
  let clock = null; // shows how long it has been running
  let turn = 0;

  const editor = h("textarea", {
    class: "editor",
    rows: 6,
    spellcheck: "false",
    autocapitalize: "off",
    "aria-label": "SQL query",
    "aria-describedby": "sql-help",
    oninput: suggest,
    onclick: suggest,
    onkeydown: onKey,
  });
  editor.value = query.get("q") ?? FIRST;
  const suggestions = h("div", { class: "suggestions", role: "group", "aria-label": "Completions", hidden: true });
  const runButton = h("button", { class: "main", onclick: () => (running ? stop() : run()), title: "Ctrl+Enter" }, "Run");
  const status = h("span", { class: "quiet", role: "status" });
  const took = h("span", { class: "quiet" }); // not read out each second
  const error = h("pre", { class: "error", role: "alert", hidden: true });
  const download = h("button", { onclick: onDownload, disabled: true, title: "The rows of the table" }, "Download CSV");
  const queries = savedViews({
    title: "Saved queries",
    noun: "query",
    folder: "sql/",
    current() {
      const text = editor.value.trim();
      setParameters({ q: text });
      return { query: text };
    },
    hrefOf: ({ query: text }) => (typeof text === "string" ? addressOf(["sql"], { q: text }) : null),
  });
  const views = h("dl", { class: "panel views-list", hidden: true });
  const viewsButton = h("button", { hidden: true, "aria-expanded": "false", onclick: onViews, title: "All views with their columns" }, "Views");
  const chartButton = h("button", { disabled: true, onclick: onChart }, "Chart");
  const xSelect = h("select", { "aria-label": "x axis", onchange: () => chooseAxes({ x: xSelect.value, y: null }) });
  const ySelect = h("select", { "aria-label": "y axis", onchange: () => chooseAxes({ y: ySelect.value }) });
  const curves = h("div");
  const legend = h("div", { class: "curve-legend" });
  const axes = h("div", { class: "bar" }, h("label", {}, "x", xSelect), h("label", {}, "y", ySelect));
  const chart = h("div", { class: "panel chart", hidden: true }, axes, curves, legend);
  const table = createTable({ label: "Result", onSort });
  table.element.hidden = true;

  show(
    content,
    h(
      "section",
      { class: "full" },
      h("h1", { class: "hidden-text" }, "SQL"),
      editor,
      suggestions,
      h(
        "div",
        { class: "bar" },
        runButton,
        download,
        chartButton,
        queries,
        viewsButton,
        status,
        took,
      ),
      h("p", { id: "sql-help", class: "quiet small" }, "One SELECT. Ctrl+Enter runs it, Tab completes a word, Escape hides completions."),
      error,
      views,
      chart,
      table.element,
    ),
  );
  editor.focus();

  /** Complete the word before the cursor: views, then columns of the views in the query, then all else. */
  function suggest() {
    const word = wordAt();
    suggested = [];
    isTyping = true;
    if (word.length >= 2) {
      const text = editor.value.toLowerCase();
      const views = Object.keys(words);
      const named = views.filter((view) => new RegExp(`\\b${view}\\b`).test(text)).flatMap((view) => words[view]);
      const all = new Set([...named, ...views, ...KEYWORDS, ...Object.values(words).flat()]);
      const low = word.toLowerCase();
      suggested = [...all].filter((name) => name.toLowerCase().startsWith(low) && name.toLowerCase() !== low);
      suggested = suggested.slice(0, SUGGESTED_MAX);
    }
    suggestions.hidden = !suggested.length;
    show(
      suggestions,
      suggested.map((name) => h("button", { class: "bare", tabindex: -1, onclick: () => complete(name) }, h("code", {}, name))),
    );
  }

  function drawViews() {
    const names = Object.keys(words).sort();
    viewsButton.hidden = !names.length;
    show(
      views,
      names.map((name) => [
        h("dt", {}, h("a", { href: addressOf(["sql"], { q: `FROM ${name} LIMIT 100` }) }, name)),
        h("dd", { class: "quiet" }, words[name].join(", ")),
      ]),
    );
  }

  function onViews() {
    views.hidden = !views.hidden;
    viewsButton.setAttribute("aria-expanded", String(!views.hidden));
  }

  function wordAt() {
    if (editor.selectionStart !== editor.selectionEnd) return "";
    return /[A-Za-z_][A-Za-z_0-9]*$/.exec(editor.value.slice(0, editor.selectionStart))?.[0] ?? "";
  }

  function complete(name) {
    const end = editor.selectionStart;
    editor.setRangeText(name, end - wordAt().length, end, "end");
    editor.focus();
    hideSuggestions();
  }

  function hideSuggestions() {
    suggested = [];
    isTyping = false;
    suggestions.hidden = true;
  }

  function onKey(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
    else if (event.key === "Tab" && !event.shiftKey && suggested.length) complete(suggested[0]);
    else if (event.key === "Escape" && suggested.length) hideSuggestions();
    else return;
    event.preventDefault();
  }

  async function run() {
    const text = editor.value.trim();
    hideSuggestions();
    if (!text) return fail("The query is empty; type one SELECT.");
    running?.abort();
    running = new AbortController();
    const mine = ++turn;
    runButton.textContent = "Stop";
    if (text !== readAddress().query.get("q")) setParameters({ q: text, sort: null, order: null });
    const began = performance.now();
    status.textContent = "Running…";
    clearInterval(clock);
    clock = setInterval(() => {
      took.textContent = `${Math.round((performance.now() - began) / 1000)} of at most ${TIMEOUT_S} s`;
    }, 1000);
    try {
      const answer = await ask("sql", {}, { method: "POST", body: { query: text }, signal: running.signal });
      if (mine !== turn) return;
      ended();
      error.hidden = true;
      result = answer;
      const { query: now } = readAddress();
      const at = result.columns.indexOf(now.get("sort"));
      sort = at < 0 ? null : { name: String(at), isDown: now.get("order") === "down" };
      result.kinds = result.columns.map((_, at) => kindOf(result.rows, at));
      const part = result.rows.length < result.n_rows ? `the first ${wholeText(result.rows.length)} of ` : "";
      const seconds = ((performance.now() - began) / 1000).toFixed(2);
      status.textContent = `${part}${countText(result.n_rows, "row")} · ${seconds} s`;
      download.disabled = false;
      draw();
      await drawChart();
    } catch (reason) {
      if (reason.name === "AbortError" || mine !== turn) return;
      ended();
      fail(reason.message);
    }
  }

  /** End the query, here and at the collector. */
  function stop() {
    running.abort();
    ended();
    fail("The query was stopped.");
  }

  function ended() {
    clearInterval(clock);
    took.textContent = "";
    running = null;
    runButton.textContent = "Run";
  }

  function fail(message) {
    status.textContent = result ? "The table below shows the result of the previous query." : "";
    error.textContent = message;
    error.hidden = false;
  }

  function draw() {
    const columns = result.columns.map((title, at) => columnOf(title, at));
    let rows = result.rows.map((data, at) => ({ key: String(at), data }));
    if (sort) {
      const at = Number(sort.name);
      const turn = sort.isDown ? -1 : 1;
      const read = result.kinds[at].isNumber ? exactOf : plainOf;
      rows = rows
        .map((row) => ({ row, value: read(row.data[at]) }))
        .sort((a, b) => compareValues(a.value, b.value, turn))
        .map(({ row }) => row);
    }
    table.element.hidden = false;
    table.set(columns, rows, sort);
  }

  function columnOf(title, at) {
    const { isNumber } = result.kinds[at];
    const longest = result.rows.slice(0, LOOKED_AT).reduce((most, row) => Math.max(most, cellText(row[at]).length), 0);
    const width = Math.min(420, Math.max(70, 8 * Math.max(longest, title.length + 2) + 16));
    return { name: String(at), title, width, grows: 1, isNumber, isSortable: true, cell: (row) => cellOf(row[at]) };
  }

  function onSort(name) {
    sort = { name, isDown: sort?.name === name ? !sort.isDown : false };
    setParameters({ sort: result.columns[name], order: sort.isDown ? "down" : null });
    draw();
  }

  function onChart() {
    isCharted = !isCharted;
    setParameters({ chart: isCharted ? 1 : null });
    drawChart();
  }

  function chooseAxes(changes) {
    setParameters(changes);
    drawChart();
  }

  /** Return {x, ys, xs, all}: the axes that were chosen, else `step`, a time or the first number, and the numbers over it. */
  function axesOf() {
    const { query: now } = readAddress();
    const columns = result.kinds.map((kind, at) => ({ ...kind, at, title: result.columns[at] }));
    const isSpread = ({ at }) => new Set(result.rows.map((row) => row[at])).size > 1;
    const xs = columns.filter((one) => (one.isNumber || one.isTime) && isSpread(one));
    const x = xs.find(({ title }) => title === now.get("x")) ?? xs.find(isStep) ?? xs.find(({ isTime }) => isTime) ?? xs[0];
    const all = columns.filter((one) => one.isNumber && one !== x);
    const chosen = all.filter(({ title }) => title === now.get("y"));
    return { x, xs, all, chosen, ys: (chosen.length ? chosen : all).slice(0, CURVES_MAX) };
  }

  /**
   * Draw columns over another one, if a chart is wanted. Where several rows have the same place, each text, such as a
   * label, has its own line.
   */
  async function drawChart() {
    const mine = turn;
    const { x, xs, all, chosen, ys } = axesOf();
    const place = (row) => (x.isTime ? Date.parse(row[x.at]) / 1000 : Number(row[x.at]));
    const canDraw = Boolean(x) && ys.length > 0;
    chartButton.disabled = !canDraw;
    chartButton.title = canDraw ? "" : "A chart needs two columns of numbers, and two rows";
    chartButton.setAttribute("aria-pressed", String(canDraw && isCharted));
    chart.hidden = !canDraw || !isCharted;
    if (chart.hidden) return;
    const option = ({ title }, isChosen) => h("option", { value: title, selected: isChosen }, title);
    show(xSelect, xs.map((one) => option(one, one === x)));
    const every = h("option", { value: "" }, all.length > CURVES_MAX ? `the first ${CURVES_MAX} numbers` : "all numbers");
    show(ySelect, all.length > 1 ? every : null, all.map((one) => option(one, one === chosen[0] || all.length === 1)));
    const { Chart, lineStyle } = await import("../charts/chart.js");
    if (mine !== turn) return;
    const rows = result.rows.filter((row) => row[x.at] !== null).sort((a, b) => place(a) - place(b));
    const places = [...new Set(rows.map(place))];
    const numberOf = new Map(places.map((one, at) => [one, at]));
    const texts = places.length < rows.length ? result.kinds.flatMap(({ isText }, at) => (isText ? [at] : [])) : [];
    const groups = [...Map.groupBy(rows, (row) => texts.map((at) => row[at]).join(" "))].sort(([a], [b]) => byName(a, b));
    const lineOf = (at, name, of) => {
      const values = new Array(places.length).fill(undefined);
      for (const row of of) values[numberOf.get(place(row))] = row[at] === null ? null : Number(row[at]);
      const column = result.columns[at];
      return { name: !name ? column : ys.length > 1 ? `${name} ${column}` : name, values };
    };
    const lines = ys
      .flatMap(({ at }) => groups.map(([name, of]) => lineOf(at, name, of)))
      .slice(0, LINES_MAX)
      .map((line, at) => ({ ...line, ...lineStyle(at) }));
    plot ??= new Chart(curves, legend, {
      label: "Chart of the result",
      isUtc: true, // like the table
      onZoom: (least, most) => plot.showPart(least, most),
      onReset: () => plot.showPart(plot.model.x[0], plot.model.x.at(-1)),
    });
    const kind = x.isTime ? "time" : isStep(x) ? "step" : "value";
    plot.draw({ x: places, kind, lines, range: null, isLog: false });
  }

  function onDownload() {
    save(new Blob([csvOf([result.columns, ...result.rows])], { type: "text/csv" }), "chiplog.csv");
  }

  ask("words").then((found) => {
    words = found;
    drawViews();
    if (isTyping) suggest();
  }, (reason) => content.isConnected && report(reason));
  if (query.get("q")) run();

  function report(reason) {
    notice(reason.message, true);
  }

  return () => {
    turn++;
    running?.abort();
    clearInterval(clock);
    plot?.close();
    table.close();
  };
}

function isStep({ isNumber, title }) {
  return isNumber && title === "step";
}

function kindOf(rows, at) {
  const values = rows.slice(0, LOOKED_AT).map((row) => row[at]).filter((value) => value !== null);
  const isTime = values.length > 0 && values.every((value) => typeof value === "string" && TIME.test(value));
  const isNumber = values.length > 0 && values.every((value) => typeof value === "number" || isLongNumber(value));
  return { isNumber, isTime, isText: !isTime && !isNumber && values.some((value) => typeof value === "string") };
}

function isLongNumber(value) {
  return typeof value === "string" && LONG_NUMBER.test(value);
}

function cellText(value) {
  if (typeof value === "string" && TIME.test(value)) return value.replace("T", " ").replace("Z", "");
  return valueText(value);
}

function cellOf(value) {
  if (value === null) return h("span", { class: "quiet" }, "NULL");
  const text = cellText(value);
  return text.length > 30 ? h("span", { title: text }, text) : text;
}

/** Return what a cell is sorted by. */
function plainOf(value) {
  return value !== null && typeof value === "object" ? JSON.stringify(value) : value;
}

/** Return the number of a cell with all of its digits: a BigInt compares with a number by value. */
function exactOf(value) {
  if (!isLongNumber(value)) return value;
  return value.includes(".") ? Number(value) : BigInt(value);
}

function compareValues(a, b, turn) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "string" && typeof b === "string") return turn * byName(a, b); // rank2 before rank10
  return a < b ? -turn : a > b ? turn : 0;
}
