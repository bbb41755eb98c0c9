// Saved files: their list, downloads, and a preview as an image, a table or text.

import { h, show } from "../../dom.js";
import { quiet } from "../../elements.js";
import { grid, rowOf } from "../../tables/grid.js";
import { wordFilter } from "../../text/filter.js";
import { noLabelsText } from "../../text/labels.js";
import { byName, bytesText, countText, timeText, wholeText } from "../../text/texts.js";
import { RunView } from "./run_view.js";
import {
  IMAGE_BYTES_MAX,
  TEXT_BYTES_MAX,
  fileAddress,
  imageOf,
  kindOf,
  readStart,
  tableElement,
  tableOf,
  tableText,
} from "./saved_files.js";

const ROWS_SHOWN = 200; // files, until more are asked for; and rows of a table
const TYPING_MS = 200;
const HEADS = [["Path", "row"], ["Size", "number"], ["Saved"], ["SHA-256"], [h("span", { class: "hidden-text" }, "Download")]];
const BINARY_BYTES = 4096; // a zero byte among the first so many is in no text

export default class FilesTab extends RunView {
  state = { filter: this.query.get("filter") ?? "", file: this.query.get("file"), as: this.query.get("as") };
  nShown = ROWS_SHOWN;
  reading = new AbortController();
  image = null; // the address of the shown one

  async start() {
    this.list = h("section", { class: "panel", "aria-label": "List of files" });
    this.preview = h("section", { class: "panel preview", hidden: true, "aria-label": "Preview" });
    const setFilter = (filter) => {
      this.change({ filter });
      this.drawList();
    };
    this.bar = h("div", { class: "bar" }, this.searchInput("Filter paths", this.state.filter, TYPING_MS, setFilter));
    show(this.element, this.bar, this.list, this.preview);
    this.followReports();
    this.drawList();
    this.drawPreview();
  }

  close() {
    super.close();
    this.endPreview();
  }

  onLabels() {
    this.drawList();
  }

  onReport(before) {
    if (JSON.stringify(this.report.files) === JSON.stringify(before.files)) return;
    this.drawList();
    const [old, now] = [before, this.report].map(({ files }) => files.find(({ path }) => path === this.state.file));
    if (this.state.file && (old?.sha256 !== now?.sha256 || old?.stored !== now?.stored)) this.drawPreview();
  }

  drawList() {
    const { files } = this.report;
    const { labels } = this;
    const ofLabels = files.filter(({ label }) => !labels || labels.includes(label));
    this.bar.hidden = ofLabels.length < 2;
    if (files.length && !ofLabels.length) {
      const none = labels.length ? "The chosen labels saved no file." : noLabelsText(this.report);
      show(this.list, quiet(none));
      return;
    }
    if (!files.length) {
      const call = h("code", {}, 'run.save("config.yaml")');
      show(this.list, quiet("No file was saved. ", call, " in the training saves one."));
      return;
    }
    const { test } = wordFilter(this.state.filter);
    const found = ofLabels.filter(({ path }) => test(path)).sort((a, b) => byName(a.path, b.path));
    const total = found.reduce((sum, file) => sum + file.bytes, 0);
    const onMore = () => {
      this.nShown = Infinity;
      this.drawList();
    };
    show(
      this.list,
      h("h2", {}, `${countText(found.length, "file")}, ${bytesText(total)}`),
      grid(HEADS, h("tbody", {}, found.slice(0, this.nShown).map((file) => this.rowOf(file)))),
      found.length > this.nShown ? h("button", { onclick: onMore }, `Show all ${wholeText(found.length)}`) : null,
    );
  }

  rowOf(file) {
    const open = h("button", { class: "bare", onclick: () => this.choose(file.path) }, file.path);
    const cells = [
      file.stored ? open : file.path,
      bytesText(file.bytes),
      timeText(file.ts),
      h("code", { title: file.sha256 }, file.sha256.slice(0, 12)),
      file.stored ? this.download(file) : h("span", { class: "quiet" }, "has not arrived"),
    ];
    return rowOf(HEADS, cells, { class: file.path === this.state.file ? "chosen" : null });
  }

  download({ path }) {
    const name = path.split("/").at(-1);
    return h("a", { href: fileAddress(this.run, path), download: name, "aria-label": `Download ${path}` }, "Download");
  }

  choose(path) {
    this.change({ file: path, as: null });
    this.drawList();
    this.drawPreview();
    if (path !== null) this.preview.scrollIntoView({ block: "nearest" });
  }

  endPreview() {
    this.reading.abort();
    if (this.image) URL.revokeObjectURL(this.image);
    this.image = null;
  }

  async drawPreview() {
    this.endPreview();
    this.reading = new AbortController();
    const { signal } = this.reading;
    const { file: path } = this.state;
    const file = this.report.files.find((one) => one.path === path);
    this.preview.hidden = !path;
    if (!path) return;
    const head = h("div", { class: "bar" }, h("h2", {}, path), h("button", { onclick: () => this.choose(null) }, "Close"));
    if (!file?.stored) {
      const why = file ? "Its content has not arrived yet." : "The run has no such file.";
      show(this.preview, head, quiet(why));
      return;
    }
    const facts = h(
      "p",
      { class: "quiet small file-facts" },
      `${bytesText(file.bytes)}${file.bytes < 1024 ? "" : ` (${wholeText(file.bytes)} bytes)`} · SHA-256 `,
      h("code", {}, file.sha256),
      " · ",
      this.download(file),
    );
    show(this.preview, head, facts, quiet("Loading…"));
    try {
      const isImage = kindOf(path) === "image" && file.bytes <= IMAGE_BYTES_MAX;
      const content = await readStart(this.run, path, isImage ? IMAGE_BYTES_MAX : TEXT_BYTES_MAX, signal);
      if (!signal.aborted) show(this.preview, head, facts, this.contentOf(file, content, isImage));
    } catch (error) {
      if (error.name !== "AbortError") show(this.preview, head, facts, h("p", { class: "error" }, error.message));
    }
  }

  /** Return elements that show a content, or its first part. */
  contentOf(file, content, isImage) {
    const blob = isImage ? imageOf(content) : null;
    if (blob) {
      this.image = URL.createObjectURL(blob);
      const size = h("p", { class: "quiet small" });
      const showSize = ({ target }) => (size.textContent = `${target.naturalWidth} × ${target.naturalHeight} pixels`);
      return [h("img", { src: this.image, alt: file.path, onload: showSize }), size];
    }
    const start = content.subarray(0, TEXT_BYTES_MAX);
    if (start.subarray(0, BINARY_BYTES).includes(0)) {
      return quiet("This file is neither text nor a PNG, JPEG, GIF or WebP image. Download it.");
    }
    const isRaw = this.state.as === "text";
    const isPart = file.bytes > start.length;
    const text = new TextDecoder().decode(start);
    const part = `first ${bytesText(start.length)} of ${bytesText(file.bytes)}.`;
    const table = kindOf(file.path) === "table" ? tableOf(file.path, text, ROWS_SHOWN, isPart) : null;
    const pretty = !table && !isPart && file.path.endsWith("json") ? indented(text) : null;
    const onSwitch = () => {
      this.change({ as: isRaw ? null : "text" });
      this.drawPreview();
    };
    const other = h("button", { onclick: onSwitch }, !isRaw ? "As saved" : table ? "As a table" : "Indented");
    const switched = table || (pretty !== null && pretty !== text) ? other : null;
    if (table && !isRaw) {
      const words = `${tableText(table)}${isPart ? ` Read from the ${part}` : ""}`;
      return [quiet(words, " ", switched), tableElement(table)];
    }
    return [
      isPart || switched ? quiet(isPart ? `The ${part} ` : null, switched) : null,
      h("pre", { tabindex: 0 }, (isRaw ? text : (pretty ?? text)) || "(empty)"),
    ];
  }
}

/** Return JSON with a line per value; null if it is none, or has numbers that a browser would change. */
function indented(text) {
  try {
    if (/[^"\w.]-?\d{16,}/.test(text)) return null;
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}
