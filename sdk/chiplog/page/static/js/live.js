// What a view does whenever the database has changed: at most once in a while, and only while it can be seen.

import { follow } from "./api.js";

const PAUSE_MOST_MS = 5000; // one slow answer does not stop a view for long

/** Return true while more data of a run may arrive. Changes of the database after that concern other runs. */
export function isActive(report) {
  return report.n_running > 0 || (report.completeness?.pending ?? 0) !== 0;
}

/** Return true if a report has events that the one before had not, as the last ones of a run that has ended since. */
export function hasGrown(before, report) {
  return !before.isOutline && report.completeness.stored !== before.completeness.stored;
}

/**
 * Call a function after changes. It is called again only after a pause: longer where its answers take long.
 * @param {function(): Promise} refresh asks for what is new; reports its errors itself
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
  const pause = typeof pauseMs === "function" ? pauseMs : () => pauseMs;
  let notBefore = isQuiet ? performance.now() + pause() : 0;

  async function run() {
    timer = null;
    if (document.hidden || !canRefresh()) return;
    isBusy = true;
    isStale = isHurried = false;
    const began = performance.now();
    try {
      await refresh();
    } finally {
      isBusy = false;
      const now = performance.now();
      notBefore = now + Math.max(pause(), Math.min(PAUSE_MOST_MS, pauseFactor * (now - began)));
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
