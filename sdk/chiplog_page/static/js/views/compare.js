// Runs beside each other: what differs in their config, summary, phases and machines, and in their metrics: at the same
// step, at the end, and at their best.

import { seriesName } from "../charts/colours.js";
import { h, show } from "../dom.js";
import { checkbox, emptySection, quiet } from "../elements.js";
import { addressOf, wholeOf } from "../net/address.js";
import { wordFilter } from "../text/filter.js";
import { sampleText } from "../text/sample_units.js";
import { agoText, countText, durationText, numberText, secondsOf, secondsText, timeText, valueText, wholeText } from "../text/texts.js";
import { PageView } from "./view.js";

const RUNS_MAX = 10;
const REFRESH_MS = 2_000;
const WHOLE_MS = 60_000; // between two answers that read all samples of the runs

export default class ComparePage extends PageView {
  runs = [...new Set(this.query.getAll("run"))];
  state = { filter: this.query.get("filter") ?? "", all: this.query.get("all"), step: wholeOf(this.query.get("step")) };

  async start() {
    const { runs, state } = this;
    if (runs.length < 2 || runs.length > RUNS_MAX) {
      const how = h("p", {}, `Select 2 to ${RUNS_MAX} in the table of runs, then Compare.`);
      const all = h("a", { class: "button", href: addressOf(["runs"], { run: runs }) }, "All runs");
      show(this.content, emptySection("h1", `${countText(runs.length, "run")} selected`, how, all));
      return;
    }
    this.found = await this.load();
    this.body = h("div", { class: "stack" });
    const redraw = (changes) => {
      this.change(changes);
      this.draw();
    };
    const onStep = ({ target }) => {
      this.change({ step: wholeOf(target.value) });
      this.refresh();
    };
    const step = { type: "number", class: "step-bound", value: state.step, placeholder: "last", "aria-label": "Step of the metrics" };
    show(
      this.content,
      h(
        "div",
        { class: "bar" },
        h("h1", {}, `Compare ${runs.length} runs`),
        this.searchInput("Filter keys", state.filter, 0, (text) => redraw({ filter: text.trim() })),
        h("label", {}, "Metrics at step", h("input", { ...step, onchange: onStep })),
        checkbox("Also equal values", state.all === "1", (isAll) => redraw({ all: isAll ? "1" : null })),
        h("a", { href: addressOf(["run", runs[0], "curves"], { with: runs.slice(1) }) }, "Overlay their curves"),
        h("a", { href: addressOf(["runs"], { run: runs }) }, "Change the selection"),
      ),
      this.body,
    );
    this.draw();
    this.loadWhole();
    // Runs that are over change only when a person edits them: not worth a request for each change of others.
    const lives = this.found.runs.some((run) => run.state === "running");
    if (lives) this.follow(() => this.refresh(), { pauseMs: REFRESH_MS, isQuiet: true });
  }

  async load() {
    const { runs: run } = this;
    const asked = [this.ask("compare", { run }), this.ask("compare/metrics", { run, step: this.state.step })];
    const [answer, metrics] = await Promise.all(asked);
    return { ...answer, metrics };
  }

  /** Ask for values of whole runs, whose samples may be many: the rest of the page does not wait for them. */
  async loadWhole() {
    this.wholeMs = performance.now();
    try {
      this.whole = await this.ask("compare/whole", { run: this.runs });
      this.draw();
    } catch (error) {
      this.fail(error);
    }
  }

  async refresh() {
    if (performance.now() > this.wholeMs + WHOLE_MS) this.loadWhole();
    const isNewest = this.begin("runs");
    try {
      const answer = await this.load();
      if (!isNewest()) return true;
      const isNew = JSON.stringify(answer) !== JSON.stringify(this.found);
      this.found = answer;
      if (isNew) this.draw();
      return true;
    } catch (error) {
      return this.fail(error);
    }
  }

  draw() {
    const { body, found, whole } = this;
    const boxes = () => body.querySelectorAll(".wide");
    const places = new Map([...boxes()].map((box) => [box.ariaLabel, box.scrollLeft]));
    const held = body.contains(document.activeElement) ? document.activeElement.ariaLabel : null;
    const values = { text: (value) => numberText(value), withChange: true, nothing: "No metric differs.", none: "These runs have no metrics." };
    const phases = {
      text: (seconds) => secondsText(seconds, 3),
      withChange: true,
      withBars: true,
      nothing: "No phase differs.",
      none: "These runs have no phases.",
    };
    show(
      body,
      this.runsTable(),
      this.section("Config", found.config, {
        text: valueText,
        nothing: "No value of the config differs.",
        none: "These runs have no config.",
      }),
      this.section("Metrics at the same step, mean of the labels", found.metrics, {
        ...values,
        none: "No metric was logged by two of these runs.",
      }),
      whole && [
        this.section("Final values of metrics, mean of the labels", whole.final, values),
        this.section("Best values of metrics: lowest, or highest as defined", whole.best, values),
      ],
      this.section("Summary: last values, or as defined", found.summary, {
        ...values,
        nothing: "No value of the summary differs.",
        none: "These runs have no summary.",
      }),
      this.section("Share of each phase in the step", found.phase_shares, {
        text: (share) => `${(100 * share).toFixed(1)} %`,
        withBars: true,
        nothing: "No share differs.",
        none: "No run has a phase and the length of its steps.",
      }),
      this.section("Seconds per step and phase, median label", found.phase_medians, phases),
      this.section("Seconds per step and phase, mean label", found.phases, phases),
      whole &&
        this.section("Machines, mean of the whole run", whole.machines, {
          text: (value, entry) => sampleText(entry, value),
          withChange: true,
          nothing: "No mean differs.",
          none: "These runs have no samples of machines.",
        }),
    );
    for (const box of boxes()) {
      box.scrollLeft = places.get(box.ariaLabel) ?? 0;
      if (box.ariaLabel === held) box.focus({ preventScroll: true });
    }
  }

  heads() {
    return this.found.runs.map((run, at) =>
      h(
        "th",
        { scope: "col" },
        h("span", { class: `key ${seriesName(at)}`, "aria-hidden": "true" }),
        h("a", { href: addressOf(["run", run.run_id]), title: run.run_id }, run.name || run.run_id),
      ),
    );
  }

  runsTable() {
    const facts = [
      ["Run ID", (run) => h("code", {}, run.run_id)],
      ["State", (run) => h("span", { class: `chip ${run.state}` }, run.state)],
      ["Started", (run) => h("time", { datetime: run.created_at, title: timeText(run.created_at) }, agoText(run.created_at))],
      ["Duration", (run) => durationText(secondsOf(run)) || "–"],
      ["Labels", (run) => valueText(run.n_labels)],
      ["Failures", (run) => (run.n_failed ? h("span", { class: "error" }, run.n_failed) : "0")],
    ];
    return h(
      "div",
      { class: "panel wide", tabindex: 0, role: "region", "aria-label": "Runs" },
      h(
        "table",
        { class: "grid beside" },
        h("thead", {}, h("tr", {}, h("th", {}, "Run"), this.heads(), restCell())),
        h(
          "tbody",
          {},
          facts.map(([title, cell]) =>
            h("tr", {}, h("th", { scope: "row" }, title), this.found.runs.map((run) => h("td", {}, cell(run))), restCell()),
          ),
        ),
      ),
    );
  }

  section(title, entries, { text, withChange, withBars, nothing, none }) {
    const { test } = wordFilter(this.state.filter);
    const named = entries.filter(({ key }) => test(key));
    const shown = this.state.all === "1" ? named : named.filter((entry) => !entry.is_same);
    const hidden = named.length - shown.length;
    const most = Math.max(...entries.flatMap(({ values }) => values.filter((value) => typeof value === "number")), 0);
    const message = !entries.length ? none : !named.length ? "No key matches the filter." : nothing;
    return h(
      "section",
      { class: "panel wide", tabindex: 0, role: "region", "aria-label": title },
      h("h2", {}, title, hidden ? h("span", { class: "quiet small" }, ` ${hidden} equal`) : ""),
      shown.length
        ? h(
            "table",
            { class: "grid beside" },
            h("thead", {}, h("tr", {}, h("th", {}, "Key"), this.heads(), restCell())),
            h(
              "tbody",
              {},
              shown.map((entry) =>
                h(
                  "tr",
                  {},
                  h("th", { scope: "row" }, entry.key, noteOf(entry)),
                  entry.values.map((value, at) =>
                    h(
                      "td",
                      { class: typeof value === "number" ? "number" : "text" },
                      value === null ? h("span", { class: "quiet" }, "–") : text(value, entry),
                      withChange && at > 0 && changeOf(entry.values[0], value),
                      withBars && typeof value === "number" && bar(value / most, at),
                    ),
                  ),
                  restCell(),
                ),
              ),
            ),
          )
        : quiet(message),
    );
  }
}

/** Return the cell that takes the width that is left. */
function restCell() {
  return h("td", { class: "rest" });
}

/** Return the step of a metric, or that its highest value is the best; nothing for other values. */
function noteOf({ step, is_highest: isHighest }) {
  const text = isHighest ? "highest" : step === null ? "no common step" : step === undefined ? "" : `step ${wholeText(step)}`;
  return text && [" ", h("span", { class: "quiet small" }, text)];
}

function changeOf(first, value) {
  if (typeof first !== "number" || typeof value !== "number" || !first || first === value) return null;
  const percent = ((value - first) / Math.abs(first)) * 100;
  if (Math.abs(percent) < 0.05) return null; // it would be 0.0 %
  const digits = Math.abs(percent) < 10 ? 1 : 0;
  const text = Math.abs(percent) > 999 ? `×${Number((value / first).toPrecision(3))}` : `${percent.toFixed(digits)} %`;
  const sign = percent > 0 && !text.startsWith("×") ? "+" : "";
  return [" ", h("span", { class: "quiet small", title: "compared with the first run" }, sign, text)];
}

function bar(share, at) {
  const element = h("div", { class: `share ${seriesName(at)}`, "aria-hidden": "true" });
  element.style.width = `${Math.max(1, 100 * share)}%`;
  return element;
}
