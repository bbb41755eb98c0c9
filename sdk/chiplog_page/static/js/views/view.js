// What every view shares: requests that end with it, answers in their turn, one notice for a failure, controls that rest
// before they act, and what it does when the database changes.

import { h, notice } from "../dom.js";
import { setParameters } from "../net/address.js";
import { ask } from "../net/api.js";
import { liveRefresh } from "../net/live.js";

export const MARGIN_PX = 150; // elements that are so near to the screen count as visible

/** A view. It is made, started once, and closed, perhaps before it has started. */
export class View {
  ending = new AbortController();
  ends = []; // called when the view is closed
  turns = new Map(); // of requests, by what they ask for
  timers = new Map(); // by control
  state = {}; // what the address has
  hasFailed = false;

  /** Draw the view. The page shows why it failed. */
  async start() {}

  close() {
    this.ending.abort();
    for (const timer of this.timers.values()) clearTimeout(timer);
    for (const end of this.ends) end();
  }

  get signal() {
    return this.ending.signal;
  }

  get isOpen() {
    return !this.signal.aborted;
  }

  /** Call a function when the view is closed; at once if it is. */
  atEnd(action) {
    if (this.isOpen) this.ends.push(action);
    else action();
  }

  /** Ask for JSON until the view is closed. Arguments: as of `ask`. */
  ask(path, query, options) {
    return ask(path, query, { signal: this.signal, ...options });
  }

  /** Begin a request; return a function that returns true until a later one for the same begins, or the view is closed. */
  begin(what) {
    const turn = (this.turns.get(what) ?? 0) + 1;
    this.turns.set(what, turn);
    return () => this.isOpen && this.turns.get(what) === turn;
  }

  /** Report why a request failed; return false, as the `refresh` of `liveRefresh` does. about: what was asked for. */
  fail(error, about = "") {
    if (error.name === "AbortError" || !this.isOpen) return false;
    notice(about + error.message, true);
    this.hasFailed = true;
    return false;
  }

  /** Clear the notice of a failure. */
  succeed() {
    if (this.hasFailed) notice("");
    this.hasFailed = false;
  }

  /** Change the state, also in the address. */
  change(changes) {
    Object.assign(this.state, changes);
    setParameters(changes);
  }

  /** Call refresh() after changes of the database. options: as of `liveRefresh`. */
  follow(refresh, options) {
    const live = liveRefresh(refresh, options);
    this.atEnd(live.close);
    return live;
  }

  listen(target, type, listener, options = {}) {
    target.addEventListener(type, listener, { ...options, signal: this.signal });
  }

  /** Call a function once a control rests. */
  later(control, ms, action) {
    this.cancel(control);
    if (this.isOpen) this.timers.set(control, setTimeout(action, ms));
  }

  cancel(control) {
    clearTimeout(this.timers.get(control));
  }

  /** Return an input for a search; action(text) is called once it rests. */
  searchInput(title, value, ms, action, attributes = {}) {
    const oninput = ({ target }) => this.later(title, ms, () => action(target.value));
    return h("input", { type: "search", class: "grow", placeholder: title, "aria-label": title, value, oninput, ...attributes });
  }

  /** Return what observes elements; onSeen(entries) is called when one comes near to the screen, or leaves it. */
  observer(onSeen) {
    const observer = new IntersectionObserver(onSeen, { rootMargin: `${MARGIN_PX}px` });
    this.atEnd(() => observer.disconnect());
    return observer;
  }
}

/** A view of the whole page: what is after its name in the address, and the parameters there. */
export class PageView extends View {
  constructor(content, rest, query) {
    super();
    Object.assign(this, { content, rest, query });
  }
}
