// What a view does whenever the database has changed: at most once in a while, and only while it can be seen.

import { follow } from "./api.js";

/**
 * Call a function after changes. It is called again only after a pause: longer where its answers take long.
 * @param {function(): Promise} refresh asks for what is new; reports its errors itself
 * @param {{pauseMs: number, pauseFactor: number, canRefresh: function(): boolean, isQuiet: boolean}} options
 *   isQuiet: the view has just been drawn, so the first call comes after a pause, too
 * @returns {{changed: function(), later: function(), close: function()}} changed: as if the database had changed;
 *   later: when canRefresh() may have become true
 */
export function liveRefresh(
  refresh,
  { pauseMs = 1000, pauseFactor = 5, canRefresh = () => true, isQuiet = false } = {},
) {
  let timer = null;
  let isBusy = false;
  let isStale = false;
  let isClosed = false;
  let notBefore = isQuiet ? performance.now() + pauseMs : 0;

  async function run() {
    timer = null;
    if (document.hidden || !canRefresh()) return;
    isBusy = true;
    isStale = false;
    const began = performance.now();
    await refresh();
    isBusy = false;
    notBefore = performance.now() + Math.max(pauseMs, pauseFactor * (performance.now() - began));
    later();
  }

  function later() {
    if (!isStale || isBusy || isClosed || timer !== null || document.hidden || !canRefresh()) return;
    timer = setTimeout(run, Math.max(0, notBefore - performance.now()));
  }

  function changed() {
    isStale = true;
    later();
  }

  document.addEventListener("visibilitychange", later);
  const unfollow = follow((change) => change.error || changed());
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
