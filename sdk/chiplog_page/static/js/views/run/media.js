// What a run logged beside numbers: histograms over steps, texts and media at a step, and saved images and tables. One
// step is chosen for the whole tab, the newest at first.

import { HistogramMap } from "../../charts/histogram_map.js";
import { h, show } from "../../dom.js";
import { checkbox, emptySection, quiet } from "../../elements.js";
import { addressOf, setParameters, wholeOf } from "../../net/address.js";
import { ask } from "../../net/api.js";
import { hasGrown, isActive } from "../../net/live.js";
import { nameFilter } from "../../text/filter.js";
import { labelText, noLabelsText } from "../../text/labels.js";
import { bytesText, countText, wholeText } from "../../text/texts.js";
import { layerSwitches, mediaElement } from "./logged_media.js";
import { RunView } from "./run_view.js";
import {
  IMAGE_BYTES_MAX,
  TEXT_BYTES_MAX,
  imageOf,
  kindOf,
  readStart,
  seriesOf,
  tableElement,
  tableOf,
  tableText,
} from "./saved_files.js";

const PAUSE_MS = 2000; // between two requests for what is new
const PAUSE_FACTOR = 10; // an answer that takes long is asked for less often
const TYPING_MS = 250;
const SLIDING_MS = 120;
const SHOWN_AT_FIRST = 24; // panels of a section, until more are asked for
const TABLE_ROWS = 20; // the tab Files has more
const URLS_MAX = 40; // images that are kept
const ITEMS_AT_FIRST = 24; // of a panel
const TABLES_AT_FIRST = 4;
const TITLES = { image: "Images", figure: "Figures", audio: "Audio", video: "Videos", table: "Tables", html: "HTML", object3d: "3D objects", savedImages: "Saved images", savedTables: "Saved tables" };
const KINDS = Object.keys(TITLES).filter((kind) => !kind.startsWith("saved"));
const NOTHING = "This run has no histogram, text or media. This logs some:";
const EXAMPLE = `run.log({"weights": chiplog.Histogram.of(model.weight)})
run.log({"sample": "To be, or not to be"})
run.log({"digits": chiplog.Image(pixels, caption="a 7")})
run.log({"predictions": chiplog.Table(columns=["id", "loss"], data=rows)})
run.save("samples/step_100.png")`;

export default class MediaTab extends RunView {
  filter = this.query.get("filter") ?? "";
  search = this.query.get("search") ?? "";
  isLog = this.query.get("log") === "1";
  step = wholeOf(this.query.get("step"));
  zoom = zoomOf(this.query);
  ranges = rangesOf(this.query); // of values, by key
  panels = new Map(); // by kind and name
  urls = new Map(); // of images, by digest

  async start() {
    this.media = await this.ask(`${this.path}/media`);
    if (!this.isOpen) return;
    this.seen = this.observer((entries) => this.onSeen(entries));
    this.bar = h("div", { class: "bar" });
    this.body = h("div");
    show(this.element, this.bar, this.body);
    this.drawBar();
    this.drawSections();
    this.followReports();
    const concerns = () => isActive(this.report) || this.waiting().length > 0;
    this.live = this.follow(() => this.refresh(), { pauseMs: PAUSE_MS, pauseFactor: PAUSE_FACTOR, isQuiet: true, concerns });
  }

  close() {
    super.close();
    for (const panel of this.panels.values()) panel.close();
    for (const url of this.urls.values()) URL.revokeObjectURL(url);
  }

  onLabels() {
    this.redrawAll();
    for (const kind of Object.keys(this.sections())) if (!kind.startsWith("saved")) this.reload(kind);
  }

  onReport(before, hasOtherLabels) {
    const hasOtherFiles = JSON.stringify(this.report.files) !== JSON.stringify(before.files);
    if (!hasOtherLabels && hasOtherFiles) this.redrawAll();
    if (hasGrown(before, this.report)) this.live.changed();
  }

  // -- what there is --

  /** Return {histograms, texts, image, figure, …, savedImages, savedTables}: names with what is known of each. */
  sections() {
    const { labels } = this;
    if (this.hasNoLabels) return {};
    const files = this.report.files.filter(({ label }) => !labels || labels.includes(label));
    const series = (kind) => seriesOf(files.filter(({ path }) => kindOf(path) === kind)).map((one) => [one.name, one]);
    const keys = (rows) => rows.map((row) => [row.key, row]);
    const kinds = new Set([...KINDS, ...this.media.media.map(({ kind }) => kind)]);
    return {
      histograms: keys(this.media.histograms),
      texts: keys(this.media.texts),
      ...Object.fromEntries([...kinds].map((kind) => [kind, keys(this.media.media.filter((row) => row.kind === kind))])),
      savedImages: series("image"),
      savedTables: series("table"),
    };
  }

  /** Return the first and the last step with anything; null without steps. */
  bounds() {
    const spans = Object.values(this.media).flat().map((row) => [row.first_step, row.last_step]);
    const { savedImages = [], savedTables = [] } = this.sections();
    for (const [, { files }] of [...savedImages, ...savedTables])
      if (files[0].step !== null) spans.push([files[0].step, files.at(-1).step]);
    if (!spans.length) return null;
    return [Math.min(...spans.map(([least]) => least)), Math.max(...spans.map(([, most]) => most))];
  }

  // -- controls --

  drawBar() {
    const bounds = this.bounds();
    const hasKeys = Object.values(this.media).some((rows) => rows.length);
    if (!hasKeys && !this.report.files.some(({ path }) => ["image", "table"].includes(kindOf(path)))) {
      show(this.bar);
      return;
    }
    const typed = (name, title, action, attributes) => {
      const onText = (text) => {
        this[name] = text;
        setParameters({ [name]: text });
        action();
      };
      return this.searchInput(title, this[name], TYPING_MS, onText, attributes);
    };
    this.slider = h("input", {
      type: "range",
      class: "steps",
      "aria-label": "Step",
      oninput: () => this.slide(this.slider.valueAsNumber),
    });
    this.number = h("input", {
      ...{ type: "number", class: "step-bound", "aria-label": "Step as a number" },
      onchange: () => this.setStep(wholeOf(this.number.value)),
    });
    const next = (by, name, text) =>
      h("button", { "aria-label": name, title: name, onclick: () => this.move(by) }, text);
    this.newest = h("button", { onclick: () => this.setStep(null) }, "Newest");
    this.reset = h("button", { onclick: () => this.setZoom(null) }, "Reset zoom");
    show(
      this.bar,
      typed("filter", "Filter names", () => this.drawSections()),
      this.media.histograms.length ? checkbox("log colours", this.isLog, (isLog) => this.setLog(isLog)) : null,
      this.media.texts.length ? typed("search", "Search texts", () => this.reload("texts"), { class: null }) : null,
      bounds &&
        h(
          "span",
          { class: "zoom" },
          "step",
          next(-1, "Step before", "◀"),
          this.slider,
          next(1, "Step after", "▶"),
          this.number,
          this.newest,
        ),
      this.reset,
    );
    this.drawStep();
  }

  drawStep() {
    const bounds = this.bounds();
    if (!bounds || !this.slider) return;
    [this.slider.min, this.slider.max] = bounds;
    const step = this.step ?? bounds[1];
    this.slider.value = step;
    this.slider.disabled = bounds[0] === bounds[1];
    if (document.activeElement !== this.number) this.number.value = step;
    this.newest.disabled = this.step === null;
    this.reset.hidden = !this.zoom && !this.ranges.size;
  }

  /** Follow the slider, with one request for where it rests. */
  slide(step) {
    this.number.value = step;
    this.later("step", SLIDING_MS, () => this.setStep(step));
  }

  setStep(step) {
    this.cancel("step");
    this.step = step;
    setParameters({ step });
    this.drawStep();
    for (const panel of this.panels.values()) panel.onStep();
  }

  /** Go to the next step, or the one before, at which a visible panel has something else. */
  move(by) {
    const bounds = this.bounds();
    const now = this.step ?? bounds[1];
    const seen = [...this.panels.values()].filter((panel) => panel.isSeen);
    const others = seen.filter((panel) => !(panel instanceof HistogramPanel)); // texts are rarer than histograms
    const found = (others.some((panel) => panel.around(now).length) ? others : seen).flatMap((panel) =>
      panel.around(now),
    );
    const steps = found.filter((step) => step !== null && step !== undefined && (by < 0 ? step < now : step > now));
    if (steps.length) this.setStep(by < 0 ? Math.max(...steps) : Math.min(...steps));
  }

  setLog(isLog) {
    this.isLog = isLog;
    setParameters({ log: isLog ? 1 : null });
    for (const panel of this.panels.values()) if (panel instanceof HistogramPanel) panel.draw();
  }

  setZoom(zoom, key) {
    if (zoom === null) {
      this.zoom = null;
      this.ranges.clear();
    } else {
      if (zoom.first !== undefined) this.zoom = { first: zoom.first, last: zoom.last };
      if (zoom.low !== undefined) this.ranges.set(key, [zoom.low, zoom.high]);
    }
    setParameters({
      first: this.zoom?.first,
      last: this.zoom?.last,
      range: [...this.ranges].map(([name, [low, high]]) => `${low},${high},${name}`),
    });
    this.drawStep();
    this.reload("histograms");
  }

  // -- panels --

  drawSections() {
    const { test, error } = nameFilter(this.filter);
    if (error) {
      show(this.body, h("p", { class: "error" }, error));
      return;
    }
    const sections = Object.entries(this.sections()).map(([kind, found]) => [
      kind,
      found.filter(([name]) => test(name)),
      found.length,
    ]);
    const known = new Set(sections.flatMap(([kind, found]) => found.map(([name]) => `${kind}:${name}`)));
    for (const [id, panel] of this.panels) {
      if (known.has(id)) continue;
      this.seen.unobserve(panel.element);
      panel.close();
      this.panels.delete(id);
    }
    if (this.hasNoLabels) {
      show(this.body, h("p", { class: "empty" }, noLabelsText(this.report)));
    } else if (!sections.some(([, , n]) => n)) {
      show(this.body, emptySection("h2", "No media yet", h("p", {}, NOTHING), h("pre", { tabindex: 0 }, EXAMPLE)));
    } else if (!known.size) {
      show(this.body, h("p", { class: "empty" }, `No name matches “${this.filter}”.`));
    } else {
      show(this.body, sections.filter(([, found]) => found.length).map(([kind, found]) => this.drawSection(kind, found)));
    }
  }

  drawSection(kind, found) {
    const panels = h("div", { class: "panels media" });
    const more = h("button", { onclick: () => fill(panels.childElementCount + SHOWN_AT_FIRST) });
    const fill = (n) => {
      show(panels, found.slice(0, n).map(([name, what]) => this.panel(kind, name, what).element));
      more.hidden = n >= found.length;
      more.textContent = `Show more (${wholeText(Math.min(n, found.length))} of ${wholeText(found.length)})`;
    };
    fill(SHOWN_AT_FIRST);
    const title = TITLES[kind] ?? kind[0].toUpperCase() + kind.slice(1);
    return h(
      "section",
      { "aria-label": title },
      h("h2", {}, title, h("span", { class: "quiet" }, ` ${wholeText(found.length)}`)),
      panels,
      more,
    );
  }

  panel(kind, name, what) {
    const id = `${kind}:${name}`;
    let panel = this.panels.get(id);
    if (!panel) {
      panel = new (PANELS[kind] ?? LoggedPanel)(this, name);
      panel.element.dataset.id = id;
      this.panels.set(id, panel);
      this.seen.observe(panel.element);
    }
    panel.set(what);
    return panel;
  }

  onSeen(entries) {
    for (const { target, isIntersecting } of entries) {
      const panel = this.panels.get(target.dataset.id);
      if (!panel) continue;
      panel.isSeen = isIntersecting;
      if (isIntersecting) panel.loadIfStale();
    }
  }

  reload(kind) {
    for (const [id, panel] of this.panels) {
      if (!id.startsWith(`${kind}:`)) continue;
      panel.isStale = true;
      if (panel.isSeen) panel.loadIfStale();
    }
  }

  redrawAll() {
    const isTyping = this.bar.contains(document.activeElement);
    if (!isTyping) this.drawBar();
    this.drawStep();
    this.drawSections();
  }

  // -- live --

  /** Return the panels of which a content has not arrived: contents come after the events that name them. */
  waiting() {
    return [...this.panels.values()].filter((panel) => panel.isWaiting);
  }

  async refresh() {
    try {
      const media = await this.ask(`${this.path}/media`);
      const isNew = JSON.stringify(media) !== JSON.stringify(this.media);
      this.media = media;
      for (const panel of this.waiting()) panel.onStep();
      if (!isNew || !this.isOpen) return true;
      this.redrawAll();
      await Promise.all([...this.panels.values()].map((panel) => panel.loading)); // the pause is by all requests
      return true;
    } catch (error) {
      return this.fail(error);
    }
  }

  /** Return the address of an image for <img>; null if the file is no known image. */
  async urlOf(file, signal) {
    if (this.urls.has(file.sha256)) return this.urls.get(file.sha256);
    const blob = imageOf(await readStart(this.run, file.path, IMAGE_BYTES_MAX, signal));
    if (!blob) return null;
    const url = URL.createObjectURL(blob);
    this.urls.set(file.sha256, url);
    if (this.urls.size > URLS_MAX) {
      const [oldest, old] = this.urls.entries().next().value;
      this.urls.delete(oldest);
      URL.revokeObjectURL(old);
    }
    return url;
  }
}

class Panel {
  constructor(view, name) {
    Object.assign(this, { view, name, what: null, isStale: true, isSeen: false });
    this.abort = new AbortController();
    this.title = h("h3", { class: "clip", title: name }, name);
    this.notes = h("p", { class: "quiet small media-notes" }, "Loading…");
    this.content = h("div");
    this.element = h("section", { class: "panel", "aria-label": name }, this.title, this.notes, this.content);
  }

  /** Take what is known of it now; if that has changed, it is asked for again. */
  set(what) {
    const isSame = JSON.stringify(what) === JSON.stringify(this.what);
    this.what = what;
    if (isSame) return;
    this.isStale = true;
    if (this.isSeen) this.loadIfStale();
  }

  loadIfStale() {
    if (!this.isStale) return;
    this.isStale = false;
    this.loading = this.reload();
  }

  async reload() {
    this.abort.abort();
    this.abort = new AbortController();
    const { signal } = this.abort;
    try {
      await this.load(signal);
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      this.shown = null;
      const again = h("button", { onclick: () => ((this.isStale = true), this.loadIfStale()) }, "Try again");
      show(this.notes, h("span", { class: "error" }, error.message), " ", again);
    }
  }

  /** Return steps near one at which it has something; null for none. */
  around() {
    return [];
  }

  onStep() {
    this.isStale = true;
    if (this.isSeen) this.loadIfStale();
  }

  close() {
    this.abort.abort();
  }
}

class HistogramPanel extends Panel {
  constructor(view, name) {
    super(view, name);
    this.map = new HistogramMap({ onStep: (step) => view.setStep(step), onZoom: (zoom) => view.setZoom(zoom, name) });
    this.content.append(this.map.element);
  }

  async load(signal) {
    const { view, name } = this;
    const [low, high] = view.ranges.get(name) ?? [];
    const query = { key: name, label: view.labels, ...view.zoom, low, high, ...this.map.size() };
    const data = await ask(`${view.path}/histograms`, query, { signal });
    this.content.hidden = !data.n;
    const most = data.n ? Math.max(...data.n_steps) : 0;
    const notes = [
      data.n ? countText(data.n, "histogram") : `No histogram of ${view.labels ? "the chosen labels" : "any label"} in these steps.`,
      data.n_labels > 1 ? `sum of ${wholeText(data.n_labels)} labels` : null,
      most > 1 ? `a column has up to ${most} steps` : null,
      data.n && data.is_exact ? "rows are the bins" : null,
    ];
    show(this.notes, notes.filter(Boolean).join(" · "));
    this.columns = data.step ?? [];
    this.data = data;
    this.draw();
  }

  draw() {
    if (this.data) this.map.draw(this.data, { isLog: this.view.isLog, step: this.view.step });
  }

  around(now) {
    return [this.columns?.findLast((step) => step < now), this.columns?.find((step) => step > now)];
  }

  onStep() {
    this.map.mark(this.view.step);
  }

  close() {
    super.close();
    this.map.close();
  }
}

/** What is logged at some steps: `steps` has the shown one, and those around it. */
class StepPanel extends Panel {
  around(now) {
    const { step, before, after } = this.steps ?? {};
    return step === null || step === undefined ? [] : [before, step > now ? step : after];
  }
}

class LoggedPanel extends StepPanel {
  isOff = new Set(); // layers over images
  table = {}; // what is chosen of tables

  async load(signal) {
    const { view, name } = this;
    const { kind } = this.what;
    const found = await ask(`${view.path}/logged`, { key: name, kind, label: view.labels, step: view.step }, { signal });
    this.steps = found;
    const text = JSON.stringify(found);
    if (text === this.shown) return; // redrawing would stop a player
    this.shown = text;
    const { step, n_steps: nSteps, rows } = found;
    this.isWaiting = rows.some(({ is_stored: isStored, masks }) => !isStored || masks.some((mask) => !mask.is_stored));
    const where = nSteps
      ? `step ${wholeText(step)} · logged at ${countText(nSteps, "step")}${found.is_cut ? ` · the first ${rows.length}` : ""}`
      : `Nothing of ${view.labels ? "the chosen labels" : "any label"}.`;
    const switches = layerSwitches(rows, this.isOff, () => this.content.querySelectorAll(".media-frame").forEach((frame) => frame.draw()));
    show(this.notes, where, switches);
    const context = { run: view.run, key: name, kind, step, isOff: this.isOff, table: this.table, signal: view.signal };
    const items = h("div", { class: `media-items of-${kind}` });
    const fill = (n) => items.append(...rows.slice(items.childElementCount, n).map((row) => mediaElement(row, context)));
    fill(kind === "table" ? TABLES_AT_FIRST : ITEMS_AT_FIRST);
    const more = h("button", { onclick: () => (fill(rows.length), more.remove()) }, `Show all ${rows.length}`);
    show(this.content, items, items.childElementCount < rows.length ? more : null);
  }
}

class TextPanel extends StepPanel {
  async load(signal) {
    const { view, name } = this;
    const query = { key: name, label: view.labels, step: view.step, search: view.search };
    const found = await ask(`${view.path}/texts`, query, { signal });
    this.steps = found;
    const { step, n_steps: nSteps, rows } = found;
    const where = view.search
      ? `${found.is_cut ? "The newest " : ""}${countText(rows.length, "text")} with “${view.search}”`
      : nSteps
        ? `step ${wholeText(step)} · logged at ${countText(nSteps, "step")}`
        : `No text of ${view.labels ? "the chosen labels" : "any label"}.`;
    show(this.notes, where, found.is_cut && !view.search ? ` · the first ${rows.length} labels` : null);
    show(
      this.content,
      h(
        "div",
        { class: "media-texts", tabindex: 0, role: "group", "aria-label": `Texts of ${name}` },
        rows.map((row) => this.drawRow(row)),
      ),
    );
  }

  drawRow(row) {
    const { view } = this;
    const where = view.search
      ? h("button", { class: "bare", onclick: () => view.setStep(row.step) }, `step ${wholeText(row.step)}`)
      : null;
    const text = h("pre", {}, row.n_before ? "…" : null, marked(row.value, view.search));
    const n = [...row.value].length; // as the server counts
    const of = `${wholeText(n)} of ${countText(row.n_chars, "character")}`;
    const more =
      n < row.n_chars &&
      h(
        "button",
        {
          onclick: async () => {
            const query = { key: this.name, label: row.label, step: row.step };
            const whole = await ask(`${view.path}/texts`, query, { signal: this.abort.signal }).catch(
              (error) => view.fail(error),
            );
            if (!whole) return;
            show(text, marked(whole.rows[0]?.value ?? "", view.search));
            more.remove();
          },
        },
        `${of}: show all`,
      );
    return h("article", {}, h("header", {}, h("b", {}, labelText(row.label)), " ", where), text, more);
  }
}

class FilePanel extends Panel {
  /** Return the place of the file at the chosen step: the last one up to it. */
  place() {
    const { files } = this.what;
    const { step } = this.view;
    if (step === null || files[0].step === null) return files.length - 1;
    return Math.max(0, files.findLastIndex((entry) => entry.step <= step));
  }

  set(what) {
    this.shown = null;
    super.set(what);
  }

  async load(signal) {
    const { step, file } = this.what.files[this.place()];
    if (this.shown === file.sha256 + file.stored) return;
    const open = h(
      "a",
      { href: addressOf(["run", this.view.run, "files"], { file: file.path }) },
      file.path.split("/").at(-1),
    );
    const where = step === null ? null : `step ${wholeText(step)} · ${countText(this.what.files.length, "step")} · `;
    show(this.notes, where, open, ` · ${bytesText(file.bytes)}`);
    if (!file.stored) show(this.content, quiet("Its content has not arrived yet."));
    else await this.draw(file, signal);
    this.shown = file.sha256 + file.stored;
  }

  around(now) {
    const { files } = this.what;
    const at = this.place();
    return files[at].step === null ? [] : [files[at - 1]?.step, files[files[at].step > now ? at : at + 1]?.step];
  }
}

class ImagePanel extends FilePanel {
  async draw(file, signal) {
    if (file.bytes > IMAGE_BYTES_MAX) {
      show(this.content, quiet(`An image above ${bytesText(IMAGE_BYTES_MAX)} is not shown here; download it.`));
      return;
    }
    const url = await this.view.urlOf(file, signal);
    if (signal.aborted) return;
    if (url) show(this.content, h("img", { src: url, alt: file.path, class: "media-image" }));
    else show(this.content, quiet("This file is not a PNG, JPEG, GIF or WebP image."));
  }
}

class TablePanel extends FilePanel {
  async draw(file, signal) {
    const content = await readStart(this.view.run, file.path, TEXT_BYTES_MAX, signal);
    if (signal.aborted) return;
    const table = tableOf(file.path, new TextDecoder().decode(content), TABLE_ROWS, file.bytes > content.length);
    if (!table)
      show(this.content, quiet("This is not a table, or it is too large for a preview."));
    else show(this.content, tableElement(table), h("p", { class: "quiet small" }, tableText(table)));
  }
}

function zoomOf(query) {
  const [first, last] = [wholeOf(query.get("first")), wholeOf(query.get("last"))];
  return first === null && last === null ? null : { first, last };
}

function rangesOf(query) {
  const ranges = new Map();
  for (const text of query.getAll("range")) {
    const [low, high] = text.split(",", 2);
    const key = text.slice(low.length + (high ?? "").length + 2);
    if (key && Number(low) < Number(high)) ranges.set(key, [Number(low), Number(high)]);
  }
  return ranges;
}

const PANELS = { histograms: HistogramPanel, texts: TextPanel, savedImages: ImagePanel, savedTables: TablePanel };

/** Return a text with marks around what was searched for. */
function marked(text, search) {
  const parts = [];
  let at = 0;
  if (search) {
    const [low, word] = [text.toLowerCase(), search.toLowerCase()];
    const isAligned = low.length === text.length; // lower-casing may change the length: then positions do not correspond
    for (let found = low.indexOf(word); isAligned && found >= 0; found = low.indexOf(word, at)) {
      parts.push(text.slice(at, found), h("mark", {}, text.slice(found, found + word.length)));
      at = found + word.length;
    }
  }
  return [...parts, text.slice(at) || (parts.length ? null : "(empty)")];
}
