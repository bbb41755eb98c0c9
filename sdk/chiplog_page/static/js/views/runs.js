// The table of runs: filter, sort, group, choose columns, select to compare, edit and delete. It follows the database.

import { Sparklines } from "../charts/sparklines.js";
import { openDialog } from "../dialog.js";
import { h, show } from "../dom.js";
import { checkbox, quiet } from "../elements.js";
import { addressOf, readAddress, setParameters } from "../net/address.js";
import { objects } from "../net/api.js";
import { createTable } from "../tables/table.js";
import { parseFilter, wordFilter } from "../text/filter.js";
import { agoText, byName, countText, durationText, numberText, secondsOf, timeText, valueText, wholeText } from "../text/texts.js";
import { firstRun, remoteHint } from "./first_run.js";
import { deleteRuns, editRun } from "./run_edits.js";
import { savedViews } from "./saved_views.js";
import { PageView } from "./view.js";

const CHOSEN_MAX = 20; // columns of config, and of the summary: a bound of the server
const COMPARED_MAX = 10;
const LISTED_MAX = 200; // keys in the dialog of columns
const CURVES_MAX = 4; // columns of small curves
const KINDS = ["config", "summary", "curve"]; // of columns that have a key
const FILTER_MS = 80; // after the last letter
const TICK_MS = 30_000; // "5 min ago" is right for this long
const GROUPS = { project: "project", run_group: "group", job_type: "job type", state: "state" };

const FILTER_HELP = [
  ['gpt "two words"', "runs with each of these texts, in any case: ID, name, state, project, group, job type, tags, notes"],
  ["state:failed tag:base", "a column that contains a text"],
  ["name=gpt-1 layers=12", "a column that is a text or a number"],
  ["lr<0.01 val/loss>=2", "a number of config or summary: <, <=, >, >="],
  ["started>2026-01-02", "a date, as is or with a time: 2026-01-02T03:04"],
  ["-tag:old -crashed", "a minus in front: runs without it"],
];
const COLUMNS = {
  name: { title: "Name", width: 210, grows: 3, cell: nameCell },
  state: { title: "State", width: 86, cell: (run) => h("span", { class: `chip ${run.state}` }, run.state) },
  project: { title: "Project", width: 84, grows: 1, cell: (run) => run.project },
  run_group: { title: "Group", width: 88, grows: 1, cell: (run) => run.run_group },
  tags: { title: "Tags", width: 116, grows: 1, cell: (run) => run.tags?.map((tag) => [h("span", { class: "chip" }, tag), " "]).flat() },
  created_at: {
    title: "Started",
    width: 100,
    cell: (run) => h("time", { datetime: run.created_at, title: timeText(run.created_at) }, agoText(run.created_at)),
  },
  duration: { title: "Duration", width: 104, isNumber: true, cell: (run) => durationText(secondsOf(run)) },
  n_labels: { title: "Labels", width: 82, isNumber: true, cell: (run) => valueText(run.n_labels) },
  n_failed: {
    title: "Failures",
    width: 92,
    isNumber: true,
    cell: (run) => (run.n_failed ? h("span", { class: "error" }, run.n_failed) : h("span", { class: "quiet" }, "0")),
  },
  complete: { title: "Complete", width: 104, help: "Whether all that was logged has arrived", cell: completeCell },
  collectors: { title: "Collector", width: 150, grows: 1, isOff: true, help: "Where the run lives, and how old the view of it is", cell: placeCell },
  run_id: { title: "Run ID", width: 180, grows: 1, isOff: true, cell: (run) => h("code", {}, run.run_id) },
  job_type: { title: "Job type", width: 90, isOff: true, cell: (run) => run.job_type },
  primary_label: { title: "Primary", width: 90, isOff: true, cell: (run) => run.primary_label },
  n_attempts: { title: "Attempts", width: 98, isNumber: true, isOff: true, cell: (run) => valueText(run.n_attempts) },
  notes: { title: "Notes", width: 200, grows: 2, isOff: true, cell: (run) => run.notes },
};
const USUAL_COLUMNS = Object.keys(COLUMNS).filter((name) => !COLUMNS[name].isOff);
const SHIPPED = [
  ["All runs", ""],
  ["Running", "state:running"],
  ["With failures", "failures>0"],
];
const DOWN_FIRST = new Set(["created_at", "n_failed", "duration"]);
const ALIASES = {
  id: "run_id",
  group: "run_group",
  tag: "tags",
  started: "created_at",
  labels: "n_labels",
  failures: "n_failed",
  attempts: "n_attempts",
  primary: "primary_label",
};

function nameCell(run) {
  const link = h("a", { href: addressOf(["run", run.run_id]), tabindex: -1, title: run.run_id }, run.name || run.run_id);
  return run.name ? [link, h("span", { class: "quiet small" }, ` ${run.run_id}`)] : link;
}

function completeCell(run) {
  if (run.lost) return h("span", { class: "chip warn", title: "events that were lost" }, `${run.lost} lost`);
  if (run.pending) return h("span", { class: "quiet", title: "events that have not arrived yet" }, `${run.pending} pending`);
  if (run.pending === null) return h("span", { class: "quiet", title: "a label has not reported its number of events" }, "unknown");
  return h("span", { class: "good" }, "✓", h("span", { class: "hidden-text" }, "complete"));
}

let seen = {}; // by collector: up to when its rows are known

function placeCell(run) {
  if (!run.collectors) return h("span", { class: "quiet" }, "here");
  const times = run.collectors.map((name) => seen[name]).filter(Boolean).sort();
  const names = run.collectors.join(", ");
  return h("span", { title: `${names}, as of ${timeText(times[0])}` }, names, h("span", { class: "quiet small" }, ` ${agoText(times[0])}`));
}

function valueOf(run, column) {
  if (column === "duration") return secondsOf(run);
  if (column === "complete") return run.lost ? "lost" : run.pending === 0 ? "yes" : run.pending ? "pending" : "unknown";
  if (column === "name") return run.name || run.run_id;
  return run[column];
}

function textOf(run) {
  if (run.text === undefined) {
    const { primary_label: primary, ...others } = run; // rank0 is that of nearly all
    run.text = Object.values(others).flat().filter((value) => typeof value === "string").join("\n").toLowerCase();
  }
  return run.text;
}

export default class RunsPage extends PageView {
  state = stateOf(this.query);
  runs = new Map(); // by ID
  keys = { config: [], summary: [], curve: [] };
  version = "";
  asked = ""; // the columns of `version`
  unknown = ""; // a name in the filter that no column has
  filter = parseFilter("", null, valueOf, textOf);
  isDrawn = false;
  made = new Map(); // columns: made once, so that the table keeps the rows that did not change
  curves = [];

  async start() {
    const filterAttributes = { placeholder: "Filter: words, lr<0.01, state:failed, -tag:old", "aria-describedby": "filter-error", spellcheck: "false" };
    this.input = this.searchInput("Filter runs", this.state.filter, FILTER_MS, () => this.onFilter(), filterAttributes);
    this.error = h("p", { id: "filter-error", class: "error small", role: "status", hidden: true });
    this.count = h("span", { class: "quiet", role: "status" });
    this.empty = h("section", { class: "empty", hidden: true });
    this.table = this.runTable();
    const help = filterHelp();
    const bar = [this.input, help.button, this.groupChoice(), this.fold, h("button", { onclick: () => this.onColumns() }, "Columns…")];
    const marked = this.markedActions();
    const hasKeys = this.loadKeys();
    if (this.state.filter) await hasKeys;
    else hasKeys.catch((error) => this.fail(error));
    await this.load();
    show(
      this.content,
      h(
        "section",
        { class: "full" },
        h("h1", { class: "hidden-text" }, "Runs"),
        h("div", { class: "bar" }, bar, this.viewsMenu(), marked, this.count),
        this.error,
        help.table,
        this.table.element,
        this.empty,
      ),
    );
    this.isDrawn = true;
    this.follow(() => this.refresh());
    const tick = setInterval(() => !document.hidden && this.table.refresh(), TICK_MS);
    this.atEnd(() => clearInterval(tick));
  }

  close() {
    super.close();
    for (const lines of this.curves) lines.close();
    this.table.close();
  }

  runTable() {
    return createTable({
      label: "Runs",
      onSort: (name) => {
        const [isDown, old] = this.usedSort();
        const turned = name === old ? !isDown : DOWN_FIRST.has(name);
        this.change({ sort: (turned ? "-" : "") + name });
      },
      onFold: ({ name }) => {
        if (!this.state.turned.delete(name)) this.state.turned.add(name);
        this.change({}, true);
      },
      onOpen: ({ data }) => (location.hash = addressOf(["run", data.run_id])),
      onMark: ({ data }) => this.mark(data.run_id),
      isMarked: ({ data }) => Boolean(data) && this.state.selected.has(data.run_id),
    });
  }

  groupChoice() {
    this.fold = h("button", { onclick: () => this.change({ isFolded: !this.state.isFolded, turned: new Set() }) });
    const option = ([name, title]) => h("option", { value: name, selected: name === this.state.group }, `By ${title}`);
    const onchange = ({ target }) => this.change({ group: target.value, isFolded: false, turned: new Set() });
    return h("select", { "aria-label": "Group by", onchange }, h("option", { value: "" }, "No groups"), Object.entries(GROUPS).map(option));
  }

  markedActions() {
    this.compare = h("button", { onclick: () => this.onCompare() }, "Compare");
    this.overlay = h("button", { onclick: () => this.onOverlay() }, "Overlay");
    this.edit = h("button", { onclick: () => this.onEdit() }, "Edit");
    this.remove = h("button", { onclick: () => this.onDelete() }, "Delete");
    this.marked = h("span", { class: "bar" }, this.compare, this.overlay, this.edit, this.remove);
    return this.marked;
  }

  viewsMenu() {
    return savedViews({
      title: "Views",
      noun: "view",
      folder: "runs/",
      shipped: () => SHIPPED.map(([name, filter]) => ({ name, href: addressOf(["runs"], { filter }), note: filter })),
      current: () => ({ query: readAddress().query.toString() }),
      hrefOf: (view) => addressOf(["runs"], new URLSearchParams(String(view.query))),
    });
  }

  columnOf(name) {
    if (!this.made.has(name)) this.made.set(name, this.newColumn(name));
    return this.made.get(name);
  }

  newColumn(name) {
    const key = name.slice(name.indexOf(".") + 1);
    if (name.startsWith("curve.")) {
      const lines = new Sparklines(key, (error) => this.fail(error));
      this.curves.push(lines);
      return { name, title: key, help: `curve of ${key}`, width: 120, grows: 1, isFluid: true, cell: (run) => lines.cell(run) };
    }
    const text = name.startsWith("summary.") ? numberText : valueText;
    const ofKey = { title: key, help: name, width: Math.min(220, 60 + key.length * 7), grows: 1, isNumber: true, cell: (run) => text(run[name]) };
    return { name, isSortable: true, ...(COLUMNS[name] ?? ofKey) };
  }

  choice = {
    name: "",
    title: "",
    help: "Selected",
    width: 34,
    cell: (run) =>
      h("input", {
        type: "checkbox",
        tabindex: -1,
        checked: this.state.selected.has(run.run_id),
        "aria-label": `Select ${run.name || run.run_id}`,
        onchange: () => this.mark(run.run_id),
      }),
  };

  sortOf() {
    const { sort } = this.state;
    return sort.startsWith("-") ? [true, sort.slice(1)] : [false, sort];
  }

  keyColumns() {
    return KINDS.flatMap((kind) => this.state[kind].map((key) => `${kind}.${key}`));
  }

  /** Return the column that a name in the filter means. */
  resolve(name) {
    const known = ALIASES[name] ?? name;
    if (Object.hasOwn(COLUMNS, known)) return known;
    for (const kind of ["config", "summary"]) {
      const key = name.startsWith(`${kind}.`) ? name.slice(kind.length + 1) : name;
      if (this.keys[kind].includes(key) || this.state[kind].includes(key)) return `${kind}.${key}`;
    }
    this.unknown = name;
    return null;
  }

  /** Return {config, summary, missing}: the keys to ask for, and the columns that are more than the server sends. */
  neededKeys() {
    const needed = { config: [...this.state.config], summary: [...this.state.summary] };
    const missing = [];
    for (const name of [...this.filter.names, this.sortOf()[1]]) {
      const [kind, key] = [name.slice(0, name.indexOf(".")), name.slice(name.indexOf(".") + 1)];
      if (!Object.hasOwn(needed, kind) || needed[kind].includes(key)) continue;
      if (needed[kind].length < CHOSEN_MAX) needed[kind].push(key);
      else missing.push(name);
    }
    return { ...needed, missing };
  }

  /** Return the chosen order, or the newest first if its column cannot be read. */
  usedSort() {
    const [isDown, by] = this.sortOf();
    return this.neededKeys().missing.includes(by) ? [true, "created_at"] : [isDown, by];
  }

  readFilter() {
    this.unknown = "";
    this.filter = parseFilter(this.state.filter, (name) => this.resolve(name), valueOf, textOf);
    const { missing } = this.neededKeys();
    const whyOf = (name) => `${name} cannot be read beside ${CHOSEN_MAX} columns of ${name.split(".")[0]}; hide one of them`;
    const name = this.filter.names.find((one) => missing.includes(one));
    if (name) this.filter = { test: () => true, names: [], error: this.filter.error ?? whyOf(name) };
    const why = this.filter.error ?? (missing.length ? `sorted by start: ${whyOf(missing[0])}` : "");
    this.error.textContent = why;
    this.error.hidden = !why;
    this.input.setAttribute("aria-invalid", String(Boolean(this.filter.error)));
  }

  /** Ask for runs that have changed; for all of them with other columns. */
  async load() {
    const { config, summary } = this.neededKeys();
    const wanted = JSON.stringify({ config, summary });
    const isNewest = this.begin("runs");
    const answer = await this.ask("runs", { config, summary, since: wanted === this.asked ? this.version : "" });
    if (!isNewest()) return;
    if (answer.is_whole) this.runs = new Map();
    for (const run of objects(answer)) this.runs.set(run.run_id, run);
    seen = answer.seen;
    for (const run of answer.deleted) this.runs.delete(run);
    const gone = [...this.state.selected].filter((run) => !this.runs.has(run));
    for (const run of gone) this.state.selected.delete(run);
    if (gone.length && (readAddress().path[0] ?? "runs") === "runs") setParameters({ run: [...this.state.selected] });
    [this.version, this.asked] = [answer.version, wanted];
    this.draw(true);
  }

  draw(keepsPlace) {
    const [isDown, by] = this.usedSort();
    const turn = isDown ? -1 : 1;
    const found = [...this.runs.values()].filter(this.filter.test).map((run) => ({ run, value: sortable(valueOf(run, by)) }));
    found.sort((a, b) => compareValues(a.value, b.value, turn) || (a.run.run_id < b.run.run_id ? 1 : -1));
    const shown = found.map(({ run }) => run);
    const names = [...this.state.columns, ...this.keyColumns()];
    // Without a choice the column is there as soon as another collector has a run.
    const isElsewhere = this.state.columns === USUAL_COLUMNS && [...this.runs.values()].some((run) => run.collectors);
    if (isElsewhere) names.splice(names.indexOf("state") + 1, 0, "collectors");
    this.table.set([this.choice, ...names.map((name) => this.columnOf(name))], this.grouped(shown), { name: by, isDown }, keepsPlace);
    this.count.textContent = `${shown.length === this.runs.size ? "" : `${wholeText(shown.length)} of `}${countText(this.runs.size, "run")}`;
    this.drawMarked();
    this.fold.hidden = !this.state.group;
    this.fold.textContent = this.state.isFolded ? "Open all" : "Fold all";
    const isEmpty = !shown.length;
    this.empty.hidden = !isEmpty;
    this.table.element.classList.toggle("none", isEmpty);
    if (isEmpty) {
      const clear = h("button", { onclick: () => this.clearFilter() }, "Clear the filter");
      if (this.runs.size) show(this.empty, h("h2", {}, "No run matches the filter"), clear);
      else show(this.empty, firstRun(), remoteHint());
    }
  }

  grouped(list) {
    if (!this.state.group) return list.map((run) => ({ key: run.run_id, data: run }));
    const groups = new Map();
    for (const run of list) {
      const name = run[this.state.group] ?? "";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(run);
    }
    return [...groups].flatMap(([value, members]) => {
      const name = value || " "; // a parameter of the address is not empty
      const isFolded = this.state.isFolded !== this.state.turned.has(name);
      const heading = `${value || `no ${GROUPS[this.state.group]}`} · ${countsText(members, this.state.group !== "state")}`;
      const rows = isFolded ? [] : members.map((run) => ({ key: run.run_id, data: run }));
      return [{ key: `group ${name}`, name, heading, isFolded }, ...rows];
    });
  }

  drawMarked() {
    const n = this.state.selected.size;
    this.marked.hidden = !n;
    this.compare.disabled = this.overlay.disabled = n < 2 || n > COMPARED_MAX;
    this.compare.title = this.compare.disabled ? `Select 2 to ${COMPARED_MAX} runs` : "";
    this.overlay.title = this.compare.title || "Their curves in the same panels";
    this.compare.textContent = `Compare ${n}`;
    this.edit.disabled = n !== 1;
    this.remove.textContent = n === 1 ? "Delete" : `Delete ${n}`;
  }

  mark(run) {
    if (!this.state.selected.delete(run)) this.state.selected.add(run);
    setParameters({ run: [...this.state.selected] });
    this.drawMarked();
    this.table.redraw();
  }

  /** Change the state, the address and the table. keepsPlace: the table does not begin at its top again. */
  change(changes, keepsPlace = false) {
    const { state } = this;
    Object.assign(state, changes);
    const isUsual = state.columns.join() === USUAL_COLUMNS.join();
    setParameters({
      filter: state.filter,
      sort: state.sort === "-created_at" ? "" : state.sort,
      group: state.group,
      fold: state.isFolded ? 1 : null,
      turned: [...state.turned],
      curve: state.curve,
      config: state.config,
      summary: state.summary,
      column: isUsual ? [] : state.columns,
    });
    this.readFilter();
    this.draw(keepsPlace);
    const { config, summary } = this.neededKeys();
    const has = this.asked ? JSON.parse(this.asked) : { config: [], summary: [] };
    if (config.some((key) => !has.config.includes(key)) || summary.some((key) => !has.summary.includes(key))) {
      this.load().catch((error) => this.fail(error));
    }
  }

  onFilter() {
    this.change({ filter: this.input.value.trim() });
    if (this.unknown) this.loadKeys().catch((error) => this.fail(error));
  }

  clearFilter() {
    this.input.value = "";
    this.change({ filter: "" });
    this.input.focus();
  }

  onCompare() {
    location.hash = addressOf(["compare"], { run: [...this.state.selected] });
  }

  onOverlay() {
    const [run, ...others] = this.state.selected;
    location.hash = addressOf(["run", run, "curves"], { with: others });
  }

  onEdit() {
    const run = this.runs.get([...this.state.selected][0]);
    if (run) editRun(run, () => this.load());
  }

  onDelete() {
    const chosen = [...this.state.selected].map((id) => this.runs.get(id)).filter(Boolean);
    if (!chosen.length) return;
    deleteRuns(chosen, async (gone) => {
      for (const id of gone) this.state.selected.delete(id);
      setParameters({ run: [...this.state.selected] });
      await this.load();
    });
  }

  onColumns() {
    const chosen = new Set([...this.state.columns, ...this.keyColumns()]);
    const all = () => [
      ...Object.keys(COLUMNS).map((name) => [name, COLUMNS[name].title]),
      ...KINDS.flatMap((kind) => [...new Set([...this.state[kind], ...this.keys[kind]])].map((key) => [`${kind}.${key}`, `${kind}.${key}`])),
    ];
    const list = h("div", { class: "choices" });
    const search = h("input", { type: "search", placeholder: "Find a column", "aria-label": "Find a column", autofocus: true, oninput: () => draw() });
    let listed = null;
    const draw = () => {
      listed = this.keys;
      const { test } = wordFilter(search.value);
      const found = all().filter(([, title]) => test(title));
      show(
        list,
        found.slice(0, LISTED_MAX).map(([name, title]) =>
          checkbox(title, chosen.has(name), () => turn(name)),
        ),
        found.length > LISTED_MAX && quiet(`and ${found.length - LISTED_MAX} more: type to find them`),
        !found.length && quiet("No column matches."),
      );
    };
    const turn = (name) => chosen.delete(name) || chosen.add(name);
    draw();
    openDialog("Columns", [search, list], {
      action: "Show",
      onSubmit: async () => {
        const ofKind = (kind) => [...chosen].filter((name) => name.startsWith(`${kind}.`)).map((name) => name.slice(kind.length + 1));
        const [config, summary, curve] = KINDS.map(ofKind);
        const most = Math.max(config.length, summary.length);
        if (most > CHOSEN_MAX) throw new Error(`${most} columns of a kind are more than ${CHOSEN_MAX}`);
        if (curve.length > CURVES_MAX) throw new Error(`${curve.length} columns of curves are more than ${CURVES_MAX}`);
        const columns = Object.keys(COLUMNS).filter((name) => chosen.has(name));
        this.change({ columns: columns.length ? columns : ["name"], config, summary, curve });
      },
    });
    this.loadKeys().then(() => listed !== this.keys && draw(), (error) => this.fail(error)); // also if another answer brought them
  }

  /** Ask for the names of columns. */
  async loadKeys() {
    const found = await this.ask("keys");
    const isNew = this.isOpen && JSON.stringify(found) !== JSON.stringify(this.keys);
    if (isNew) this.keys = found;
    if (!this.isDrawn) this.readFilter();
    else if (isNew) this.change({}, true); // what was typed before may name one of them
  }

  async refresh() {
    let isDone = true;
    try {
      await this.load();
      if (this.unknown) await this.loadKeys();
    } catch (error) {
      isDone = this.fail(error);
    }
    for (const lines of this.curves) lines.changed();
    return isDone;
  }
}

/** Return the state that an address has. */
function stateOf(query) {
  const columns = query.getAll("column").filter((name) => Object.hasOwn(COLUMNS, name));
  return {
    filter: query.get("filter") ?? "",
    sort: query.get("sort") ?? "-created_at",
    group: Object.hasOwn(GROUPS, query.get("group")) ? query.get("group") : "",
    config: query.getAll("config").slice(0, CHOSEN_MAX),
    summary: query.getAll("summary").slice(0, CHOSEN_MAX),
    curve: query.getAll("curve").slice(0, CURVES_MAX),
    isFolded: query.get("fold") === "1", // whether groups are folded, except those in `turned`
    turned: new Set(query.getAll("turned")),
    columns: columns.length ? columns : USUAL_COLUMNS,
    selected: new Set(query.getAll("run")),
  };
}

/** Return {button, table}: how to filter, and what shows it. */
function filterHelp() {
  const rows = FILTER_HELP.map(([text, meaning]) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, text)), h("td", {}, meaning)));
  const table = h("table", { class: "grid values filter-help", hidden: true }, h("tbody", {}, rows));
  const onclick = () => {
    table.hidden = !table.hidden;
    button.setAttribute("aria-expanded", String(!table.hidden));
  };
  const button = h("button", { "aria-label": "How to filter", "aria-expanded": "false", onclick }, "?");
  return { button, table };
}

/** Return "12 runs, 3 running, 1 failed". */
function countsText(members, hasStates) {
  const counts = new Map();
  for (const { state } of members) counts.set(state, (counts.get(state) ?? 0) + 1);
  const states = [...counts].filter(([state]) => hasStates && state !== "finished").map(([state, n]) => `${wholeText(n)} ${state}`);
  return [countText(members.length, "run"), ...states.sort()].join(", ");
}

function sortable(value) {
  if (value === null || value === undefined || value === "" || Number.isNaN(value)) return null;
  if (Array.isArray(value)) return value.join(" ") || null;
  return ["number", "string"].includes(typeof value) ? value : valueText(value);
}

/** Compare two values; missing ones come last in both directions, and numbers before texts. */
function compareValues(a, b, turn) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return turn * (a - b);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a === b ? 0 : turn * byName(a, b);
}
