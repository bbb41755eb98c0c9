// One run: its header, its tabs, and what it was started with. A tab is a module in run/, loaded when it is needed.

import { h, notice, show } from "../dom.js";
import { addressOf, readAddress, setParameters } from "../net/address.js";
import { ask, part } from "../net/api.js";
import { hasGrown, isActive, liveRefresh } from "../net/live.js";
import { areLabelsKnown, failedLabels, labelText, labelsChoice, labelsSelect, setLabelNames } from "../text/labels.js";
import { countText, durationText, numberText, timeText, valueText, wholeText } from "../text/texts.js";
import { verdictSection } from "./run/verdict.js";
import { deleteRuns, editRun } from "./run_edits.js";
import { savedViews } from "./saved_views.js";

const TABS = {
  ...{ curves: "Curves", ranks: "Ranks", console: "Console", events: "Events", media: "Media", files: "Files" },
  system: "System",
};
const PAUSE_MS = 2000; // between two reports of a run that changes
const PAUSE_QUIET_MS = 30000; // of a run that has ended and is complete
const VERDICT_PAUSE_MS = 30000; // it reads all phases of the run; the tab of ranks asks more often
const PAUSE_FACTOR = 10; // an answer that takes long is asked for less often
const OVERLAID_MAX = 9; // other runs
const ROWS_SHOWN = 30; // of config and summary, until more are asked for

/** The last whole report, so that another tab of the same run is drawn at once. */
let known = null;

export async function open(content, rest, query) {
  const [run, chosen = "curves"] = rest;
  if (!run) {
    show(content, h("section", { class: "empty" }, h("h1", {}, "No run chosen"), allRuns()));
    return () => {};
  }
  const tab = Object.hasOwn(TABS, chosen) ? chosen : "curves";
  const path = `runs/${part(run)}`;
  const loading = import(`./run/${tab}.js`); // beside the report
  loading.catch(() => null); // reported below
  let report = known?.run_id === run ? known : null;
  try {
    report ??= { ...(await ask(`${path}/outline`)), isOutline: true }; // its row and keys; the report takes longer
  } catch (error) {
    if (error.kind !== "not_found") throw error;
    return waitFor(content, run, "No such run yet");
  }
  const others = tab === "curves" ? new Set(query.getAll("with").filter((other) => other !== run)).size : 0;
  const overlay = others ? `Curves of ${countText(Math.min(others, OVERLAID_MAX) + 1, "run")}` : ""; // not of this run
  if (content.isConnected) document.title = `${overlay || report.name || run} · chiplog`;

  setLabelNames(report);
  const header = h("div");
  const onDeleted = ([gone]) => {
    if (!gone) return;
    known = null;
    location.hash = addressOf(["runs"]);
  };
  const buttons = h(
    "div",
    { hidden: Boolean(overlay) },
    h("button", { onclick: () => editRun(report, refresh) }, "Edit"),
    " ",
    h("button", { onclick: () => deleteRuns([report], onDeleted) }, "Delete"),
  );
  const details = h("details", { class: "run-details", open: query.get("details") === "1" });
  const whole = new Set(); // titles of panels whose rows are all shown
  const element = h("section", { class: `run-tab tab-${tab}`, "aria-label": TABS[tab] });
  const verdict = verdictSection(run, { isWhole: tab === "ranks" });
  verdict.onFailure = () => header.querySelector(".run-failure")?.remove(); // the sentence says the same and more
  const drawHead = () => (overlay ? show(header, h("div", { class: "run-title" }, h("h1", {}, overlay))) : drawHeader(header, report, verdict));
  drawHead();
  details.addEventListener("toggle", () => {
    setParameters({ details: details.open ? 1 : null });
    tabs.setLinks();
    drawDetails(details, report, whole);
  });
  drawDetails(details, report, whole);
  const tabs = tabBar(run, tab);
  const choice = h("span");
  const drawChoice = () => show(choice, labelsSelect(report, onLabels));
  // A tab that shows parts of the report, or of the labels, listens to this.
  const notifyTab = () => element.dispatchEvent(new CustomEvent("report", { detail: report }));
  const onLabels = () => {
    tabs.setLinks();
    notifyTab();
  };
  element.addEventListener("labels", () => (drawChoice(), onLabels())); // a tab has changed the choice
  drawChoice();
  const line = h("div", { class: "tab-line" }, overlay ? h("span", { class: "tabs" }) : tabs.bar, choice, viewsMenu(run, tab, () => report));
  show(content, h("header", { class: "run-header" }, header, buttons), overlay ? null : verdict.element, line, element, overlay ? null : details);
  show(element, h("p", { class: "quiet" }, "Loading…"));

  let isOpen = true;
  let isFresh = false;
  let hasFailed = false;
  let [clock, live, view] = [null, null, null];
  let verdictAt = -Infinity;
  let verdictReport = null; // the newest when the verdict was asked for
  const closed = new AbortController();
  // After what the tab shows: it reads all phases. The tab of ranks asks itself.
  const loadVerdict = () => {
    if (tab === "ranks" || overlay || performance.now() - verdictAt < VERDICT_PAUSE_MS) return;
    if (verdictReport && !isActive(verdictReport) && !isActive(report) && !hasGrown(verdictReport, report)) return;
    verdictAt = performance.now();
    verdictReport = report;
    // What it would say of a failure is in the tab of ranks, with the reason.
    verdict.load(closed.signal).catch(() => (verdictReport = null));
  };
  let close = () => {
    isOpen = false;
    closed.abort();
    clearInterval(clock);
    live?.close();
    view?.close();
  };
  const refresh = async () => {
    const { isOutline } = report;
    try {
      report = known = await ask(path);
      if (isOpen) setLabelNames(report);
    } catch (error) {
      if (!isOpen) return;
      if (error.kind === "not_found") {
        known = null;
        close();
        close = waitFor(content, run, "This run was deleted");
        return;
      }
      hasFailed = true;
      notice(error.message, true);
      return false;
    }
    if (!isOpen) return;
    if (hasFailed) notice("");
    hasFailed = false;
    isFresh = true;
    drawHead();
    loadVerdict();
    if (details.open || details.hidden) drawDetails(details, report, whole);
    if (isOutline || !choice.contains(document.activeElement)) drawChoice(); // an open list stays as it is
    notifyTab();
  };

  try {
    const { default: Tab } = await loading;
    const isReady = () => !report.isOutline || (Tab.beginsWithOutline && areLabelsKnown(report));
    if (!isReady()) await refresh();
    if (isReady()) {
      view = new Tab(element, run, query, report, verdict);
      await view.start();
    } else show(element, h("p", { class: "error" }, "The report of this run did not arrive."), retryButton());
  } catch (error) {
    show(element, h("p", { class: "error" }, error.message), retryButton());
  }
  if (!isOpen) return () => close(); // the run is not there any more
  // From here on: the tab listens to reports, and has asked for what it shows.
  let nDeleted = null;
  live = liveRefresh(refresh, {
    pauseMs: () => (isActive(report) ? PAUSE_MS : PAUSE_QUIET_MS),
    pauseFactor: PAUSE_FACTOR,
    isQuiet: isFresh,
    isUrgent({ n_deleted: n }) {
      const before = nDeleted ?? n;
      nDeleted = n;
      return n !== before; // this run, perhaps
    },
  });
  if (!isFresh) live.changed();
  else loadVerdict();
  if (!overlay) clock = setInterval(() => report.ended_at ?? drawDuration(header, report), 1000);
  return () => close();
}

/** Explain that a run is not stored, and open it as soon as it is. Return a function that ends this. */
function waitFor(content, run, title) {
  const again = " is stored yet. This page opens it as soon as it arrives.";
  const words = h("p", {}, "No run ", h("code", {}, run), again);
  show(content, h("section", { class: "empty" }, h("h1", {}, title), words, allRuns()));
  const poll = () =>
    ask(`runs/${part(run)}/outline`).then(reopen, (error) => error.kind === "not_found" || (notice(error.message, true), false));
  return liveRefresh(poll, { isQuiet: true }).close;
}

function reopen() {
  dispatchEvent(new HashChangeEvent("hashchange"));
}

function retryButton() {
  return h("button", { onclick: reopen }, "Try again");
}

function allRuns() {
  return h("a", { href: addressOf(["runs"]) }, "All runs");
}

function tabBar(run, current) {
  const links = Object.entries(TABS).map(([name, title]) =>
    h("a", { "data-tab": name, "aria-current": name === current ? "page" : null }, title),
  );
  const setLinks = () => {
    const kept = { labels: labelsChoice(), details: readAddress().query.get("details") };
    for (const link of links) link.href = addressOf(["run", run, link.dataset.tab], kept);
  };
  setLinks();
  const bar = h("nav", { class: "tabs", "aria-label": "Parts of the run" }, links);
  // On a phone the bar scrolls: the current tab is in its visible part.
  requestAnimationFrame(() => {
    const { offsetLeft: left, offsetWidth: width } = links.find((link) => link.hasAttribute("aria-current"));
    bar.scrollLeft = left - bar.offsetLeft + width / 2 - bar.clientWidth / 2;
  });
  return { bar, setLinks };
}

/** Return the menu of saved views: a tab and what is chosen in it, for all runs of a project. */
function viewsMenu(run, tab, report) {
  const { project } = report();
  const labelled = (labels) => {
    const { query } = readAddress();
    query.delete("labels");
    if (labels) query.set("labels", labels);
    return addressOf(["run", run, tab], query);
  };
  return savedViews({
    title: "Views",
    noun: "view",
    folder: `run/${(project ?? "").replaceAll(/[%/]/g, encodeURIComponent)}/`,
    shipped() {
      const { n_labels: nLabels, n_failed: nFailedKnown, primary_label: primary, isOutline } = report();
      const nFailed = isOutline ? nFailedKnown : failedLabels(report()).length;
      return [
        { name: "All ranks", href: labelled(""), note: countText(nLabels, "label") },
        { name: "Primary only", href: labelled("primary"), note: primary === null ? "not known yet" : labelText(primary) },
        { name: "Crashed workers", href: nFailed ? labelled("failed") : null, note: nFailed ? countText(nFailed, "label") : "none" },
      ];
    },
    current: () => ({ tab, query: readAddress().query.toString() }),
    hrefOf: (view) => (Object.hasOwn(TABS, view.tab) ? addressOf(["run", run, view.tab], new URLSearchParams(String(view.query))) : null),
  });
}

function drawHeader(header, report, verdict) {
  const { run_id: run, n_running: nRunning, n_failed: nFailed } = report;
  const labels = [countText(report.n_labels, "label")];
  if (nRunning) labels.push(`${wholeText(nRunning)} running`);
  const facts = [
    ["project", report.project],
    ["group", report.run_group],
    ["started", timeText(report.created_at)],
    ["duration", h("span", { class: "run-duration" })],
    ["primary", report.primary_label === null ? "not known yet" : labelText(report.primary_label)],
    ["labels", [labels.join(", "), nFailed ? [", ", h("span", { class: "error" }, `${wholeText(nFailed)} failed`)] : null]],
    ["attempts", report.n_attempts > 1 ? wholeText(report.n_attempts) : null],
    ["events", completenessPhrase(report)],
  ];
  const dl = h(
    "dl",
    { class: "facts" },
    facts
      .filter(([, value]) => value)
      .map(([name, value]) => h("div", {}, h("dt", { class: "quiet" }, name), h("dd", {}, value))),
  );
  // What is selected or has the focus stays: only the facts change all the time.
  const rest = JSON.stringify([report.name, report.state, nFailed, report.tags, report.first_failure]);
  if (header.rest === rest) {
    header.querySelector(".facts").replaceWith(dl);
  } else {
    header.rest = rest;
    const title = h(
      "div",
      { class: "run-title" },
      h("h1", {}, report.name || run),
      h("span", { class: `chip ${report.state}` }, report.state),
      nFailed ? h("span", { class: "chip failed" }, `${countText(nFailed, "label")} failed`) : null,
      report.name && report.name !== run ? h("span", { class: "quiet" }, run) : null,
      (report.tags ?? []).map((tag) => h("span", { class: "chip" }, tag)),
    );
    show(header, title, dl, verdict.found?.has_failed ? null : failureLine(run, report.first_failure));
  }
  drawDuration(header, report);
}

function drawDuration(header, report) {
  const element = header.querySelector(".run-duration");
  const until = report.ended_at ? new Date(report.ended_at) : new Date();
  // The clock of this machine may be behind.
  if (element) element.textContent = durationText(Math.max(0, until - new Date(report.created_at)) / 1000);
}

function completenessPhrase({ completeness, isOutline }) {
  if (isOutline) return "…";
  return h("span", { class: completenessClass(completeness) }, completenessText(completeness));
}

/** Return whether all data has arrived, in one phrase. */
function completenessText({ produced, stored, lost, pending }) {
  if (pending === null || produced === null) {
    const kept = `${countText(stored, "event")} stored${lost ? `, ${wholeText(lost)} lost` : ""}`;
    return `${kept}; the total is unknown`;
  }
  if (!pending && !lost) return `all ${countText(stored, "event")} stored`;
  const open = [pending ? `${wholeText(pending)} pending` : null, lost ? `${wholeText(lost)} lost` : null];
  return `${open.filter(Boolean).join(", ")} of ${countText(produced, "event")}`;
}

function completenessClass({ lost, pending }) {
  return lost || pending === null ? "error" : pending ? "" : "good";
}

/** Return one line about the first failure, with a link to what happened; null if there is none. */
function failureLine(run, failure) {
  if (!failure) return null;
  if (failure.is_interrupted) {
    return h("p", { class: "run-failure" }, `Interrupted by Ctrl-C: ${labelText(failure.label)}`);
  }
  const echoes = (failure.others ?? []).filter((other) => other.is_echo).length;
  const words = [
    `${failure.is_cause ? "failed" : "was terminated from outside"}${failure.others?.length ? " first" : ""}`,
    failure.is_certain ? "" : " (uncertain)",
    `: ${failure.reason || failure.state}`,
    echoes ? `; ${countText(echoes, "other label")} ended because of it` : "",
  ];
  return h(
    "p",
    { class: "run-failure" },
    h("a", { class: "error", href: addressOf(["run", run, "events"]) }, labelText(failure.label)),
    ` ${words.join("")}`,
  );
}

function drawDetails(details, report, whole) {
  details.hidden = Boolean(report.isOutline);
  if (report.isOutline) return;
  const nConfig = Object.keys(report.config).length;
  const nSummary = Object.keys(report.summary).length;
  const summary = details.querySelector("summary") ?? details.appendChild(h("summary"));
  summary.textContent = `Details: ${countText(nConfig, "config value")}, ${countText(nSummary, "summary value")}, environment`;
  const shown = details.open && JSON.stringify([report.config, report.summary, report.environment, report.notes]);
  if (details.shown === shown) return;
  details.shown = shown;
  while (summary.nextSibling) summary.nextSibling.remove();
  if (!details.open) return;
  const { packages, ...settings } = report.environment ?? {};
  const panel = (...values) => valuesPanel(whole, ...values);
  details.append(
    h(
      "div",
      { class: "panels" },
      panel("Config", flat(report.config), "no config was set"),
      panel("Summary", Object.fromEntries(Object.entries(report.summary).map(([key, value]) => [key, numberText(value)])), "no summary yet"),
      panel("Environment", flat(settings), "no environment was reported"),
      packages ? panel("Packages", packages, "none", 0) : null,
    ),
    report.notes ? h("section", { class: "panel" }, h("h2", {}, "Notes"), h("p", {}, report.notes)) : "",
  );
}

function valuesPanel(whole, title, values, none, nShown = ROWS_SHOWN) {
  const entries = Object.entries(values);
  const body = h("tbody");
  const onclick = () => {
    whole.add(title);
    fill(entries.length);
  };
  const more = h("button", { onclick });
  const fill = (n) => {
    show(
      body,
      entries.slice(0, n).map(([key, value]) => h("tr", {}, h("th", { scope: "row" }, key), h("td", {}, plain(value)))),
    );
    more.hidden = n >= entries.length;
    more.textContent = `Show all ${entries.length}`;
  };
  fill(whole.has(title) ? entries.length : nShown);
  const table = entries.length ? h("table", { class: "grid values" }, body) : h("p", { class: "quiet" }, none);
  return h("section", { class: "panel" }, h("h2", {}, title), table, more);
}

/** Return nested objects as one level, keys joined by dots; lists stay. */
function flat(object, before = "") {
  const entries = Object.entries(object).flatMap(([key, value]) =>
    value && typeof value === "object" && !Array.isArray(value)
      ? Object.entries(flat(value, `${before}${key}.`))
      : [[before + key, value]],
  );
  return Object.fromEntries(entries);
}

function plain(value) {
  if (typeof value === "string") return value;
  return typeof value === "number" ? valueText(value) : JSON.stringify(value);
}
