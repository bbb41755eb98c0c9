// The table of runs: filter, sort, group, choose columns, select to compare, edit and delete. It follows the database.

import { Sparklines } from "../charts/sparklines.js";
import { openDialog } from "../dialog.js";
import { h, notice, show } from "../dom.js";
import { addressOf, readAddress, setParameters } from "../net/address.js";
import { ask, objects } from "../net/api.js";
import { liveRefresh } from "../net/live.js";
import { createTable } from "../tables/table.js";
import { parseFilter, wordFilter } from "../text/filter.js";
import { agoText, byName, countText, durationText, numberText, secondsOf, timeText, valueText, wholeText } from "../text/texts.js";
import { firstRun, remoteHint } from "./first_run.js";
import { deleteRuns, editRun } from "./run_edits.js";
import { savedViews } from "./saved_views.js";

const CHOSEN_MAX = 20; // columns of config, and of the summary: a bound of the server
const COMPARED_MAX = 10;
const LISTED_MAX = 200; // keys in the dialog of columns
const CURVES_MAX = 4; // columns of small curves
const KINDS = ["config", "summary", "curve"]; // of columns that have a key
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
  run_id: { title: "Run ID", width: 180, grows: 1, isOff: true, cell: (run) => h("code", {}, run.run_id) },
  job_type: { title: "Job type", width: 90, isOff: true, cell: (run) => run.job_type },
  primary_label: { title: "Primary", width: 90, isOff: true, cell: (run) => run.primary_label },
  n_attempts: { title: "Attempts", width: 98, isNumber: true, isOff: true, cell: (run) => valueText(run.n_attempts) },
  notes: { title: "Notes", width: 200, grows: 2, isOff: true, cell: (run) => run.notes },
};
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

export async function open(content, rest, query) {
  const state = {
    filter: query.get("filter") ?? "",
    sort: query.get("sort") ?? "-created_at",
    group: Object.hasOwn(GROUPS, query.get("group")) ? query.get("group") : "",
    config: query.getAll("config").slice(0, CHOSEN_MAX),
    summary: query.getAll("summary").slice(0, CHOSEN_MAX),
    curve: query.getAll("curve").slice(0, CURVES_MAX),
    isFolded: query.get("fold") === "1", // whether groups are folded, except those in `turned`
    turned: new Set(query.getAll("turned")),
    columns: query.getAll("column").filter((name) => Object.hasOwn(COLUMNS, name)),
    selected: new Set(query.getAll("run")),
  };
  if (!state.columns.length) state.columns = Object.keys(COLUMNS).filter((name) => !COLUMNS[name].isOff);
  let runs = new Map();
  let keys = { config: [], summary: [], curve: [] };
  let version = "";
  let asked = ""; // the columns of `version`
  let turn = 0; // of requests: an answer to an older one is not drawn
  let unknown = ""; // a name in the filter that no column has
  let filter = parseFilter("", null, valueOf, textOf);
  let shown = [];
  let isOver = false;
  const ending = new AbortController();

  const input = h("input", {
    class: "grow",
    type: "search",
    value: state.filter,
    placeholder: "Filter: words, lr<0.01, state:failed, -tag:old",
    "aria-label": "Filter runs",
    "aria-describedby": "filter-error",
    spellcheck: "false",
    oninput: () => later(onFilter, 80),
  });
  const error = h("p", { id: "filter-error", class: "error small", role: "status", hidden: true });
  const help = h("table", { class: "grid values filter-help", hidden: true }, h("tbody", {}, FILTER_HELP.map(([text, meaning]) =>
    h("tr", {}, h("th", { scope: "row" }, h("code", {}, text)), h("td", {}, meaning)))));
  const onHelp = () => {
    help.hidden = !help.hidden;
    question.setAttribute("aria-expanded", String(!help.hidden));
  };
  const question = h("button", { "aria-label": "How to filter", "aria-expanded": "false", onclick: onHelp }, "?");
  const count = h("span", { class: "quiet", role: "status" });
  const compare = h("button", { onclick: onCompare }, "Compare");
  const overlay = h("button", { onclick: onOverlay }, "Overlay");
  const edit = h("button", { onclick: onEdit }, "Edit");
  const remove = h("button", { onclick: onDelete }, "Delete");
  const grouping = h(
    "select",
    { "aria-label": "Group by", onchange: () => change({ group: grouping.value, isFolded: false, turned: new Set() }) },
    h("option", { value: "" }, "No groups"),
    Object.entries(GROUPS).map(([name, title]) =>
      h("option", { value: name, selected: name === state.group }, `By ${title}`),
    ),
  );
  const fold = h("button", { onclick: () => change({ isFolded: !state.isFolded, turned: new Set() }) });
  const marked = h("span", { class: "bar" }, compare, overlay, edit, remove);
  const table = createTable({
    label: "Runs",
    onSort: (name) => {
      const [isDown, old] = usedSort();
      const turned = name === old ? !isDown : DOWN_FIRST.has(name);
      change({ sort: (turned ? "-" : "") + name });
    },
    onFold: ({ name }) => {
      if (!state.turned.delete(name)) state.turned.add(name);
      change({}, true);
    },
    onOpen: ({ data }) => (location.hash = addressOf(["run", data.run_id])),
    onMark: ({ data }) => mark(data.run_id),
    isMarked: ({ data }) => Boolean(data) && state.selected.has(data.run_id),
  });

  // Columns are made once, so that the table keeps the rows that did not change.
  const made = new Map();
  const curves = [];
  function curveColumn(name, key) {
    const lines = new Sparklines(key, report);
    curves.push(lines);
    return { name, title: key, help: `curve of ${key}`, width: 120, grows: 1, isFluid: true, cell: (run) => lines.cell(run) };
  }
  function columnOf(name) {
    if (!made.has(name)) {
      const key = name.slice(name.indexOf(".") + 1);
      const ofKey = { title: key, help: name, width: Math.min(220, 60 + key.length * 7), grows: 1, isNumber: true };
      if (name.startsWith("curve.")) made.set(name, curveColumn(name, key));
      else made.set(name, { name, isSortable: true, ...(COLUMNS[name] ?? { ...ofKey, cell: (run) => (name.startsWith("summary.") ? numberText : valueText)(run[name]) }) });
    }
    return made.get(name);
  }
  const choice = {
    name: "",
    title: "",
    help: "Selected",
    width: 34,
    cell: (run) =>
      h("input", {
        type: "checkbox",
        tabindex: -1,
        checked: state.selected.has(run.run_id),
        "aria-label": `Select ${run.name || run.run_id}`,
        onchange: () => mark(run.run_id),
      }),
  };

  const sortOf = () => (state.sort.startsWith("-") ? [true, state.sort.slice(1)] : [false, state.sort]);
  const keyColumns = () => KINDS.flatMap((kind) => state[kind].map((key) => `${kind}.${key}`));

  /** Return the column that a name in the filter means. */
  function resolve(name) {
    const known = ALIASES[name] ?? name;
    if (Object.hasOwn(COLUMNS, known)) return known;
    for (const kind of ["config", "summary"]) {
      const key = name.startsWith(`${kind}.`) ? name.slice(kind.length + 1) : name;
      if (keys[kind].includes(key) || state[kind].includes(key)) return `${kind}.${key}`;
    }
    unknown = name;
    return null;
  }

  /** Return {config, summary, missing}: the keys to ask for, and the columns that are more than the server sends. */
  function neededKeys() {
    const needed = { config: [...state.config], summary: [...state.summary] };
    const missing = [];
    for (const name of [...filter.names, sortOf()[1]]) {
      const [kind, key] = [name.slice(0, name.indexOf(".")), name.slice(name.indexOf(".") + 1)];
      if (!Object.hasOwn(needed, kind) || needed[kind].includes(key)) continue;
      if (needed[kind].length < CHOSEN_MAX) needed[kind].push(key);
      else missing.push(name);
    }
    return { ...needed, missing };
  }

  /** Return the chosen order, or the newest first if its column cannot be read. */
  function usedSort() {
    const [isDown, by] = sortOf();
    return neededKeys().missing.includes(by) ? [true, "created_at"] : [isDown, by];
  }

  function readFilter() {
    unknown = "";
    filter = parseFilter(state.filter, resolve, valueOf, textOf);
    const { missing } = neededKeys();
    const whyOf = (name) => `${name} cannot be read beside ${CHOSEN_MAX} columns of ${name.split(".")[0]}; hide one of them`;
    const name = filter.names.find((one) => missing.includes(one));
    if (name) filter = { test: () => true, names: [], error: filter.error ?? whyOf(name) };
    const why = filter.error ?? (missing.length ? `sorted by start: ${whyOf(missing[0])}` : "");
    error.textContent = why;
    error.hidden = !why;
    input.setAttribute("aria-invalid", String(Boolean(filter.error)));
  }

  /** Ask for runs that have changed; for all of them with other columns. */
  async function load() {
    const { config, summary } = neededKeys();
    const wanted = JSON.stringify({ config, summary });
    const own = ++turn;
    const answer = await ask("runs", { config, summary, since: wanted === asked ? version : "" }, { signal: ending.signal });
    if (isOver || own !== turn) return;
    if (answer.is_whole) runs = new Map();
    for (const run of objects(answer)) runs.set(run.run_id, run);
    for (const run of answer.deleted) runs.delete(run);
    const gone = [...state.selected].filter((run) => !runs.has(run));
    for (const run of gone) state.selected.delete(run);
    if (gone.length && (readAddress().path[0] ?? "runs") === "runs") setParameters({ run: [...state.selected] });
    [version, asked] = [answer.version, wanted];
    draw(true);
  }

  function draw(keepsPlace) {
    const [isDown, by] = usedSort();
    const turn = isDown ? -1 : 1;
    const found = [...runs.values()].filter(filter.test).map((run) => ({ run, value: sortable(valueOf(run, by)) }));
    found.sort((a, b) => compareValues(a.value, b.value, turn) || (a.run.run_id < b.run.run_id ? 1 : -1));
    shown = found.map(({ run }) => run);
    const names = [...state.columns, ...keyColumns()];
    table.set([choice, ...names.map(columnOf)], grouped(shown), { name: by, isDown }, keepsPlace);
    count.textContent = `${shown.length === runs.size ? "" : `${wholeText(shown.length)} of `}${countText(runs.size, "run")}`;
    drawMarked();
    fold.hidden = !state.group;
    fold.textContent = state.isFolded ? "Open all" : "Fold all";
    const isEmpty = !shown.length;
    empty.hidden = !isEmpty;
    table.element.classList.toggle("none", isEmpty);
    if (isEmpty) {
      const clear = h("button", { onclick: () => clearFilter() }, "Clear the filter");
      if (runs.size) show(empty, h("h2", {}, "No run matches the filter"), clear);
      else show(empty, firstRun(), remoteHint());
    }
  }

  function grouped(list) {
    if (!state.group) return list.map((run) => ({ key: run.run_id, data: run }));
    const groups = new Map();
    for (const run of list) {
      const name = run[state.group] ?? "";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(run);
    }
    return [...groups].flatMap(([value, members]) => {
      const name = value || " "; // a parameter of the address is not empty
      const isFolded = state.isFolded !== state.turned.has(name);
      const heading = `${value || `no ${GROUPS[state.group]}`} · ${countsText(members, state.group !== "state")}`;
      const rows = isFolded ? [] : members.map((run) => ({ key: run.run_id, data: run }));
      return [{ key: `group ${name}`, name, heading, isFolded }, ...rows];
    });
  }

  function drawMarked() {
    const n = state.selected.size;
    marked.hidden = !n;
    compare.disabled = overlay.disabled = n < 2 || n > COMPARED_MAX;
    compare.title = compare.disabled ? `Select 2 to ${COMPARED_MAX} runs` : "";
    overlay.title = compare.title || "Their curves in the same panels";
    compare.textContent = `Compare ${n}`;
    edit.disabled = n !== 1;
    remove.textContent = n === 1 ? "Delete" : `Delete ${n}`;
  }

  function mark(run) {
    if (!state.selected.delete(run)) state.selected.add(run);
    setParameters({ run: [...state.selected] });
    drawMarked();
    table.redraw();
  }

  /** Change the state, the address and the table. keepsPlace: the table does not begin at its top again. */
  function change(changes, keepsPlace = false) {
    Object.assign(state, changes);
    const isUsual = state.columns.join() === Object.keys(COLUMNS).filter((name) => !COLUMNS[name].isOff).join();
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
    readFilter();
    draw(keepsPlace);
    const { config, summary } = neededKeys();
    const has = asked ? JSON.parse(asked) : { config: [], summary: [] };
    if (config.some((key) => !has.config.includes(key)) || summary.some((key) => !has.summary.includes(key))) {
      load().catch(report);
    }
  }

  function onFilter() {
    change({ filter: input.value.trim() });
    if (unknown) loadKeys().catch(report);
  }

  function clearFilter() {
    input.value = "";
    change({ filter: "" });
    input.focus();
  }

  function onCompare() {
    location.hash = addressOf(["compare"], { run: [...state.selected] });
  }

  function onOverlay() {
    const [run, ...others] = state.selected;
    location.hash = addressOf(["run", run, "curves"], { with: others });
  }

  function onEdit() {
    const run = runs.get([...state.selected][0]);
    if (run) editRun(run, load);
  }

  function onDelete() {
    const chosen = [...state.selected].map((id) => runs.get(id)).filter(Boolean);
    if (!chosen.length) return;
    deleteRuns(chosen, async (gone) => {
      for (const id of gone) state.selected.delete(id);
      setParameters({ run: [...state.selected] });
      await load();
    });
  }

  function onColumns() {
    const chosen = new Set([...state.columns, ...keyColumns()]);
    const all = () => [
      ...Object.keys(COLUMNS).map((name) => [name, COLUMNS[name].title]),
      ...KINDS.flatMap((kind) => [...new Set([...state[kind], ...keys[kind]])].map((key) => [`${kind}.${key}`, `${kind}.${key}`])),
    ];
    const list = h("div", { class: "choices" });
    const search = h("input", { type: "search", placeholder: "Find a column", "aria-label": "Find a column", autofocus: true, oninput: draw });
    let listed = null;
    function draw() {
      listed = keys;
      const { test } = wordFilter(search.value);
      const found = all().filter(([, title]) => test(title));
      show(
        list,
        found.slice(0, LISTED_MAX).map(([name, title]) =>
          h("label", {}, h("input", { type: "checkbox", checked: chosen.has(name), onchange: () => turn(name) }), title),
        ),
        found.length > LISTED_MAX && h("p", { class: "quiet" }, `and ${found.length - LISTED_MAX} more: type to find them`),
        !found.length && h("p", { class: "quiet" }, "No column matches."),
      );
    }
    function turn(name) {
      if (!chosen.delete(name)) chosen.add(name);
    }
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
        change({ columns: columns.length ? columns : ["name"], config, summary, curve });
      },
    });
    loadKeys().then(() => listed !== keys && draw(), report); // also if another answer brought them
  }

  /** Ask for the names of columns. */
  async function loadKeys() {
    const found = await ask("keys", {}, { signal: ending.signal });
    const isNew = !isOver && JSON.stringify(found) !== JSON.stringify(keys);
    if (isNew) keys = found;
    if (!isDrawn) readFilter();
    else if (isNew) change({}, true); // what was typed before may name one of them
  }

  function report(reason) {
    if (reason.name !== "AbortError" && !isOver) notice(reason.message, true);
  }

  let typing = 0;
  function later(action, ms) {
    clearTimeout(typing);
    typing = setTimeout(action, ms);
  }

  const empty = h("section", { class: "empty", hidden: true });
  const columns = h("button", { onclick: onColumns }, "Columns…");
  const views = savedViews({
    title: "Views",
    noun: "view",
    folder: "runs/",
    shipped: () => SHIPPED.map(([name, filter]) => ({ name, href: addressOf(["runs"], { filter }), note: filter })),
    current: () => ({ query: readAddress().query.toString() }),
    hrefOf: (view) => addressOf(["runs"], new URLSearchParams(String(view.query))),
  });
  let isDrawn = false;
  const hasKeys = loadKeys();
  if (state.filter) await hasKeys;
  else hasKeys.catch(report);
  await load();
  show(
    content,
    h(
      "section",
      { class: "full" },
      h("h1", { class: "hidden-text" }, "Runs"),
      h("div", { class: "bar" }, input, question, grouping, fold, columns, views, marked, count),
      error,
      help,
      table.element,
      empty,
    ),
  );
  isDrawn = true;

  const live = liveRefresh(async () => {
    const failed = (reason) => (report(reason), false);
    const isDone = await load().then(() => (unknown ? loadKeys() : null)).then(() => true, failed);
    for (const lines of curves) lines.changed();
    return isDone;
  });
  const tick = setInterval(() => !document.hidden && table.refresh(), TICK_MS);
  return () => {
    isOver = true;
    ending.abort();
    clearInterval(tick);
    clearTimeout(typing);
    live.close();
    for (const lines of curves) lines.close();
    table.close();
  };
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
