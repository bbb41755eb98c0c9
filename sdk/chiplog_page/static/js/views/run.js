// One run: its header, its tabs, and what it was started with. A tab is a module in run/, loaded when it is needed.

import { h, show } from "../dom.js";
import { emptySection, quiet } from "../elements.js";
import { addressOf, readAddress, setParameters } from "../net/address.js";
import { ask, part } from "../net/api.js";
import { hasGrown, isActive } from "../net/live.js";
import { areLabelsKnown, failedLabels, labelText, labelsChoice, labelsSelect, setLabelNames } from "../text/labels.js";
import { countText, durationText, numberText, timeText, valueText, wholeText } from "../text/texts.js";
import { verdictSection } from "./run/verdict.js";
import { deleteRuns, editRun } from "./run_edits.js";
import { savedViews } from "./saved_views.js";
import { PageView, View } from "./view.js";

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

export default class RunPage extends PageView {
  run = this.rest[0];
  tab = Object.hasOwn(TABS, this.rest[1] ?? "") ? this.rest[1] : "curves";
  path = `runs/${part(this.run ?? "")}`;
  report = known?.run_id === this.run ? known : null;
  view = null; // of the tab, or what waits for the run
  whole = new Set(); // titles of panels whose rows are all shown
  isFresh = false; // whether the report was asked for by this view
  verdictAt = -Infinity;
  verdictReport = null; // the newest when the verdict was asked for
  nDeleted = null;

  async start() {
    const { content, run, tab } = this;
    if (!run) {
      show(content, emptySection("h1", "No run chosen", allRuns()));
      return;
    }
    const loading = import(`./run/${tab}.js`); // beside the report
    loading.catch(() => null); // reported below
    try {
      // Its row and keys; the report takes longer.
      this.report ??= { ...(await this.ask(`${this.path}/outline`)), isOutline: true };
    } catch (error) {
      if (error.kind !== "not_found") throw error;
      this.waitForRun("No such run yet");
      return;
    }
    this.drawFrame();
    try {
      await this.openTab(await loading);
    } catch (error) {
      show(this.element, h("p", { class: "error" }, error.message), retryButton());
    }
    if (this.isOpen) this.followRun();
  }

  close() {
    super.close();
    this.view?.close();
  }

  async openTab({ default: Tab }) {
    const isReady = () => !this.report.isOutline || (Tab.beginsWithOutline && areLabelsKnown(this.report));
    if (!isReady()) await this.refresh();
    if (!this.isOpen) return;
    if (isReady()) {
      this.view = new Tab(this.element, this.run, this.query, this.report, this.verdict);
      await this.view.start();
    } else {
      show(this.element, h("p", { class: "error" }, "The report of this run did not arrive."), retryButton());
    }
  }

  /** Explain that the run is not stored, and open it as soon as it is. */
  waitForRun(title) {
    const { content, path, run } = this;
    this.close();
    const again = " is stored yet. This page opens it as soon as it arrives.";
    const words = h("p", {}, "No run ", h("code", {}, run), again);
    show(content, emptySection("h1", title, words, allRuns()));
    const waiting = (this.view = new View());
    const poll = () =>
      waiting.ask(`${path}/outline`).then(reopen, (error) => error.kind === "not_found" || waiting.fail(error));
    waiting.follow(poll, { isQuiet: true });
  }

  /** Draw what is around the tab. */
  drawFrame() {
    const { content, query, report, run, tab } = this;
    const others = tab === "curves" ? new Set(query.getAll("with").filter((other) => other !== run)).size : 0;
    // Of several runs there are their curves, and no facts of this one.
    this.overlay = others ? `Curves of ${countText(Math.min(others, OVERLAID_MAX) + 1, "run")}` : "";
    if (content.isConnected) document.title = `${this.overlay || report.name || run} · chiplog`;
    setLabelNames(report);
    this.header = h("div");
    this.verdict = verdictSection(run, { isWhole: tab === "ranks" });
    this.verdict.onFailure = () => this.header.querySelector(".run-failure")?.remove(); // the sentence says the same and more
    this.details = h("details", { class: "run-details", open: query.get("details") === "1" });
    this.element = h("section", { class: `run-tab tab-${tab}`, "aria-label": TABS[tab] });
    this.tabs = tabBar(run, tab);
    this.choice = h("span");
    this.drawHead();
    this.drawDetails();
    this.drawChoice();
    this.details.addEventListener("toggle", () => {
      setParameters({ details: this.details.open ? 1 : null });
      this.tabs.setLinks();
      this.drawDetails();
    });
    this.element.addEventListener("labels", () => (this.drawChoice(), this.onLabels())); // a tab has changed the choice
    const onDeleted = ([gone]) => {
      if (!gone) return;
      known = null;
      location.hash = addressOf(["runs"]);
    };
    const buttons = h(
      "div",
      { hidden: Boolean(this.overlay) },
      h("button", { onclick: () => editRun(this.report, () => this.refresh()) }, "Edit"),
      " ",
      h("button", { onclick: () => deleteRuns([this.report], onDeleted) }, "Delete"),
    );
    const bar = this.overlay ? h("span", { class: "tabs" }) : this.tabs.bar;
    show(
      content,
      h("header", { class: "run-header" }, this.header, buttons),
      this.overlay ? null : this.verdict.element,
      h("div", { class: "tab-line" }, bar, this.choice, viewsMenu(run, tab, () => this.report)),
      this.element,
      this.overlay ? null : this.details,
    );
    show(this.element, quiet("Loading…"));
  }

  drawHead() {
    if (this.overlay) show(this.header, h("div", { class: "run-title" }, h("h1", {}, this.overlay)));
    else drawHeader(this.header, this.report, this.verdict);
  }

  drawDetails() {
    drawDetails(this.details, this.report, this.whole);
  }

  drawChoice() {
    show(this.choice, labelsSelect(this.report, () => this.onLabels()));
  }

  onLabels() {
    this.tabs.setLinks();
    this.notifyTab();
  }

  /** Give the report to the tab: it shows parts of it, or of the labels. */
  notifyTab() {
    this.element.dispatchEvent(new CustomEvent("report", { detail: this.report }));
  }

  /** Follow changes of the run from now on. */
  followRun() {
    const live = this.follow(() => this.refresh(), {
      pauseMs: () => (isActive(this.report) ? PAUSE_MS : PAUSE_QUIET_MS),
      pauseFactor: PAUSE_FACTOR,
      isQuiet: this.isFresh,
      isUrgent: ({ n_deleted: n }) => {
        const before = this.nDeleted ?? n;
        this.nDeleted = n;
        return n !== before; // this run, perhaps
      },
    });
    if (!this.isFresh) live.changed();
    else this.loadVerdict();
    if (this.overlay) return;
    const clock = setInterval(() => this.report.ended_at ?? drawDuration(this.header, this.report), 1000);
    this.atEnd(() => clearInterval(clock));
  }

  async refresh() {
    const { isOutline } = this.report;
    try {
      this.report = known = await ask(this.path); // also for the next tab, if this view is closed
    } catch (error) {
      if (error.kind !== "not_found" || !this.isOpen) return this.fail(error);
      known = null;
      this.waitForRun("This run was deleted");
      return true;
    }
    if (!this.isOpen) return true;
    this.succeed();
    this.isFresh = true;
    setLabelNames(this.report);
    this.drawHead();
    this.loadVerdict();
    if (this.details.open || this.details.hidden) this.drawDetails();
    if (isOutline || !this.choice.contains(document.activeElement)) this.drawChoice(); // an open list stays as it is
    this.notifyTab();
    return true;
  }

  /** Ask for the verdict after what the tab shows: it reads all phases. The tab of ranks asks itself. */
  loadVerdict() {
    const { report, verdictReport: before } = this;
    if (this.tab === "ranks" || this.overlay || performance.now() - this.verdictAt < VERDICT_PAUSE_MS) return;
    if (before && !isActive(before) && !isActive(report) && !hasGrown(before, report)) return;
    this.verdictAt = performance.now();
    this.verdictReport = report;
    // What it would say of a failure is in the tab of ranks, with the reason.
    this.verdict.load(this.signal).catch(() => (this.verdictReport = null));
  }
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
    ["collector", report.places?.map(placeText).join("; ")],
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

/** Return where a part of the run lives, and up to when it is known: a time, since nothing may come to redraw its age. */
function placeText({ collector, is_here: isHere, is_silent: isSilent, seen_at: seenAt }) {
  if (isHere) return "here";
  return `${collector}${seenAt ? `, as of ${timeText(seenAt)}` : ""}${isSilent ? ", silent" : ""}`;
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
  const table = entries.length ? h("table", { class: "grid values" }, body) : quiet(none);
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
