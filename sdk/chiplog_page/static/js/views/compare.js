// Runs beside each other: what differs in their config, their summary, their metrics at the same step, and their phases.

import { seriesName } from "../charts/colours.js";
import { h, notice, show } from "../dom.js";
import { addressOf, setParameters, wholeOf } from "../net/address.js";
import { ask } from "../net/api.js";
import { liveRefresh } from "../net/live.js";
import { wordFilter } from "../text/filter.js";
import { agoText, countText, durationText, numberText, secondsOf, secondsText, timeText, valueText, wholeText } from "../text/texts.js";

const RUNS_MAX = 10;
const REFRESH_MS = 2_000;

export async function open(content, rest, query) {
  const runs = [...new Set(query.getAll("run"))];
  if (runs.length < 2 || runs.length > RUNS_MAX) {
    show(
      content,
      h(
        "section",
        { class: "empty" },
        h("h1", {}, `${countText(runs.length, "run")} selected`),
        h("p", {}, `Select 2 to ${RUNS_MAX} in the table of runs, then Compare.`),
        h("a", { class: "button", href: addressOf(["runs"], { run: runs }) }, "All runs"),
      ),
    );
    return () => {};
  }
  const ending = new AbortController();
  let isOver = false;
  let filter = query.get("filter") ?? "";
  let showsAll = query.get("all") === "1";
  let step = wholeOf(query.get("step"));
  let turn = 0;
  const load = () =>
    Promise.all([
      ask("compare", { run: runs }, { signal: ending.signal }),
      ask("compare/metrics", { run: runs, step }, { signal: ending.signal }),
    ]).then(([answer, metrics]) => ({ ...answer, metrics }));
  let found = await load();

  const body = h("div", { class: "stack" });
  const all = h("input", { type: "checkbox", checked: showsAll, onchange: () => change() });
  const search = h("input", {
    class: "grow",
    type: "search",
    value: filter,
    placeholder: "Filter keys",
    "aria-label": "Filter keys",
    oninput: () => change(),
  });
  const stepInput = h("input", {
    ...{ type: "number", class: "step-bound", value: step, placeholder: "last", "aria-label": "Step of the metrics" },
    onchange: onStep,
  });
  show(
    content,
    h(
      "div",
      { class: "bar" },
      h("h1", {}, `Compare ${runs.length} runs`),
      search,
      h("label", {}, "Metrics at step", stepInput),
      h("label", {}, all, "Also equal values"),
      h("a", { href: addressOf(["run", runs[0], "curves"], { with: runs.slice(1) }) }, "Overlay their curves"),
      h("a", { href: addressOf(["runs"], { run: runs }) }, "Change the selection"),
    ),
    body,
  );
  draw();

  function change() {
    [filter, showsAll] = [search.value.trim(), all.checked];
    setParameters({ filter, all: showsAll ? "1" : "" });
    draw();
  }

  async function onStep() {
    step = wholeOf(stepInput.value);
    setParameters({ step });
    const mine = ++turn;
    try {
      const answer = await load();
      if (isOver || mine !== turn) return;
      found = answer;
      draw();
    } catch (reason) {
      if (!isOver) notice(reason.message, true);
    }
  }

  function draw() {
    const boxes = () => body.querySelectorAll(".wide");
    const places = new Map([...boxes()].map((box) => [box.ariaLabel, box.scrollLeft]));
    const held = body.contains(document.activeElement) ? document.activeElement.ariaLabel : null;
    show(
      body,
      runsTable(),
      section("Config", found.config, {
        text: valueText,
        nothing: "No value of the config differs.",
        none: "These runs have no config.",
      }),
      section("Metrics at the same step, mean of the labels", found.metrics, {
        text: numberText,
        withChange: true,
        nothing: "No metric differs.",
        none: "No metric was logged by two of these runs.",
      }),
      section("Summary: last values, or as defined", found.summary, {
        text: numberText,
        withChange: true,
        nothing: "No value of the summary differs.",
        none: "These runs have no summary.",
      }),
      section("Share of each phase in the step", found.phase_shares, {
        text: (share) => `${(100 * share).toFixed(1)} %`,
        withBars: true,
        nothing: "No share differs.",
        none: "No run has a phase and the length of its steps.",
      }),
      section("Seconds per step and phase, median label", found.phase_medians, {
        text: (seconds) => secondsText(seconds, 3),
        withChange: true,
        withBars: true,
        nothing: "No phase differs.",
        none: "These runs have no phases.",
      }),
      section("Seconds per step and phase, mean label", found.phases, {
        text: (seconds) => secondsText(seconds, 3),
        withChange: true,
        withBars: true,
        nothing: "No phase differs.",
        none: "These runs have no phases.",
      }),
    );
    for (const box of boxes()) {
      box.scrollLeft = places.get(box.ariaLabel) ?? 0;
      if (box.ariaLabel === held) box.focus({ preventScroll: true });
    }
  }

  function heads() {
    return found.runs.map((run, at) =>
      h(
        "th",
        { scope: "col" },
        h("span", { class: `key ${seriesName(at)}`, "aria-hidden": "true" }),
        h("a", { href: addressOf(["run", run.run_id]), title: run.run_id }, run.name || run.run_id),
      ),
    );
  }

  function runsTable() {
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
        h("thead", {}, h("tr", {}, h("th", {}, "Run"), heads(), others())),
        h(
          "tbody",
          {},
          facts.map(([title, cell]) =>
            h("tr", {}, h("th", { scope: "row" }, title), found.runs.map((run) => h("td", {}, cell(run))), others()),
          ),
        ),
      ),
    );
  }

  /** Return the cell that takes the width that is left. */
  function others() {
    return h("td", { class: "rest" });
  }

  function section(title, entries, { text, withChange, withBars, nothing, none }) {
    const { test } = wordFilter(filter);
    const named = entries.filter(({ key }) => test(key));
    const shown = showsAll ? named : named.filter((entry) => !entry.is_same);
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
            h("thead", {}, h("tr", {}, h("th", {}, "Key"), heads(), others())),
            h(
              "tbody",
              {},
              shown.map(({ key, values, step: at }) =>
                h(
                  "tr",
                  {},
                  h("th", { scope: "row" }, key, stepNote(at)),
                  values.map((value, at) =>
                    h(
                      "td",
                      { class: typeof value === "number" ? "number" : "text" },
                      value === null ? h("span", { class: "quiet" }, "–") : text(value),
                      withChange && at > 0 && changeOf(values[0], value),
                      withBars && typeof value === "number" && bar(value / most, at),
                    ),
                  ),
                  others(),
                ),
              ),
            ),
          )
        : h("p", { class: "quiet" }, message),
    );
  }

  async function refresh() {
    const mine = ++turn;
    try {
      const answer = await load();
      if (isOver || mine !== turn) return;
      const isNew = JSON.stringify(answer) !== JSON.stringify(found);
      found = answer;
      if (isNew) draw();
    } catch (reason) {
      if (!isOver) notice(reason.message, true);
      return false;
    }
  }

  // Runs that are over change only when a person edits them: not worth a request for each change of others.
  const lives = found.runs.some((run) => run.state === "running");
  const live = lives ? liveRefresh(refresh, { pauseMs: REFRESH_MS, isQuiet: true }) : null;
  return () => {
    isOver = true;
    ending.abort();
    live?.close();
  };
}

/** Return the step of a metric; nothing for other values. */
function stepNote(step) {
  if (step === undefined) return null;
  return h("span", { class: "quiet small" }, step === null ? " no common step" : ` step ${wholeText(step)}`);
}

function changeOf(first, value) {
  if (typeof first !== "number" || typeof value !== "number" || !first || first === value) return null;
  const percent = ((value - first) / Math.abs(first)) * 100;
  if (Math.abs(percent) < 0.05) return null; // it would be 0.0 %
  const digits = Math.abs(percent) < 10 ? 1 : 0;
  const text = Math.abs(percent) > 999 ? `×${Number((value / first).toPrecision(3))}` : `${percent.toFixed(digits)} %`;
  return h("span", { class: "quiet small", title: "compared with the first run" }, ` ${percent > 0 && !text.startsWith("×") ? "+" : ""}${text}`);
}

function bar(share, at) {
  const element = h("div", { class: `share ${seriesName(at)}`, "aria-hidden": "true" });
  element.style.width = `${Math.max(1, 100 * share)}%`;
  return element;
}
