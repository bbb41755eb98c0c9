// Which labels of a run a view shows. In the address it is `labels`: "" for all, "primary", "failed", or "=LABEL".

import { h } from "./dom.js";
import { countText, wholeText } from "./texts.js";

const ENDS = new Set(["failed", "crashed", "lost"]);
const LABELS_MAX = 1_024; // in the list, and in one request: a bound of the server

/** Return the labels of a choice; an empty list if the run has none such, null for all, and while they are not known. */
export function chosenLabels(report, choice) {
  if (choice.startsWith("=")) return [choice.slice(1)];
  if (choice === "primary") return [report.primary_label].filter(Boolean);
  return choice === "failed" && !report.isOutline ? failedLabels(report).slice(0, LABELS_MAX) : null;
}

/** Return the labels whose newest attempt failed, crashed or was lost. */
export function failedLabels(report) {
  return newest(report).filter(({ state }) => ENDS.has(state)).map(({ label }) => label);
}

/** Return a list to choose labels from. */
export function labelsSelect(report, choice, onChoose) {
  const option = (value, text) => h("option", { value, selected: value === choice }, text);
  const nFailed = failedLabels(report).length;
  const names = newest(report).slice(0, LABELS_MAX).map(({ label }) => label);
  if (choice.startsWith("=") && !names.includes(choice.slice(1))) names.unshift(choice.slice(1));
  return h(
    "select",
    { onchange: (event) => onChoose(event.target.value), "aria-label": "labels" },
    option("", "all labels"),
    option("primary", "primary only"),
    option("failed", `failed labels${report.isOutline ? "" : ` (${wholeText(nFailed)}${nFailed > LABELS_MAX ? `, the first ${wholeText(LABELS_MAX)}` : ""})`}`),
    names.map((label) => option(`=${label}`, label)),
  );
}

/** Return why a choice has no label. */
export function noLabelsText(report, choice) {
  if (choice === "primary") return "The primary of this run is not known yet.";
  return `None of ${countText(newest(report).length, "label")} has failed.`;
}

function newest(report) {
  return report.labels.filter(({ is_newest: isNewest }) => isNewest);
}
