// What every tab of a run shares: the run and its report, the labels that are chosen, and links to its console.

import { addressOf } from "../../net/address.js";
import { part } from "../../net/api.js";
import { chosenLabels, onOtherLabels } from "../../text/labels.js";
import { View } from "../view.js";

/** A tab. A subclass has `start`, and `onLabels` and `onReport` where it depends on labels and reports. */
export class RunView extends View {
  static beginsWithOutline = false; // whether it can start before the whole report has arrived

  /** Return the address of a label's console at a time. */
  consoleOf = (label, at) => addressOf(["run", this.run, "console"], { labels: `=${label}`, at });

  /**
   * @param {Element} element of the tab. A report is an event of it.
   * @param {string} run
   * @param {URLSearchParams} query
   * @param {Object} report
   * @param {Object} verdict the sentence above all tabs
   */
  constructor(element, run, query, report, verdict) {
    super();
    Object.assign(this, { element, run, query, report, verdict });
    this.path = `runs/${part(run)}`;
  }

  /** Return the chosen labels; null for all. */
  get labels() {
    return chosenLabels(this.report);
  }

  /** Return true if the run has none of the chosen labels. */
  get hasNoLabels() {
    return this.labels?.length === 0;
  }

  /** Follow the reports of the run from now on. */
  followReports() {
    const changeLabels = onOtherLabels(this.report, () => this.onLabels());
    this.listen(this.element, "report", ({ detail }) => {
      const before = this.report;
      this.report = detail;
      this.onReport(before, changeLabels(detail));
    });
  }

  /** Other labels are chosen. */
  onLabels() {}

  /** A report has arrived. hasOtherLabels: onLabels() was called for it. */
  onReport(before, hasOtherLabels) {} // eslint-disable-line no-unused-vars
}
