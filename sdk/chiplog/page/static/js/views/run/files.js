// Saved files: their list, downloads, and a preview as an image, a table or text.

import { h, show } from "../../dom.js";
import { setParameters } from "../../net/address.js";
import { grid } from "../../tables/grid.js";
import { wordFilter } from "../../text/filter.js";
import { chosenLabels, noLabelsText, onOtherLabels } from "../../text/labels.js";
import { byName, bytesText, countText, timeText, wholeText } from "../../text/texts.js";
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
const BINARY_BYTES = 4096; // a zero byte among the first so many is in no text

export async function open(element, run, query, firstReport) {
  let report = firstReport;
  let aborted = new AbortController();
  let image = null;
  let chosen = query.get("file");
  let isRaw = query.get("as") === "text";
  let files = report.files;
  let filter = query.get("filter") ?? "";
  let nShown = ROWS_SHOWN;
  let typing = null;
  const list = h("section", { class: "panel", "aria-label": "List of files" });
  const preview = h("section", { class: "panel preview", hidden: true, "aria-label": "Preview" });
  const search = h("input", {
    ...{ type: "search", class: "grow", placeholder: "Filter paths", "aria-label": "Filter paths", value: filter },
    oninput: () => {
      clearTimeout(typing);
      typing = setTimeout(() => {
        filter = search.value;
        setParameters({ filter });
        drawList();
      }, TYPING_MS);
    },
  });
  const bar = h("div", { class: "bar" }, search);
  show(element, bar, list, preview);

  function drawList() {
    const labels = chosenLabels(report);
    const ofLabels = files.filter(({ label }) => !labels || labels.includes(label));
    bar.hidden = ofLabels.length < 2;
    if (files.length && !ofLabels.length) {
      const none = labels.length ? "The chosen labels saved no file." : noLabelsText(report);
      show(list, h("p", { class: "quiet" }, none));
      return;
    }
    if (!files.length) {
      const call = h("code", {}, 'run.save("config.yaml")');
      show(list, h("p", { class: "quiet" }, "No file was saved. ", call, " in the training saves one."));
      return;
    }
    const { test } = wordFilter(filter);
    const found = ofLabels.filter(({ path }) => test(path)).sort((a, b) => byName(a.path, b.path));
    const total = found.reduce((sum, file) => sum + file.bytes, 0);
    const heads = [
      ["Path"],
      ["Size", "number"],
      ["Saved"],
      ["SHA-256"],
      [h("span", { class: "hidden-text" }, "Download")],
    ];
    show(
      list,
      h("h2", {}, `${countText(found.length, "file")}, ${bytesText(total)}`),
      grid(heads, h("tbody", {}, found.slice(0, nShown).map(rowOf))),
      found.length > nShown
        ? h("button", { onclick: () => ((nShown = Infinity), drawList()) }, `Show all ${wholeText(found.length)}`)
        : null,
    );
  }

  function rowOf(file) {
    const open = h("button", { class: "bare", onclick: () => choose(file.path) }, file.path);
    return h(
      "tr",
      { class: file.path === chosen ? "chosen" : null },
      h("th", { scope: "row" }, file.stored ? open : file.path),
      h("td", { class: "number" }, bytesText(file.bytes)),
      h("td", {}, timeText(file.ts)),
      h("td", {}, h("code", { title: file.sha256 }, file.sha256.slice(0, 12))),
      h("td", {}, file.stored ? download(file) : h("span", { class: "quiet" }, "has not arrived")),
    );
  }

  function download(file) {
    const name = file.path.split("/").at(-1);
    return h(
      "a",
      { href: fileAddress(run, file.path), download: name, "aria-label": `Download ${file.path}` },
      "Download",
    );
  }

  function choose(path) {
    chosen = path;
    isRaw = false;
    setParameters({ file: path, as: null });
    drawList();
    drawPreview();
    if (path !== null) preview.scrollIntoView({ block: "nearest" });
  }

  function setRaw(next) {
    isRaw = next;
    setParameters({ as: isRaw ? "text" : null });
    drawPreview();
  }

  function forget() {
    aborted.abort();
    aborted = new AbortController();
    if (image) URL.revokeObjectURL(image);
    image = null;
  }

  async function drawPreview() {
    forget();
    const file = files.find(({ path }) => path === chosen);
    preview.hidden = !chosen;
    if (!chosen) return;
    const head = h("div", { class: "bar" }, h("h2", {}, chosen), h("button", { onclick: () => choose(null) }, "Close"));
    if (!file?.stored) {
      const why = file ? "Its content has not arrived yet." : "The run has no such file.";
      show(preview, head, h("p", { class: "quiet" }, why));
      return;
    }
    const facts = h(
      "p",
      { class: "quiet small file-facts" },
      `${bytesText(file.bytes)}${file.bytes < 1024 ? "" : ` (${wholeText(file.bytes)} bytes)`} · SHA-256 `,
      h("code", {}, file.sha256),
      " · ",
      download(file),
    );
    const { signal } = aborted;
    show(preview, head, facts, h("p", { class: "quiet" }, "Loading…"));
    try {
      const isImage = kindOf(chosen) === "image" && file.bytes <= IMAGE_BYTES_MAX;
      const content = await readStart(run, chosen, isImage ? IMAGE_BYTES_MAX : TEXT_BYTES_MAX, signal);
      if (!signal.aborted) show(preview, head, facts, contentOf(file, content, isImage));
    } catch (error) {
      if (error.name !== "AbortError") show(preview, head, facts, h("p", { class: "error" }, error.message));
    }
  }

  /** Return elements that show a content, or its first part. */
  function contentOf(file, content, isImage) {
    const blob = isImage ? imageOf(content) : null;
    if (blob) {
      image = URL.createObjectURL(blob);
      const size = h("p", { class: "quiet small" });
      const showSize = ({ target }) => (size.textContent = `${target.naturalWidth} × ${target.naturalHeight} pixels`);
      return [h("img", { src: image, alt: file.path, onload: showSize }), size];
    }
    const start = content.subarray(0, TEXT_BYTES_MAX);
    if (start.subarray(0, BINARY_BYTES).includes(0)) {
      return h("p", { class: "quiet" }, "This file is neither text nor a PNG, JPEG, GIF or WebP image. Download it.");
    }
    const isPart = file.bytes > start.length;
    const text = new TextDecoder().decode(start);
    const cut = `The first ${bytesText(start.length)} of ${bytesText(file.bytes)}.`;
    const table = kindOf(file.path) === "table" ? tableOf(file.path, text, ROWS_SHOWN, isPart) : null;
    const pretty = !table && !isPart && file.path.endsWith("json") ? indented(text) : null;
    const other = h(
      "button",
      { onclick: () => setRaw(!isRaw) },
      isRaw ? (table ? "As a table" : "Indented") : "As saved",
    );
    const switched = table || (pretty !== null && pretty !== text) ? other : null;
    if (table && !isRaw) {
      const words = `${tableText(table)}${isPart ? ` Read from the first ${bytesText(start.length)} of ${bytesText(file.bytes)}.` : ""}`;
      return [h("p", { class: "quiet" }, words, " ", switched), tableElement(table)];
    }
    return [
      isPart || switched ? h("p", { class: "quiet" }, isPart ? `${cut} ` : null, switched) : null,
      h("pre", { tabindex: 0 }, (isRaw ? text : (pretty ?? text)) || "(empty)"),
    ];
  }

  const changeLabels = onOtherLabels(report, drawList);
  const onReport = (event) => {
    report = event.detail;
    changeLabels(report);
    const before = JSON.stringify(files);
    files = report.files;
    if (JSON.stringify(files) === before) return;
    drawList();
    const old = JSON.parse(before).find(({ path }) => path === chosen);
    const now = files.find(({ path }) => path === chosen);
    if (chosen && (old?.sha256 !== now?.sha256 || old?.stored !== now?.stored)) drawPreview();
  };
  element.addEventListener("report", onReport);
  drawList();
  drawPreview();
  return () => {
    forget();
    clearTimeout(typing);
    element.removeEventListener("report", onReport);
  };
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
