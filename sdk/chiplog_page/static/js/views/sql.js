// SQL: an editor with completion, the result as a table and a chart, saved queries. The query is in the address.

import { h, show } from "../dom.js";
import { addressOf, readAddress, setParameters } from "../net/address.js";
import { csvOf, save } from "../net/download.js";
import { createTable } from "../tables/table.js";
import { byName, countText, valueText, wholeText } from "../text/texts.js";
import { savedViews } from "./saved_views.js";
import { PageView } from "./view.js";

const SUGGESTED_MAX = 10;
const CURVES_MAX = 8;
const LINES_MAX = 16; // of all curves
const TIMEOUT_S = 30; // of a query at the collector
const LOOKED_AT = 200; // rows that decide about kind and width of a column
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d/;
const LONG_NUMBER = /^-?(?=(\d\.?){16,}$)(0|[1-9]\d*)(\.\d+)?$/; // the server sends those that a double cannot hold as texts
const KEYWORDS = ["SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "HAVING", "JOIN", "USING", "count(*)", "DESC"];
const FIRST = "SELECT run_id, state, created_at, n_labels, n_failed\nFROM runs ORDER BY created_at DESC LIMIT 100";

export default class SqlPage extends PageView {
  words = {}; // the views and their columns
  result = null; // {columns, rows, n_rows}
  sort = null;
  suggested = [];
  isTyping = false; // since a completion, or a run
  plot = null;
  isCharted = this.query.get("chart") === "1";
  running = null; // aborts the query
  clock = null; // shows how long it has been running

  async start() {
    const suggest = () => this.suggest();
    this.editor = h("textarea", {
      class: "editor",
      rows: 6,
      spellcheck: "false",
      autocapitalize: "off",
      "aria-label": "SQL query",
      "aria-describedby": "sql-help",
      oninput: suggest,
      onclick: suggest,
      onkeydown: (event) => this.onKey(event),
    });
    this.editor.value = this.query.get("q") ?? FIRST;
    this.suggestions = h("div", { class: "suggestions", role: "group", "aria-label": "Completions", hidden: true });
    this.runButton = h("button", { class: "main", onclick: () => (this.running ? this.stop() : this.run()), title: "Ctrl+Enter" }, "Run");
    this.status = h("span", { class: "quiet", role: "status" });
    this.took = h("span", { class: "quiet" }); // not read out each second
    this.error = h("pre", { class: "error", role: "alert", hidden: true });
    this.download = h("button", { onclick: () => this.onDownload(), disabled: true, title: "The rows of the table" }, "Download CSV");
    this.chartButton = h("button", { disabled: true, onclick: () => this.onChart() }, "Chart");
    this.views = h("dl", { class: "panel views-list", hidden: true });
    const hint = "All views with their columns";
    this.viewsButton = h("button", { hidden: true, "aria-expanded": "false", onclick: () => this.onViews(), title: hint }, "Views");
    this.table = createTable({ label: "Result", onSort: (name) => this.onSort(name) });
    this.table.element.hidden = true;
    const buttons = [this.runButton, this.download, this.chartButton, this.savedQueries(), this.viewsButton, this.status, this.took];
    show(
      this.content,
      h(
        "section",
        { class: "full" },
        h("h1", { class: "hidden-text" }, "SQL"),
        this.editor,
        this.suggestions,
        h("div", { class: "bar" }, buttons),
        h("p", { id: "sql-help", class: "quiet small" }, "One SELECT. Ctrl+Enter runs it, Tab completes a word, Escape hides completions."),
        this.error,
        this.views,
        this.chartPanel(),
        this.table.element,
      ),
    );
    this.editor.focus();
    this.loadWords();
    if (this.query.get("q")) this.run();
  }

  close() {
    super.close();
    this.running?.abort();
    clearInterval(this.clock);
    this.plot?.close();
    this.table.close();
  }

  savedQueries() {
    return savedViews({
      title: "Saved queries",
      noun: "query",
      folder: "sql/",
      current: () => {
        const text = this.editor.value.trim();
        setParameters({ q: text });
        return { query: text };
      },
      hrefOf: ({ query: text }) => (typeof text === "string" ? addressOf(["sql"], { q: text }) : null),
    });
  }

  chartPanel() {
    this.xSelect = h("select", { "aria-label": "x axis", onchange: () => this.chooseAxes({ x: this.xSelect.value, y: null }) });
    this.ySelect = h("select", { "aria-label": "y axis", onchange: () => this.chooseAxes({ y: this.ySelect.value }) });
    const axes = h("div", { class: "bar" }, h("label", {}, "x", this.xSelect), h("label", {}, "y", this.ySelect));
    this.curves = h("div");
    this.legend = h("div", { class: "curve-legend" });
    this.chart = h("div", { class: "panel chart", hidden: true }, axes, this.curves, this.legend);
    return this.chart;
  }

  async loadWords() {
    try {
      this.words = await this.ask("words");
    } catch (error) {
      this.fail(error);
      return;
    }
    this.drawViews();
    if (this.isTyping) this.suggest();
  }

  /** Complete the word before the cursor: views, then columns of the views in the query, then all else. */
  suggest() {
    const word = this.wordAt();
    this.suggested = [];
    this.isTyping = true;
    if (word.length >= 2) {
      const text = this.editor.value.toLowerCase();
      const views = Object.keys(this.words);
      const named = views.filter((view) => new RegExp(`\\b${view}\\b`).test(text)).flatMap((view) => this.words[view]);
      const all = new Set([...named, ...views, ...KEYWORDS, ...Object.values(this.words).flat()]);
      const low = word.toLowerCase();
      this.suggested = [...all].filter((name) => name.toLowerCase().startsWith(low) && name.toLowerCase() !== low);
      this.suggested = this.suggested.slice(0, SUGGESTED_MAX);
    }
    this.suggestions.hidden = !this.suggested.length;
    show(
      this.suggestions,
      this.suggested.map((name) => h("button", { class: "bare", tabindex: -1, onclick: () => this.complete(name) }, h("code", {}, name))),
    );
  }

  drawViews() {
    const names = Object.keys(this.words).sort();
    this.viewsButton.hidden = !names.length;
    show(
      this.views,
      names.map((name) => [
        h("dt", {}, h("a", { href: addressOf(["sql"], { q: `FROM ${name} LIMIT 100` }) }, name)),
        h("dd", { class: "quiet" }, this.words[name].join(", ")),
      ]),
    );
  }

  onViews() {
    this.views.hidden = !this.views.hidden;
    this.viewsButton.setAttribute("aria-expanded", String(!this.views.hidden));
  }

  wordAt() {
    if (this.editor.selectionStart !== this.editor.selectionEnd) return "";
    return /[A-Za-z_][A-Za-z_0-9]*$/.exec(this.editor.value.slice(0, this.editor.selectionStart))?.[0] ?? "";
  }

  complete(name) {
    const end = this.editor.selectionStart;
    this.editor.setRangeText(name, end - this.wordAt().length, end, "end");
    this.editor.focus();
    this.hideSuggestions();
  }

  hideSuggestions() {
    this.suggested = [];
    this.isTyping = false;
    this.suggestions.hidden = true;
  }

  onKey(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.run();
    else if (event.key === "Tab" && !event.shiftKey && this.suggested.length) this.complete(this.suggested[0]);
    else if (event.key === "Escape" && this.suggested.length) this.hideSuggestions();
    else return;
    event.preventDefault();
  }

  async run() {
    const text = this.editor.value.trim();
    this.hideSuggestions();
    if (!text) {
      this.explain("The query is empty; type one SELECT.");
      return;
    }
    this.running?.abort();
    this.running = new AbortController();
    const isNewest = this.begin("result");
    this.runButton.textContent = "Stop";
    if (text !== readAddress().query.get("q")) setParameters({ q: text, sort: null, order: null });
    const began = performance.now();
    this.status.textContent = "Running…";
    clearInterval(this.clock);
    this.clock = setInterval(() => {
      this.took.textContent = `${Math.round((performance.now() - began) / 1000)} of at most ${TIMEOUT_S} s`;
    }, 1000);
    try {
      const answer = await this.ask("sql", {}, { method: "POST", body: { query: text }, signal: this.running.signal });
      if (!isNewest()) return;
      this.ended();
      this.error.hidden = true;
      this.result = answer;
      const { query: now } = readAddress();
      const at = this.result.columns.indexOf(now.get("sort"));
      this.sort = at < 0 ? null : { name: String(at), isDown: now.get("order") === "down" };
      this.result.kinds = this.result.columns.map((_, at) => kindOf(this.result.rows, at));
      const part = this.result.rows.length < this.result.n_rows ? `the first ${wholeText(this.result.rows.length)} of ` : "";
      const seconds = ((performance.now() - began) / 1000).toFixed(2);
      this.status.textContent = `${part}${countText(this.result.n_rows, "row")} · ${seconds} s`;
      this.download.disabled = false;
      this.draw();
      await this.drawChart();
    } catch (reason) {
      if (reason.name === "AbortError" || !isNewest()) return;
      this.ended();
      this.explain(reason.message);
    }
  }

  /** End the query, here and at the collector. */
  stop() {
    this.running.abort();
    this.ended();
    this.explain("The query was stopped.");
  }

  ended() {
    clearInterval(this.clock);
    this.took.textContent = "";
    this.running = null;
    this.runButton.textContent = "Run";
  }

  explain(message) {
    this.status.textContent = this.result ? "The table below shows the result of the previous query." : "";
    this.error.textContent = message;
    this.error.hidden = false;
  }

  draw() {
    const columns = this.result.columns.map((title, at) => this.columnOf(title, at));
    let rows = this.result.rows.map((data, at) => ({ key: String(at), data }));
    if (this.sort) {
      const at = Number(this.sort.name);
      const turn = this.sort.isDown ? -1 : 1;
      const read = this.result.kinds[at].isNumber ? exactOf : plainOf;
      rows = rows
        .map((row) => ({ row, value: read(row.data[at]) }))
        .sort((a, b) => compareValues(a.value, b.value, turn))
        .map(({ row }) => row);
    }
    this.table.element.hidden = false;
    this.table.set(columns, rows, this.sort);
  }

  columnOf(title, at) {
    const { isNumber } = this.result.kinds[at];
    const longest = this.result.rows.slice(0, LOOKED_AT).reduce((most, row) => Math.max(most, cellText(row[at]).length), 0);
    const width = Math.min(420, Math.max(70, 8 * Math.max(longest, title.length + 2) + 16));
    return { name: String(at), title, width, grows: 1, isNumber, isSortable: true, cell: (row) => cellOf(row[at]) };
  }

  onSort(name) {
    this.sort = { name, isDown: this.sort?.name === name ? !this.sort.isDown : false };
    setParameters({ sort: this.result.columns[name], order: this.sort.isDown ? "down" : null });
    this.draw();
  }

  onChart() {
    this.isCharted = !this.isCharted;
    setParameters({ chart: this.isCharted ? 1 : null });
    this.drawChart();
  }

  chooseAxes(changes) {
    setParameters(changes);
    this.drawChart();
  }

  /** Return {x, ys, xs, all}: the axes that were chosen, else `step`, a time or the first number, and the numbers over it. */
  axesOf() {
    const { query: now } = readAddress();
    const columns = this.result.kinds.map((kind, at) => ({ ...kind, at, title: this.result.columns[at] }));
    const isSpread = ({ at }) => new Set(this.result.rows.map((row) => row[at])).size > 1;
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
  async drawChart() {
    const { result } = this;
    const { x, xs, all, chosen, ys } = this.axesOf();
    const place = (row) => (x.isTime ? Date.parse(row[x.at]) / 1000 : Number(row[x.at]));
    const canDraw = Boolean(x) && ys.length > 0;
    this.chartButton.disabled = !canDraw;
    this.chartButton.title = canDraw ? "" : "A chart needs two columns of numbers, and two rows";
    this.chartButton.setAttribute("aria-pressed", String(canDraw && this.isCharted));
    this.chart.hidden = !canDraw || !this.isCharted;
    if (this.chart.hidden) return;
    const option = ({ title }, isChosen) => h("option", { value: title, selected: isChosen }, title);
    show(this.xSelect, xs.map((one) => option(one, one === x)));
    const every = h("option", { value: "" }, all.length > CURVES_MAX ? `the first ${CURVES_MAX} numbers` : "all numbers");
    show(this.ySelect, all.length > 1 ? every : null, all.map((one) => option(one, one === chosen[0] || all.length === 1)));
    const { Chart, lineStyle } = await import("../charts/chart.js");
    if (!this.isOpen || result !== this.result) return;
    const rows = this.result.rows.filter((row) => row[x.at] !== null).sort((a, b) => place(a) - place(b));
    const places = [...new Set(rows.map(place))];
    const numberOf = new Map(places.map((one, at) => [one, at]));
    const texts = places.length < rows.length ? this.result.kinds.flatMap(({ isText }, at) => (isText ? [at] : [])) : [];
    const groups = [...Map.groupBy(rows, (row) => texts.map((at) => row[at]).join(" "))].sort(([a], [b]) => byName(a, b));
    const lineOf = (at, name, of) => {
      const values = new Array(places.length).fill(undefined);
      for (const row of of) values[numberOf.get(place(row))] = row[at] === null ? null : Number(row[at]);
      const column = this.result.columns[at];
      return { name: !name ? column : ys.length > 1 ? `${name} ${column}` : name, values };
    };
    const lines = ys
      .flatMap(({ at }) => groups.map(([name, of]) => lineOf(at, name, of)))
      .slice(0, LINES_MAX)
      .map((line, at) => ({ ...line, ...lineStyle(at) }));
    this.plot ??= new Chart(this.curves, this.legend, {
      label: "Chart of the result",
      isUtc: true, // like the table
      onZoom: (least, most) => this.plot.showPart(least, most),
      onReset: () => this.plot.showPart(this.plot.model.x[0], this.plot.model.x.at(-1)),
    });
    const kind = x.isTime ? "time" : isStep(x) ? "step" : "value";
    this.plot.draw({ x: places, kind, lines, range: null, isLog: false });
  }

  onDownload() {
    save(new Blob([csvOf([this.result.columns, ...this.result.rows])], { type: "text/csv" }), "chiplog.csv");
  }
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
