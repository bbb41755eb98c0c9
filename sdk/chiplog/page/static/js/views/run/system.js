// GPUs, hosts and processes of a run over time, with throttling and events of GPUs as marks.

import { setParameters } from "../../address.js";
import { ask, part } from "../../api.js";
import { Chart } from "../../chart.js";
import { modelOf } from "../../curve_model.js";
import { h, notice, show } from "../../dom.js";
import { liveRefresh } from "../../live.js";
import { timeText } from "../../texts.js";

const PAUSE_MS = 5000; // between two requests for what is new: agents sample every few seconds
const POINTS = 400;
const MARKS_SHOWN = 100; // in the list
const KINDS = [["hw.", "GPUs"], ["system.", "Hosts"], ["process.", "Processes"]];

export async function open(element, run, query) {
  const path = `runs/${part(run)}/system`;
  const aborted = new AbortController();
  const { signal } = aborted;
  const whole = (name) => (/^\d{1,16}$/.test(query.get(name) ?? "") ? Number(query.get(name)) : null);
  let zoom = whole("first") !== null && whole("last") !== null ? [whole("first"), whole("last")] : null; // microseconds
  let found = await ask(path, {}, { signal });
  const panels = new Map(); // by name
  if (!found.names.length) {
    const why = "No sample of a GPU, a host or a process belongs to this run. The agent takes them, unless sampling is turned off.";
    show(element, h("p", { class: "empty quiet" }, why));
    return () => aborted.abort();
  }

  const range = h("span", { class: "quiet" });
  const reset = h("button", { onclick: () => setZoom(null) }, "All times");
  const marks = h("details", { class: "panel" });
  const body = h("div");
  show(element, h("div", { class: "bar" }, range, reset), marks, body);

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const panel = panels.get(entry.target.dataset.name);
      panel.isSeen = entry.isIntersecting;
      if (panel.isSeen && panel.isStale) load([panel]).catch(fail);
    }
  }, { rootMargin: "150px" });

  function bounds() {
    if (zoom) return zoom;
    const times = (name) => found.names.map((row) => Date.parse(row[name]) * 1000);
    return [Math.min(...times("first")), Math.max(...times("last")) + 1_000_000];
  }

  function drawPanels() {
    for (const { name } of found.names) {
      if (panels.has(name)) continue;
      const box = h("div", { class: "curve-box" });
      const legend = h("div", { class: "curve-legend" });
      const title = h("h3", {}, name);
      const panel = { name, box, legend, title, isStale: true, isSeen: false, chart: null };
      panel.element = h("section", { class: "panel", "aria-label": name, "data-name": name }, title, box, legend);
      panels.set(name, panel);
    }
    const groups = KINDS.map(([start, title]) => [title, found.names.filter(({ name }) => name.startsWith(start))]);
    groups.push(["Others", found.names.filter(({ name }) => !KINDS.some(([start]) => name.startsWith(start)))]);
    show(body, groups.filter(([, names]) => names.length).map(([title, names]) =>
      h("section", { "aria-label": title }, h("h2", {}, title), h("div", { class: "panels" }, names.map(({ name }) => panels.get(name).element)))));
    for (const panel of panels.values()) seen.observe(panel.element);
  }

  function drawHead() {
    const [first, last] = bounds();
    range.textContent = `${timeText(new Date(first / 1000).toISOString())} to ${timeText(new Date(last / 1000).toISOString())}`;
    reset.hidden = !zoom;
    marks.hidden = !found.marks.length;
    const count = found.marks.length;
    show(marks, h("summary", {}, `${count} ${count === 1 ? "mark" : "marks"}: throttling and events of GPUs`),
      h("ul", {}, found.marks.slice(0, MARKS_SHOWN).map((mark) =>
        h("li", {}, `${timeText(mark.ts)} `, h("strong", {}, mark.label ?? mark.node), ` ${mark.message}`, mark.xid === null ? null : ` (XID ${mark.xid})`))),
      count > MARKS_SHOWN ? h("p", { class: "quiet" }, `The first ${MARKS_SHOWN} of ${count}.`) : null);
  }

  async function load(chosen) {
    if (!chosen.length) return;
    for (const panel of chosen) panel.isStale = false;
    const [first, last] = bounds();
    for (let at = 0; at < chosen.length; at += 4) {
      const some = chosen.slice(at, at + 4);
      const curves = await ask(`${path}/curves`, { name: some.map(({ name }) => name), first, last, points: POINTS }, { signal });
      some.forEach((panel, place) => drawCurve(panel, curves[place]));
    }
  }

  function drawCurve(panel, curve) {
    panel.title.textContent = `${curve.key}${curve.is_rate ? ", per second" : ""}${curve.kind === "band" ? `, ${curve.n_labels} devices` : ""}`;
    if (curve.kind === "none") {
      panel.legend.textContent = "No sample in this time.";
      if (!panel.chart) return;
    }
    panel.chart ??= new Chart(panel.box, panel.legend, {
      onZoom: (least, most) => setZoom([Math.floor(least * 1e6), Math.ceil(most * 1e6)]),
      onReset: () => setZoom(null),
      label: `Curve of ${panel.name}`,
    });
    const { model } = modelOf([{ name: run, curve, startMs: 0 }], { x: "time", isLog: false, weight: 0, range: null });
    const isGpu = panel.name.startsWith("hw.");
    panel.chart.draw({ ...model, marks: isGpu ? found.marks.map(({ ts, kind }) => ({ x: Date.parse(ts) / 1000, isBad: kind !== "throttled" })) : [] });
  }

  function setZoom(next) {
    zoom = next;
    setParameters({ first: next?.[0], last: next?.[1] });
    drawHead();
    for (const panel of panels.values()) panel.isStale = true;
    load([...panels.values()].filter((panel) => panel.isSeen)).catch(fail);
  }

  function fail(error) {
    if (error.name !== "AbortError") notice(error.message, true);
  }

  async function refresh() {
    try {
      const last = JSON.stringify(found);
      const next = await ask(path, {}, { signal });
      if (JSON.stringify(next) !== last) {
        const before = panels.size;
        found = next;
        drawHead();
        if (found.names.some(({ name }) => !panels.has(name)) || !before) drawPanels();
        for (const panel of panels.values()) panel.isStale = true;
        if (!zoom) await load([...panels.values()].filter((panel) => panel.isSeen));
      }
    } catch (error) {
      fail(error);
    }
  }
  drawHead();
  drawPanels();
  const live = liveRefresh(refresh, { pauseMs: PAUSE_MS, isQuiet: true });
  return () => {
    aborted.abort();
    live.close();
    seen.disconnect();
    for (const panel of panels.values()) panel.chart?.close();
  };
}
