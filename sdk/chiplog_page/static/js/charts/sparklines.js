// A column of small curves: one metric of each run. Only the rows that are on the screen are asked for, in one request.

import { svg } from "../dom.js";
import { ask } from "../net/api.js";
import { numberText } from "../text/texts.js";

const REST_MS = 60; // after the last row that came: a fast scroll asks once
const RUNS_MAX = 100; // in one request: a bound of the server
const KEPT_MAX = 2_000; // runs whose curve is remembered
const [WIDTH, HEIGHT] = [100, 20];

export class Sparklines {
  constructor(key, report) {
    this.key = key;
    this.report = report;
    this.kept = new Map(); // by run: {run, points}; run: its row when the curve was asked for
    this.drawn = new Map(); // by run: the element of its cell
    this.timer = null;
    this.ending = new AbortController();
  }

  close() {
    this.ending.abort();
    clearTimeout(this.timer);
  }

  /** Return the cell of a run. Its curve follows. */
  cell(run) {
    const element = svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    const old = this.kept.get(run.run_id);
    this.drawn.set(run.run_id, { run, element });
    fill(element, this.key, old?.points);
    if (old?.run !== run) this.later();
    return element;
  }

  /** The database has changed: ask again for the visible runs that still run. */
  changed() {
    for (const kept of this.kept.values()) if (kept.run?.state === "running") kept.run = null;
    this.later();
  }

  later() {
    if (this.isBusy) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), REST_MS);
  }

  async load() {
    for (const [id, { element }] of this.drawn) if (!element.isConnected) this.drawn.delete(id);
    const lacking = [...this.drawn.values()].filter(({ run }) => this.kept.get(run.run_id)?.run !== run).slice(0, RUNS_MAX);
    if (!lacking.length) return;
    this.isBusy = true;
    try {
      const ids = lacking.map(({ run }) => run.run_id);
      const found = await ask("sparklines", { key: this.key, run: ids }, { signal: this.ending.signal });
      for (const { run } of lacking) this.keep(run, found[run.run_id] ?? []);
    } catch (reason) {
      if (reason.name === "AbortError") return;
      this.report(reason);
      for (const { run } of lacking) this.keep(run, []); // not asked for until the run changes
    } finally {
      this.isBusy = false;
    }
    this.later(); // rows that came in the meantime
  }

  keep(run, points) {
    this.kept.delete(run.run_id);
    this.kept.set(run.run_id, { run, points });
    if (this.kept.size > KEPT_MAX) this.kept.delete(this.kept.keys().next().value);
    const cell = this.drawn.get(run.run_id);
    if (cell) fill(cell.element, this.key, points);
  }
}

/**
 * Return the path of points, the lowest at the bottom; a part of the run that is NaN is a gap, one without a value is not. A
 * number that is alone is a dot.
 */
export function pathOf(points) {
  const numbers = points.filter((value) => typeof value === "number");
  const [least, most] = [Math.min(...numbers), Math.max(...numbers)];
  const x = (at) => ((at + 0.5) * WIDTH) / points.length;
  const y = (value) => (most > least ? 2 + ((most - value) / (most - least)) * (HEIGHT - 4) : HEIGHT / 2);
  const pieces = [[]];
  points.forEach((value, at) => {
    if (value === "nan") pieces.push([]);
    else if (value !== null) pieces.at(-1).push(`${x(at).toFixed(1)} ${y(value).toFixed(1)}`);
  });
  return pieces.filter(({ length }) => length).map((places) => `M${places.join("L")}${places.length === 1 ? "h0" : ""}`).join("");
}

function fill(element, key, points) {
  element.replaceChildren();
  const numbers = (points ?? []).filter((value) => typeof value === "number");
  if (!numbers.length) {
    element.setAttribute("aria-label", points ? `${key} was not logged` : "");
    return;
  }
  const [least, most] = [Math.min(...numbers), Math.max(...numbers)];
  const [from, to, low, high] = [numbers[0], numbers.at(-1), least, most].map((value) => numberText(value));
  const text = `${key}, means of ${points.length} parts of its steps: from ${from} to ${to}, least ${low}, most ${high}`;
  element.setAttribute("aria-label", text);
  element.append(svg("title", {}, text), svg("path", { d: pathOf(points) }));
}
