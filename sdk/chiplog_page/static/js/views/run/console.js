// Printed lines of all labels or of one, in the order of their times. New lines are added at their places, older ones are
// loaded at the top; a few thousand lines are in the document at a time.

import { h, show } from "../../dom.js";
import { addressOf } from "../../net/address.js";
import { objects } from "../../net/api.js";
import { isActive } from "../../net/live.js";
import { ansiPieces } from "../../text/ansi.js";
import { labelText, labelsChoice, noLabelsText } from "../../text/labels.js";
import { clockText, countText, timeText, zoneText } from "../../text/texts.js";
import { RunView } from "./run_view.js";

const LOAD_LINES = 500;
const LINES_MAX = 3000; // in the document
const NEW_LINES_MAX = 2000; // of one request
const SEARCH_WAIT_MS = 250;
const HEIGHT_MIN_PX = 260;
const EDGE_PX = 400; // closer to the top than this loads older lines

export default class ConsoleTab extends RunView {
  static beginsWithOutline = true; // lines do not wait for the report of the run

  state = { search: this.query.get("search") ?? "", at: this.query.get("at") };
  lines = []; // {key, ts, row, element}, in the order of the document
  hasOlder = true;
  hasNewer = false; // the end was dropped, or a time was asked for
  resume = null; // all lines that were stored until then are here, as far as they are within those shown
  isLoaded = false;
  isLoading = false;

  async start() {
    const search = this.searchInput("Search the lines", this.state.search, SEARCH_WAIT_MS, (text) => this.restart({ search: text }));
    this.toEnd = h("button", { onclick: () => this.restart({}) }, "To the end");
    this.count = h("span", { class: "quiet small", role: "status" });
    this.body = h("div", { class: "lines", role: "log", "aria-live": "off", tabindex: 0, "aria-label": "Printed lines" });
    show(this.element, h("div", { class: "bar" }, search, this.toEnd, this.count), this.body);
    this.fit();
    this.listen(window, "resize", () => this.fit());
    this.followReports();
    this.listen(this.body, "scroll", () => this.onScroll(), { passive: true });
    this.live = this.follow(() => this.followLines(), {
      pauseFactor: 0,
      canRefresh: () => !this.hasNoLabels && !this.hasNewer && this.isAtEnd, // a reader further up asks for nothing
      concerns: () => this.report.isOutline || !this.isLoaded || isActive(this.report),
    });
    this.load();
  }

  onLabels() {
    this.restart({ at: this.state.at });
  }

  onReport(before) {
    const { report } = this;
    // Lines may be stored before it is known whose they are.
    if (report.n_labels !== before.n_labels) this.resume = null;
    if (!before.isOutline) {
      if (report.labels.length !== before.labels.length) this.resume = null;
      if (report.completeness.stored !== before.completeness.stored) this.live.changed(); // also the last of an ended run
    }
    const wasAtEnd = this.isAtEnd;
    this.fit(); // the header may have grown
    if (wasAtEnd) this.scrollToEnd();
  }

  /** Let the lines fill the rest of the window. */
  fit() {
    const top = this.body.getBoundingClientRect().top + scrollY;
    this.body.style.height = `${Math.max(HEIGHT_MIN_PX, innerHeight - top - 20)}px`;
  }

  get isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.body;
    return !this.hasNewer && scrollHeight - scrollTop - clientHeight < 30;
  }

  scrollToEnd() {
    this.body.scrollTop = this.body.scrollHeight;
  }

  onScroll() {
    this.loadAtEdges();
    this.toEnd.disabled = this.isAtEnd;
    this.live.later();
  }

  async restart(changes) {
    this.change({ ...this.state, at: null, ...changes });
    await this.load();
  }

  /** Ask for lines. query: beside the chosen labels and the search. */
  askLines(query) {
    return this.ask(`${this.path}/console`, { label: this.labels, search: this.state.search, ...query });
  }

  async load() {
    const isNewest = this.begin("lines");
    this.isLoading = true;
    const { at } = this.state;
    const read = async (direction) =>
      this.hasNoLabels ? { columns: [], rows: [] } : this.askLines({ at, direction, limit: LOAD_LINES });
    try {
      const before = await read();
      const after = at ? await read("after") : null; // not earlier: `resume` is of the first answer
      if (!isNewest()) return;
      this.lines = [];
      this.body.replaceChildren();
      this.hasOlder = before.rows.length === LOAD_LINES;
      this.hasNewer = after?.rows.length === LOAD_LINES;
      this.resume = before.resume ?? null;
      this.isLoaded = true;
      this.add(objects(before));
      const place = this.lines.length - 1;
      if (after) this.add(objects(after));
      if (this.state.at) {
        const there = this.lines[Math.max(place, 0)]?.element;
        there?.classList.add("chosen");
        if (there) this.body.scrollTop = there.offsetTop - (this.body.clientHeight - there.offsetHeight) / 2;
      } else {
        this.scrollToEnd();
      }
      this.succeed();
    } catch (error) {
      if (!isNewest()) return;
      this.lines = []; // they may be of another search
      this.hasOlder = this.hasNewer = this.isLoaded = false;
      this.fail(error);
    } finally {
      if (isNewest()) this.isLoading = false;
    }
  }

  succeed() {
    super.succeed();
    this.drawCount();
  }

  fail(error) {
    if (this.lines.length) return super.fail(error);
    show(this.body, h("p", { class: "error" }, error.message));
    return false;
  }

  /** Add lines that are not there yet, each at its place. */
  add(rows) {
    const { lines } = this;
    const known = new Set(lines.map((line) => line.key));
    let added = 0;
    for (const row of rows) {
      const key = JSON.stringify([row.label, row.attempt, row.stream, row.line_no]);
      if (known.has(key)) continue;
      const line = { key, row, ts: row.ts, element: this.drawLine(row) };
      let place = lines.length;
      while (place > 0 && compare(lines[place - 1].row, row) > 0) place--;
      this.body.insertBefore(line.element, lines[place]?.element ?? null);
      lines.splice(place, 0, line);
      added++;
    }
    return added;
  }

  drawLine(row) {
    const time = clockText(row.ts).slice(11, 23).padEnd(12, row.ts.includes(".") ? "0" : ".000");
    const link = addressOf(["run", this.run, "console"], { labels: labelsChoice(), search: this.state.search, at: row.ts });
    return h(
      "div",
      { class: row.stream === "stderr" ? "line stderr" : "line" },
      h("a", { class: "time", href: link, title: `${timeText(row.ts)}, line ${row.line_no} of ${row.stream}` }, time),
      this.labels?.length === 1 ? null : h("span", { class: "of clip", title: labelText(row.label) }, labelText(row.label)),
      h(
        "span",
        { class: "text" },
        ansiPieces(row.line).map(({ text, classes }) => (classes ? h("span", { class: classes }, text) : text)),
      ),
    );
  }

  trim(isFromTop) {
    const { lines } = this;
    const tooMany = lines.length - LINES_MAX;
    if (tooMany <= 0) return;
    const removed = isFromTop ? lines.splice(0, tooMany) : lines.splice(LINES_MAX, tooMany);
    for (const line of removed) line.element.remove();
    if (isFromTop) this.hasOlder = true;
    else this.hasNewer = true;
  }

  drawCount() {
    const words = [`${countText(this.lines.length, "line")} shown, times in ${zoneText()}`];
    if (this.hasOlder) words.push("older ones load at the top");
    if (this.hasNewer) words.push("newer ones at the end");
    this.count.textContent = words.join(", ");
    this.toEnd.disabled = this.isAtEnd;
    if (this.lines.length) this.body.querySelector(":scope > p")?.remove();
    else show(this.body, h("p", { class: "empty quiet" }, this.noLineText()));
  }

  noLineText() {
    if (this.hasNoLabels) return noLabelsText(this.report);
    if (this.state.search) return "No line has this text.";
    return this.labels ? "The chosen labels printed nothing that was recorded." : "Nothing was printed yet, or the console was not recorded.";
  }

  /**
   * Run a request for further lines, unless there is one: it continues while no other lines are chosen. Return false
   * after a failure.
   */
  async loadMore(request) {
    if (this.isLoading) return true;
    this.isLoading = true;
    const isWanted = this.begin("lines");
    try {
      await request(isWanted);
      if (!isWanted()) return true;
      this.isLoading = false;
      this.succeed();
    } catch (error) {
      if (!isWanted()) return true;
      this.isLoading = false;
      return this.fail(error);
    }
    this.loadAtEdges(); // a scroll in the meantime has loaded nothing
    return true;
  }

  loadOlder() {
    if (!this.hasOlder || !this.lines.length) return;
    this.loadMore(async (isWanted) => {
      const at = this.lines[0].ts;
      // Lines of the same microsecond are asked for again; more of them than a request has are too many to read.
      let answer = await this.askLines({ at, limit: LOAD_LINES + 1 });
      if (!isWanted()) return;
      const height = this.body.scrollHeight;
      const top = this.body.scrollTop;
      let added = this.add(objects(answer));
      if (!added && answer.rows.length > LOAD_LINES) {
        answer = await this.askLines({ at: this.lines[0].ts, limit: NEW_LINES_MAX });
        if (!isWanted()) return;
        added = this.add(objects(answer));
      }
      this.hasOlder = added > 0 && answer.rows.length > LOAD_LINES;
      this.trim(false);
      this.body.scrollTop = top + this.body.scrollHeight - height;
    });
  }

  /** Load lines whose times are after the last one, and the rest of those at its time. */
  loadLater() {
    this.loadMore(async (isWanted) => {
      const askAfter = (at) => this.askLines({ at, direction: "after", limit: NEW_LINES_MAX });
      const { ts } = this.lines.at(-1);
      let answer = await askAfter(justBefore(ts));
      if (!isWanted()) return;
      // More lines of one microsecond than a request has are too many to read.
      if (!this.append(objects(answer)) && answer.rows.length === NEW_LINES_MAX) {
        answer = await askAfter(ts);
        if (!isWanted()) return;
        this.append(objects(answer));
      }
      this.hasNewer = answer.rows.length === NEW_LINES_MAX;
    });
  }

  /** Load lines that were stored since the last answer, whatever their times. Return false after a failure. */
  async followLines() {
    if (this.isLoading) return true;
    if (!this.isLoaded) {
      await this.load();
      return this.isLoaded || this.isLoading;
    }
    return this.loadMore(async (isWanted) => {
      const from = this.resume;
      const answer = await this.askLines({ resume: from, limit: NEW_LINES_MAX });
      if (!isWanted()) return;
      const { lines } = this;
      const rows = objects(answer);
      if (rows.length === NEW_LINES_MAX && (from || !lines.length || compare(rows[0], lines.at(-1).row) > 0)) {
        this.load(); // lines before these are missing
        return;
      }
      // Those before the first line are loaded with others, at the top.
      this.append(this.hasOlder ? rows.filter((row) => compare(row, lines[0].row) > 0) : rows);
      if (this.resume === from) this.resume = answer.resume ?? from;
    });
  }

  /** Add lines at the end, and return how many are new. */
  append(rows) {
    const wasAtEnd = this.isAtEnd; // now: the reader may have scrolled since the request
    const added = this.add(rows);
    if (!added) return 0;
    const height = this.body.scrollHeight;
    this.trim(true);
    if (wasAtEnd) this.scrollToEnd();
    else this.body.scrollTop -= height - this.body.scrollHeight;
    return added;
  }

  loadAtEdges() {
    const { scrollHeight, scrollTop, clientHeight } = this.body;
    if (scrollTop < EDGE_PX) this.loadOlder();
    if (this.hasNewer && scrollHeight - scrollTop - clientHeight < EDGE_PX) this.loadLater();
  }
}

/** Return the time one microsecond before another one. */
function justBefore(ts) {
  const [whole, fraction = ""] = ts.replace("Z", "").split(".");
  const us = Number(fraction.padEnd(6, "0"));
  const seconds = new Date(Date.parse(`${whole}Z`) - (us ? 0 : 1000)).toISOString().slice(0, 19);
  return `${seconds}.${String((us || 1_000_000) - 1).padStart(6, "0")}Z`;
}

/** Compare as the server sorts. */
function compare(a, b) {
  // Times have no fraction, or six digits: without it comes before.
  const [left, right] = [a.ts, b.ts].map((ts) => ts.replace("Z", "").padEnd(26, ts.includes(".") ? "0" : " "));
  if (left !== right) return left < right ? -1 : 1;
  if (a.label !== b.label) return a.label < b.label ? -1 : 1;
  return a.attempt - b.attempt || a.line_no - b.line_no;
}
