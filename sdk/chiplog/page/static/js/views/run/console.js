// Printed lines of all labels or of one, in the order of their times. New lines are added at their places, older ones are
// loaded at the top; a few thousand lines are in the document at a time.

import { h, notice, show } from "../../dom.js";
import { addressOf, setParameters } from "../../net/address.js";
import { ask, objects, part } from "../../net/api.js";
import { isActive, liveRefresh } from "../../net/live.js";
import { ansiPieces } from "../../text/ansi.js";
import { chosenLabels, labelText, labelsChoice, noLabelsText, onOtherLabels } from "../../text/labels.js";
import { clockText, countText, timeText, zoneText } from "../../text/texts.js";

const LOAD_LINES = 500;
const LINES_MAX = 3000; // in the document
const NEW_LINES_MAX = 2000; // of one request
const SEARCH_WAIT_MS = 250;
const HEIGHT_MIN_PX = 260;
const EDGE_PX = 400; // closer to the top than this loads older lines

/** Lines do not wait for the report of the run. */
export const beginsWithOutline = true;

export async function open(element, run, query, firstReport) {
  let report = firstReport;
  const path = `runs/${part(run)}/console`;
  const aborted = new AbortController();
  const { signal } = aborted;
  const state = { search: query.get("search") ?? "", at: query.get("at") };
  let lines = []; // {key, ts, row, element}, in the order of the document
  let hasOlder = true;
  let hasNewer = false; // the end was dropped, or a time was asked for
  let resume = null; // all lines that were stored until then are here, as far as they are within those shown
  let isLoaded = false;
  let hasFailed = false; // the last request, which the line at the bottom reports
  let turn = 0;
  let isLoading = false;

  const labels = () => chosenLabels(report);
  const isNone = () => labels()?.length === 0;
  const changeLabels = onOtherLabels(report, () => restart({ at: state.at }));
  const onReport = ({ detail }) => {
    // Lines may be stored before it is known whose they are.
    const before = report;
    report = detail;
    if (detail.n_labels !== before.n_labels) resume = null;
    if (!before.isOutline) {
      if (detail.labels.length !== before.labels.length) resume = null;
      if (detail.completeness.stored !== before.completeness.stored) live.changed(); // also the last of an ended run
    }
    const wasAtEnd = isAtEnd();
    fit(); // the header may have grown
    if (wasAtEnd) body.scrollTop = body.scrollHeight;
    changeLabels(detail);
  };
  element.addEventListener("report", onReport);
  let searchTimer = null;
  const search = h("input", {
    type: "search",
    class: "grow",
    placeholder: "Search the lines",
    "aria-label": "Search the lines",
    value: state.search,
    oninput: () => {
      clearTimeout(searchTimer);
      searchTimer = setTimeout(() => restart({ search: search.value }), SEARCH_WAIT_MS);
    },
  });
  const end = h("button", { onclick: () => restart({}) }, "To the end");
  const count = h("span", { class: "quiet small", role: "status" });
  const body = h("div", {
    class: "lines",
    role: "log",
    "aria-live": "off",
    tabindex: 0,
    "aria-label": "Printed lines",
  });
  show(element, h("div", { class: "bar" }, search, end, count), body);

  // The lines fill the rest of the window.
  const fit = () => {
    const top = body.getBoundingClientRect().top + scrollY;
    body.style.height = `${Math.max(HEIGHT_MIN_PX, innerHeight - top - 20)}px`;
  };
  fit();
  addEventListener("resize", fit);

  const isAtEnd = () => !hasNewer && body.scrollHeight - body.scrollTop - body.clientHeight < 30;

  async function restart(changes) {
    Object.assign(state, { at: null }, changes);
    setParameters(state);
    await load();
  }

  async function load() {
    const mine = ++turn;
    isLoading = true;
    const { at } = state;
    const read = async (direction) =>
      isNone() ? { columns: [], rows: [] } : ask(path, { ...asked(), at, direction, limit: LOAD_LINES }, { signal });
    try {
      const before = await read();
      const after = at ? await read("after") : null; // not earlier: `resume` is of the first answer
      if (mine !== turn) return;
      lines = [];
      body.replaceChildren();
      hasOlder = before.rows.length === LOAD_LINES;
      hasNewer = after?.rows.length === LOAD_LINES;
      resume = before.resume ?? null;
      isLoaded = true;
      add(objects(before));
      const place = lines.length - 1;
      if (after) add(objects(after));
      if (state.at) {
        const there = lines[Math.max(place, 0)]?.element;
        there?.classList.add("chosen");
        if (there) body.scrollTop = there.offsetTop - (body.clientHeight - there.offsetHeight) / 2;
      } else {
        body.scrollTop = body.scrollHeight;
      }
      succeed();
    } catch (error) {
      if (mine !== turn) return;
      lines = []; // they may be of another search
      hasOlder = hasNewer = isLoaded = false;
      fail(error);
    } finally {
      if (mine === turn) isLoading = false;
    }
  }

  function succeed() {
    if (hasFailed) notice("");
    hasFailed = false;
    drawCount();
  }

  function fail(error) {
    if (error.name === "AbortError") return;
    if (!lines.length) {
      show(body, h("p", { class: "error" }, error.message));
      return;
    }
    hasFailed = true;
    notice(error.message, true);
  }

  /** Add lines that are not there yet, each at its place. */
  function add(rows) {
    const known = new Set(lines.map((line) => line.key));
    let added = 0;
    for (const row of rows) {
      const key = JSON.stringify([row.label, row.attempt, row.stream, row.line_no]);
      if (known.has(key)) continue;
      const line = { key, row, ts: row.ts, element: drawLine(row) };
      let place = lines.length;
      while (place > 0 && compare(lines[place - 1].row, row) > 0) place--;
      body.insertBefore(line.element, lines[place]?.element ?? null);
      lines.splice(place, 0, line);
      added++;
    }
    return added;
  }

  function drawLine(row) {
    const time = clockText(row.ts).slice(11, 23).padEnd(12, row.ts.includes(".") ? "0" : ".000");
    const link = addressOf(["run", run, "console"], { labels: labelsChoice(), search: state.search, at: row.ts });
    return h(
      "div",
      { class: row.stream === "stderr" ? "line stderr" : "line" },
      h("a", { class: "time", href: link, title: `${timeText(row.ts)}, line ${row.line_no} of ${row.stream}` }, time),
      labels()?.length === 1 ? null : h("span", { class: "of clip", title: labelText(row.label) }, labelText(row.label)),
      h(
        "span",
        { class: "text" },
        ansiPieces(row.line).map(({ text, classes }) => (classes ? h("span", { class: classes }, text) : text)),
      ),
    );
  }

  function trim(isFromTop) {
    const tooMany = lines.length - LINES_MAX;
    if (tooMany <= 0) return;
    const removed = isFromTop ? lines.splice(0, tooMany) : lines.splice(LINES_MAX, tooMany);
    for (const line of removed) line.element.remove();
    if (isFromTop) hasOlder = true;
    else hasNewer = true;
  }

  function drawCount() {
    const words = [`${countText(lines.length, "line")} shown, times in ${zoneText()}`];
    if (hasOlder) words.push("older ones load at the top");
    if (hasNewer) words.push("newer ones at the end");
    count.textContent = words.join(", ");
    end.disabled = isAtEnd();
    if (lines.length) body.querySelector(":scope > p")?.remove();
    else
      show(
        body,
        h(
          "p",
          { class: "empty quiet" },
          isNone()
            ? noLabelsText(report)
            : state.search
              ? "No line has this text."
              : labels()
                ? "The chosen labels printed nothing that was recorded."
                : "Nothing was printed yet, or the console was not recorded.",
        ),
      );
  }

  /**
   * Run a request for further lines, unless there is one: it continues while no other lines are chosen. Return false
   * after a failure.
   */
  async function loadMore(request) {
    if (isLoading) return true;
    isLoading = true;
    const mine = turn;
    const isWanted = () => mine === turn;
    try {
      await request(isWanted);
      if (!isWanted()) return true;
      isLoading = false;
      succeed();
    } catch (error) {
      if (!isWanted()) return true;
      isLoading = false;
      fail(error);
      return false;
    }
    loadAtEdges(); // a scroll in the meantime has loaded nothing
    return true;
  }

  function loadOlder() {
    if (!hasOlder || !lines.length) return;
    loadMore(async (isWanted) => {
      // Lines of the same microsecond are asked for again; more of them than a request has are too many to read.
      let answer = await ask(path, { ...asked(), at: lines[0].ts, limit: LOAD_LINES + 1 }, { signal });
      if (!isWanted()) return;
      const height = body.scrollHeight;
      const top = body.scrollTop;
      let added = add(objects(answer));
      if (!added && answer.rows.length > LOAD_LINES) {
        answer = await ask(path, { ...asked(), at: lines[0].ts, limit: NEW_LINES_MAX }, { signal });
        if (!isWanted()) return;
        added = add(objects(answer));
      }
      hasOlder = added > 0 && answer.rows.length > LOAD_LINES;
      trim(false);
      body.scrollTop = top + body.scrollHeight - height;
    });
  }

  /** Load lines whose times are after the last one, and the rest of those at its time. */
  function loadLater() {
    loadMore(async (isWanted) => {
      const askAfter = (at) =>
        ask(path, { ...asked(), at, direction: "after", limit: NEW_LINES_MAX }, { signal });
      const { ts } = lines.at(-1);
      let answer = await askAfter(justBefore(ts));
      if (!isWanted()) return;
      // More lines of one microsecond than a request has are too many to read.
      if (!append(objects(answer)) && answer.rows.length === NEW_LINES_MAX) {
        answer = await askAfter(ts);
        if (!isWanted()) return;
        append(objects(answer));
      }
      hasNewer = answer.rows.length === NEW_LINES_MAX;
    });
  }

  /** Load lines that were stored since the last answer, whatever their times. Return false after a failure. */
  async function follow() {
    if (isLoading) return true;
    if (!isLoaded) {
      await load();
      return isLoaded || isLoading;
    }
    return loadMore(async (isWanted) => {
      const from = resume;
      const answer = await ask(path, { ...asked(), resume: from, limit: NEW_LINES_MAX }, { signal });
      if (!isWanted()) return;
      const rows = objects(answer);
      if (rows.length === NEW_LINES_MAX && (from || !lines.length || compare(rows[0], lines.at(-1).row) > 0)) {
        load(); // lines before these are missing
        return;
      }
      // Those before the first line are loaded with others, at the top.
      append(hasOlder ? rows.filter((row) => compare(row, lines[0].row) > 0) : rows);
      if (resume === from) resume = answer.resume ?? from;
    });
  }

  /** Add lines at the end, and return how many are new. */
  function append(rows) {
    const wasAtEnd = isAtEnd(); // now: the reader may have scrolled since the request
    const added = add(rows);
    if (!added) return 0;
    const height = body.scrollHeight;
    trim(true);
    if (wasAtEnd) body.scrollTop = body.scrollHeight;
    else body.scrollTop -= height - body.scrollHeight;
    return added;
  }

  const asked = () => ({ label: labels(), search: state.search });

  function loadAtEdges() {
    if (body.scrollTop < EDGE_PX) loadOlder();
    if (hasNewer && body.scrollHeight - body.scrollTop - body.clientHeight < EDGE_PX) loadLater();
  }

  const onScroll = () => {
    loadAtEdges();
    end.disabled = isAtEnd();
  };
  body.addEventListener("scroll", onScroll, { passive: true });

  const live = liveRefresh(follow, {
    pauseFactor: 0,
    canRefresh: () => !isNone() && !hasNewer && isAtEnd(), // a reader further up asks for nothing
    concerns: () => report.isOutline || !isLoaded || isActive(report),
  });
  body.addEventListener("scroll", live.later, { passive: true });

  load();
  return () => {
    aborted.abort();
    clearTimeout(searchTimer);
    live.close();
    removeEventListener("resize", fit);
    element.removeEventListener("report", onReport);
  };
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
