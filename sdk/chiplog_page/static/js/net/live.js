// What a view does whenever the database has changed: at most once in a while, and only while it can be seen.

import { notice } from "../dom.js";
import { follow } from "./api.js";

const PAUSE_MOST_MS = 5000; // one slow answer does not stop a view for long
const RETRY_MS = 1000; // after a failure; twice as long after each further one
const RETRY_MOST_MS = 15_000; // a query that takes too long each time is not most of what the server does
const AFTER_END_MS = 90_000; // events and samples of an agent belong to a run until 60 s after its end, and take a while
const LONG_OVER_MS = 3_600_000; // more than the clocks of two machines differ

/** Return true while more data of a run may arrive. Changes of the database after that concern other runs. */
export function isActive(report) {
  return report.n_running > 0 || (report.completeness?.pending ?? 0) !== 0;
}

/**
 * Return a function that returns true while more data of a run may arrive, also from the agents of its nodes. These send
 * samples and events of GPUs after the end of the run, too. The time after it begins with the first change that a view
 * receives then: a page that was hidden shows what came in the meantime.
 * @param {function(): Object} reportOf returns the newest report of the run
 */
export function agentActivity(reportOf) {
  const isOver = () => !isActive(reportOf());
  const isLongOver = isOver() && Date.now() - Date.parse(reportOf().ended_at) > LONG_OVER_MS;
  let until = isLongOver ? 0 : null;
  return () => {
    if (!isOver()) until = null;
    else until ??= performance.now() + AFTER_END_MS;
    return until === null || performance.now() < until;
  };
}

/** Return true if a report has events that the one before had not, as the last ones of a run that has ended since. */
export function hasGrown(before, report) {
  if (before.isOutline) return isActive(before); // it has no number of events
  return report.completeness.stored !== before.completeness.stored;
}

/**
 * Call a function after changes. It is called again only after a pause: longer where its answers take long. After a
 * failure it is called again without a change, too: the last change of a run is followed by no other.
 * @param {function(): Promise} refresh asks for what is new; reports its errors itself, and then returns false
 * @param {{pauseMs: (number|function(): number), pauseFactor: number, canRefresh: function(): boolean,
 *   concerns: function(): boolean, isUrgent: function(change): boolean, isQuiet: boolean}} options concerns: whether a change
 *   of the database now can change the view; isUrgent: whether it does not wait for the pause; isQuiet: the view has
 *   just been drawn, so the first call comes after a pause, too
 * @returns {{changed: function(), later: function(), close: function()}} changed: as if the database had changed;
 *   later: when canRefresh() may have become true
 */
export function liveRefresh(
  refresh,
  {
    pauseMs = 1000,
    pauseFactor = 5,
    canRefresh = () => true,
    concerns = () => true,
    isUrgent = () => false,
    isQuiet = false,
  } = {},
) {
  let timer = null;
  let isBusy = false;
  let isStale = false;
  let isHurried = false;
  let isClosed = false;
  let nFailed = 0; // calls in a row
  const pause = typeof pauseMs === "function" ? pauseMs : () => pauseMs;
  let notBefore = isQuiet ? performance.now() + pause() : 0;

  async function run() {
    timer = null;
    if (document.hidden || !canRefresh()) return;
    isBusy = true;
    isStale = isHurried = false;
    const began = performance.now();
    let hasFailed = true; // also after an exception
    try {
      hasFailed = (await refresh()) === false;
    } finally {
      isBusy = false;
      isStale ||= hasFailed;
      if (nFailed && !hasFailed && !isClosed) notice("");
      nFailed = hasFailed ? nFailed + 1 : 0;
      const retry = nFailed && Math.min(RETRY_MOST_MS, RETRY_MS * 2 ** (nFailed - 1));
      const now = performance.now();
      notBefore = now + Math.max(pause(), retry, Math.min(PAUSE_MOST_MS, pauseFactor * (now - began)));
      later();
    }
  }

  function later() {
    if (!isStale || isBusy || isClosed || timer !== null || document.hidden || !canRefresh()) return;
    timer = setTimeout(run, isHurried ? 0 : Math.max(0, notBefore - performance.now()));
  }

  function changed() {
    isStale = true;
    later();
  }

  document.addEventListener("visibilitychange", later);
  const unfollow = follow((change) => {
    if (change.error || !concerns()) return;
    if (isUrgent(change)) {
      isHurried = true;
      clearTimeout(timer);
      timer = null;
    }
    changed();
  });
  return {
    changed,
    later,
    close() {
      isClosed = true;
      clearTimeout(timer);
      unfollow();
      document.removeEventListener("visibilitychange", later);
    },
  };
}
