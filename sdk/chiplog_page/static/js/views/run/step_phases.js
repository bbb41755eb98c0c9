// The phases of one step: a bar for each label, the chosen label first, then those that worked longest.

import { seriesName } from "../../charts/colours.js";
import { h, show } from "../../dom.js";
import { quiet } from "../../elements.js";
import { objects } from "../../net/api.js";
import { labelText } from "../../text/labels.js";
import { countText, phaseText, secondsText, wholeText } from "../../text/texts.js";

const LABELS_SHOWN = 16; // until more are asked for
const SLOW = 1.2; // of the median: a phase that takes longer is marked

/**
 * Draw the phases of a step.
 * @param {{onStep: function(step), onClose: function(), consoleOf: function(label, at): string}} handlers
 * @returns {{element: Element, draw: function(answer, chosen, phases), reveal: function()}}
 */
export function stepPhases({ onStep, onClose, consoleOf }) {
  const element = h("section", { class: "panel step", hidden: true, "aria-label": "Phases of a step" });

  /** Draw an answer of api/runs/RUN/step. chosen: a label, or null. phases: in the order of their colours. */
  function draw(answer, chosen, phases, nShown = LABELS_SHOWN) {
    const held = element.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    const rows = objects(answer);
    const labels = Map.groupBy(rows, (row) => row.label);
    // Work first, then what may be waiting: a slow phase moves the others to the right.
    const isWait = new Map(rows.filter(isPart).map((row) => [row.phase, row.may_wait]));
    const names = [...isWait.keys()].sort((a, b) => isWait.get(a) - isWait.get(b) || (a < b ? -1 : 1));
    const places = phases.filter((phase) => isPart({ phase }));
    const swatch = (name) =>
      name === "outside" ? "no-phase" : seriesName(Math.max(0, places.indexOf(name)));
    const lengths = rows.filter((row) => row.phase === "step").map((row) => row.seconds);
    const longest = Math.max(...[...labels.values()].map(total), ...lengths, 1e-9);
    const own = chosen ? labels.get(chosen) : null;
    const move = (by, text, title) =>
      h("button", { "aria-label": title, disabled: answer.step + by < 0, onclick: () => onStep(answer.step + by) }, text);
    const bar = (row) => {
      const title = `${labelText(row.label)} ${phaseText(row.phase)}: ${secondsText(row.seconds)}, median ${secondsText(row.typical_s)}`;
      const piece = h("span", { class: swatch(row.phase), title });
      piece.style.width = `${(row.seconds / longest) * 100}%`;
      return piece;
    };
    const lane = ([label, parts]) =>
      h(
        "div",
        { class: label === chosen ? "phase-row chosen" : "phase-row" },
        h(
          "span",
          { class: "clip" },
          h("a", { href: consoleOf(label, lastOf(parts)), title: `console of ${labelText(label)} at this step` }, labelText(label)),
        ),
        h("span", { class: "phase-bar" }, names.map((name) => parts.filter((row) => row.phase === name).map(bar))),
        h("span", { class: "number" }, secondsText(total(parts) || parts[0].seconds)),
      );
    show(
      element,
      h(
        "div",
        { class: "bar" },
        h("h2", {}, `Phases of step ${wholeText(answer.step)}`),
        move(-1, "‹", "Step before"),
        move(1, "›", "Step after"),
        names.map((name) =>
          h("span", { class: "small" }, h("span", { class: `heat-swatch ${swatch(name)}` }), ` ${phaseText(name)}`),
        ),
        h("span", { class: "quiet small" }, "work first, then waiting"),
        h("button", { onclick: onClose }, "Close"),
      ),
      own ? sentence(chosen, own) : chosen ? quiet(`${labelText(chosen)} has no phases at this step.`) : null,
      labels.size
        ? h("div", {}, [...labels].slice(0, nShown).map(lane))
        : quiet("No label has phases at this step."),
      labels.size > nShown
        ? h(
            "button",
            { onclick: () => draw(answer, chosen, phases, labels.size) },
            `Show ${countText(labels.size, "label")}`,
          )
        : null,
      labels.size < answer.n_labels
        ? h(
            "p",
            { class: "quiet" },
            `${wholeText(labels.size)} of ${countText(answer.n_labels, "label")}: those that worked longest.`,
          )
        : null,
    );
    if (held) element.querySelector(`[aria-label="${held}"]`)?.focus();
  }

  function sentence(label, parts) {
    const excess = (row) => row.seconds - row.typical_s;
    const sorted = parts.filter((row) => row.phase !== "step").sort((a, b) => excess(b) - excess(a));
    const words = sorted.map((row, at) => [
      at ? ", " : "",
      h(
        "span",
        { class: row.seconds > SLOW * row.typical_s ? "error" : "" },
        `${phaseText(row.phase)} ${secondsText(row.seconds)}`,
      ),
      ` (median ${secondsText(row.typical_s)})`,
    ]);
    const link = h("a", { href: consoleOf(label, lastOf(parts)) }, "Its console at that time");
    return h("p", {}, h("strong", {}, labelText(label)), ": ", words, ". ", link);
  }

  return { element, draw, reveal: () => element.hidden || element.scrollIntoView({ block: "nearest" }) };
}

/** Return true for a part of the step: `gc` runs inside the others. */
function isPart({ phase }) {
  return phase !== "step" && phase !== "gc";
}

function total(parts) {
  return parts.filter(isPart).reduce((sum, row) => sum + row.seconds, 0);
}

/** Return the time of the last row. */
function lastOf(parts) {
  return parts
    .map((row) => row.ts)
    .sort()
    .at(-1);
}
