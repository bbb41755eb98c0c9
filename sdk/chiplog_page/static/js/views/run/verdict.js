// The sentence above all tabs of a run: who failed first, who was slow, and who waited. It links to its proof.

import { h, show } from "../../dom.js";
import { quiet } from "../../elements.js";
import { addressOf } from "../../net/address.js";
import { ask, part } from "../../net/api.js";

const ROOM_MIN = 10; // steps shown before and after those of a link, so that the difference is seen

/** The last sentence, so that another tab of the same run shows it at once. */
let known = null;

/** isWhole: with the further spells, and with what is missing when nothing can be compared. */
export function verdictSection(run, { isWhole }) {
  const element = h("section", { class: "verdict", "aria-label": "Who was slow" });
  const section = {
    element,
    found: known?.run === run ? known.found : null,
    follow: null, // of the tab that shows the proof: takes the changes of its state
    onFailure: null, // called when the sentence names a failure
    async load(signal) {
      section.found = await ask(`runs/${part(run)}/verdict`, {}, { signal });
      known = { run, found: section.found };
      draw();
    },
    fail(error) {
      if (!section.found) show(element, h("p", { class: "error" }, error.message));
    },
  };
  const linked = (parts) =>
    parts.map(({ text, link }) => {
      if (!link) return text;
      if (link.panel === "failures") return h("a", { class: "error", href: addressOf(["run", run, "events"]) }, text);
      const changes = changesOf(link);
      const onclick = (event) => {
        if (!section.follow || event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        section.follow(changes);
      };
      return h("a", { href: addressOf(["run", run, "ranks"], changes), onclick }, text);
    });
  function draw() {
    const { parts, others, has_failed: hasFailed } = section.found;
    element.hidden = !parts.length && !isWhole;
    if (hasFailed) section.onFailure?.();
    show(
      element,
      parts.length ? h("p", {}, linked(parts)) : isWhole ? nothingCompared() : null,
      isWhole && others.length ? h("ul", { class: "quiet" }, others.map((parts) => h("li", {}, linked(parts)))) : null,
    );
  }
  if (section.found) draw();
  else if (isWhole) show(element, quiet("Comparing the labels…"));
  else element.hidden = true;
  return section;
}

function nothingCompared() {
  const calls = [h("code", {}, "run.step()"), " and ", h("code", {}, 'run.phase("data")')];
  return quiet("No phases of two labels at the same step: nothing to compare. ", calls, " record them.");
}

/** Return what a link changes in the view of ranks. */
function changesOf(link) {
  const changes = { phase: null, first: null, last: null, ...link };
  if (link.label) changes.step ??= Math.floor((link.first + link.last) / 2);
  const room = Math.max(ROOM_MIN, Math.round((link.last - link.first + 1) / 4));
  if ("first" in link) Object.assign(changes, { first: Math.max(link.first - room, 0), last: link.last + room });
  return changes;
}
