// Requests to the API of this server. All paths are relative, so that the page works behind a path prefix.

import { notice } from "../dom.js";
import { parametersOf } from "./address.js";

const NO_ANSWER = "chiplog ui does not answer; is it still running?";

/** An answer that says why there is no result. `kind` as of the API: refused, sql, timeout, unreachable, signed_out, … */
export class ApiError extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

/**
 * Ask for JSON.
 * @param {string} path below api/, each part encoded by `part`
 * @param {Object} query values, or arrays of values for a repeated parameter; null and "" are left out
 * @param {{signal?: AbortSignal, method?: string, body?: Object}} options
 */
export async function ask(path, query = {}, { signal, method = "GET", body } = {}) {
  const text = parametersOf(query).toString();
  let response;
  try {
    response = await fetch(`api/${path}${text ? "?" + text : ""}`, {
      method,
      signal,
      headers: body ? { "content-type": "application/json" } : {},
      body: body ? JSON.stringify(body) : undefined,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("unreachable", NO_ANSWER);
  }
  const answer = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    if (response.ok) throw new ApiError("unreachable", "The response of chiplog ui was incomplete.");
  });
  if (response.ok) return answer;
  const { kind = "internal", message = response.statusText } = answer?.error ?? {};
  throw new ApiError(kind, message);
}

/** Encode one part of a path, such as a run ID. */
export const part = encodeURIComponent;

/** Return rows as objects from an answer with `columns` and `rows`. */
export function objects({ columns, rows }) {
  return rows.map((row) => Object.fromEntries(columns.map((name, at) => [name, row[at]])));
}

/**
 * Call a function whenever the database has changed, or with an error; return a function that ends this.
 * One connection serves the whole page, and only while it can be seen: a browser opens six to a server, for all its
 * windows together. A page that becomes visible again receives the newest state.
 */
export function follow(onChange) {
  listeners.add(onChange);
  connect();
  return () => {
    listeners.delete(onChange);
    connect();
  };
}

function connect() {
  const isWanted = listeners.size > 0 && !document.hidden;
  if (isWanted && !events) {
    events = new EventSource("api/live");
    events.addEventListener("error", onBroken);
    events.addEventListener("change", (event) => {
      const state = JSON.parse(event.data);
      clearTimeout(breaking);
      breaking = null;
      if (state.error) notice(`The database does not answer: ${state.error}`, true);
      else if (wasDown) notice("");
      wasDown = Boolean(state.error);
      for (const listener of listeners) listener(state);
    });
  } else if (!isWanted && events) {
    clearTimeout(breaking);
    breaking = null;
    events.close();
    events = null;
  }
}

document.addEventListener("visibilitychange", connect);

const BROKEN_MS = 3000; // a stream may end and begin again
const AGAIN_MS = 2000; // after a refused stream, as after one that has ended: see `retry` of the server
const listeners = new Set();
let events = null;
let wasDown = false;
let breaking = null;

/** The stream has broken. The browser connects again by itself, unless it was refused: by the server, or by a proxy. */
function onBroken() {
  if (events.readyState === EventSource.CLOSED) {
    clearTimeout(breaking);
    breaking = null;
    events = null;
    explainRefusal();
    return;
  }
  breaking ??= setTimeout(() => reportDown(NO_ANSWER), BROKEN_MS);
}

function reportDown(message) {
  notice(message, true);
  wasDown = true;
}

async function explainRefusal() {
  const kind = await ask("info").then(() => null, (error) => error.kind);
  if (events) return; // another one has begun
  if (kind === "signed_out") {
    reportDown("This browser is signed out; open the address that chiplog ui prints.");
    return;
  }
  reportDown(NO_ANSWER);
  setTimeout(connect, AGAIN_MS);
}
