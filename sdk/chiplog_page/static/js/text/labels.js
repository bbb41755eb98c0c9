// Which labels of a run its tabs show. In the address it is `labels`, with one meaning in all tabs: nothing for all,
// "primary", "failed", or "=LABEL", which may be repeated.

import { h } from "../dom.js";
import { readAddress, setParameters } from "../net/address.js";
import { countText, wholeText } from "./texts.js";

const ENDS = new Set(["failed", "crashed", "lost"]);
export const LABELS_MAX = 1_024; // in the list, and in one request: a bound of the server

let names = new Map(); // of the labels of the run that is open

/** Show the names of a report in place of its labels: the run's, in place of its only one if that was generated. */
export function setLabelNames(report) {
  names = new Map(Object.entries(report.label_names ?? {}));
}

/** Return a label as the page shows it; addresses and downloads have the label itself. */
export function labelText(label) {
  return names.get(label) ?? label;
}

/** Return what the address has: a list, empty for all labels. */
export function labelsChoice() {
  return readAddress().query.getAll("labels");
}

/** Return the chosen labels; an empty list if the run has none such, null for all, and while they are not known. */
export function chosenLabels(report) {
  const choice = labelsChoice();
  const named = choice.filter((one) => one.startsWith("=")).map((one) => one.slice(1));
  if (named.length) return named.slice(0, LABELS_MAX);
  if (choice.includes("primary")) return [report.primary_label].filter(Boolean);
  return areLabelsKnown(report) && choice.includes("failed") ? failedLabels(report).slice(0, LABELS_MAX) : null;
}

/** Return False while a choice waits for the whole report. */
export function areLabelsKnown(report) {
  return !report.isOutline || !labelsChoice().includes("failed");
}

/** Return what calls a function with a report only if other labels are chosen, and known, than at the call before. */
export function onOtherLabels(report, onChange) {
  let shown = String(chosenLabels(report));
  return (next) => {
    if (!areLabelsKnown(next)) return false; // the whole report follows
    const now = String(chosenLabels(next));
    if (now === shown) return false;
    shown = now;
    onChange();
    return true;
  };
}

/** Return the labels whose newest attempt failed, crashed or was lost. */
export function failedLabels(report) {
  return newest(report).filter(({ state }) => ENDS.has(state)).map(({ label }) => label);
}

/** Return a list to choose labels from. */
export function labelsSelect(report, onChoose) {
  const choice = labelsChoice();
  const option = (value, text) => h("option", { value, selected: value === choice[0] && choice.length < 2 }, text);
  const nFailed = failedLabels(report).length;
  const nAll = newest(report).length;
  const shown = newest(report).slice(0, LABELS_MAX).map(({ label }) => label);
  for (const name of choice.length < 2 ? choice : []) {
    if (name.startsWith("=") && !shown.includes(name.slice(1))) shown.unshift(name.slice(1));
  }
  const onchange = ({ target }) => {
    setParameters({ labels: target.value });
    onChoose();
  };
  return h(
    "select",
    { onchange, "aria-label": "labels", hidden: report.n_labels < 2 && !choice.length },
    choice.length > 1 ? h("option", { selected: true, disabled: true }, countText(choice.length, "label")) : null,
    option("", "all labels"),
    option("primary", "primary only"),
    option("failed", `failed labels${report.isOutline ? "" : ` (${wholeText(nFailed)}${nFailed > LABELS_MAX ? `, the first ${wholeText(LABELS_MAX)}` : ""})`}`),
    shown.map((label) => option(`=${label}`, labelText(label))),
    nAll > LABELS_MAX ? h("option", { disabled: true }, `the first ${wholeText(LABELS_MAX)} of ${countText(nAll, "label")}`) : null,
  );
}

/** Return why a choice has no label. */
export function noLabelsText(report) {
  if (labelsChoice().includes("primary")) return "The primary of this run is not known yet.";
  return `None of ${countText(newest(report).length, "label")} has failed.`;
}

function newest(report) {
  return report.labels.filter(({ is_newest: isNewest }) => isNewest);
}
