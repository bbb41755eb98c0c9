// Saved files: download, and a preview as text or as an image. Nothing that a run saved is ever run or laid out.

import { setParameters } from "../../address.js";
import { part } from "../../api.js";
import { h, show } from "../../dom.js";
import { timeText } from "../../texts.js";

const TEXT_BYTES_MAX = 256 << 10;
const IMAGE_BYTES_MAX = 16 << 20;
// SVG may have scripts: it is shown as text.
const IMAGES = { png: ["image/png", [0x89, 0x50, 0x4e, 0x47]], jpg: ["image/jpeg", [0xff, 0xd8, 0xff]], jpeg: ["image/jpeg", [0xff, 0xd8, 0xff]] };

export async function open(element, run, query, report) {
  let aborted = new AbortController();
  let image = null;
  let chosen = query.get("file");
  let files = report.files;
  const list = h("section", { class: "panel", "aria-label": "Files" });
  const preview = h("section", { class: "panel preview", hidden: true, "aria-label": "Preview" });
  show(element, list, preview);
  const addressFor = (path) => `api/runs/${part(run)}/files/${path.split("/").map(part).join("/")}`;

  function drawList() {
    if (!files.length) {
      show(list, h("p", { class: "empty quiet" }, "No file was saved. ", h("code", {}, "run.save(\"config.yaml\")"), " saves one."));
      return;
    }
    const total = files.reduce((sum, file) => sum + file.bytes, 0);
    show(list, h("h2", {}, `${files.length} file${files.length === 1 ? "" : "s"}, ${bytesText(total)}`),
      h("div", { class: "scroll" }, h("table", { class: "grid" },
        h("thead", {}, h("tr", {}, [["Path"], ["Size", "number"], ["Saved"], ["SHA-256"], [""]].map(([title, kind]) => h("th", { class: kind, scope: "col" }, title)))),
        h("tbody", {}, files.map((file) => h("tr", { class: file.path === chosen ? "chosen" : null },
          h("th", { scope: "row" }, file.stored ? h("button", { class: "bare", onclick: () => choose(file.path) }, file.path) : file.path),
          h("td", { class: "number" }, bytesText(file.bytes)), h("td", {}, timeText(file.ts)),
          h("td", {}, h("code", { title: file.sha256 }, file.sha256.slice(0, 12))),
          h("td", {}, file.stored
            ? h("a", { href: addressFor(file.path), download: file.path.split("/").at(-1), "aria-label": `Download ${file.path}` }, "Download")
            : h("span", { class: "quiet" }, "has not arrived"))))))));
  }

  function choose(path) {
    chosen = path;
    setParameters({ file: path });
    drawList();
    drawPreview();
    preview.scrollIntoView({ block: "nearest" });
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
      show(preview, head, h("p", { class: "quiet" }, file ? "Its content has not arrived yet." : "The run has no such file."));
      return;
    }
    const { signal } = aborted;
    show(preview, head, h("p", { class: "quiet" }, "Loading…"));
    try {
      const kind = IMAGES[chosen.split(".").at(-1).toLowerCase()];
      const isImage = kind && file.bytes <= IMAGE_BYTES_MAX;
      const content = await read(addressFor(chosen), isImage ? IMAGE_BYTES_MAX : TEXT_BYTES_MAX, signal);
      if (isImage && kind[1].every((byte, at) => content[at] === byte)) {
        image = URL.createObjectURL(new Blob([content], { type: kind[0] }));
        show(preview, head, h("img", { src: image, alt: chosen }));
      } else {
        show(preview, head, ...textOf(content.subarray(0, TEXT_BYTES_MAX), file.bytes));
      }
    } catch (error) {
      if (error.name !== "AbortError") show(preview, head, h("p", { class: "error" }, error.message));
    }
  }

  const onReport = (event) => {
    const before = JSON.stringify(files);
    files = event.detail.files;
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
    element.removeEventListener("report", onReport);
  };
}

/** Return the first bytes of a file; the rest is not loaded. */
async function read(address, bytesMax, signal) {
  const response = await fetch(address, { signal });
  if (!response.ok) throw new Error((await response.json().catch(() => null))?.error?.message ?? response.statusText);
  const reader = response.body.getReader();
  const parts = [];
  let n = 0;
  while (n < bytesMax) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    n += value.length;
  }
  await reader.cancel();
  const content = new Uint8Array(n);
  parts.reduce((at, value) => (content.set(value, at), at + value.length), 0);
  return content;
}

function textOf(content, bytes) {
  if (content.subarray(0, 4096).includes(0)) return [h("p", { class: "quiet" }, "This is no text, and no PNG or JPEG image; download it.")];
  const text = new TextDecoder().decode(content);
  const cut = bytes > content.length ? h("p", { class: "quiet" }, `The first ${bytesText(content.length)} of ${bytesText(bytes)}.`) : null;
  return [h("pre", { tabindex: 0 }, text || "(empty)"), cut];
}

function bytesText(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const at = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), 4);
  return `${(value / 1024 ** at).toFixed(at ? 1 : 0)} ${units[at]}`;
}
