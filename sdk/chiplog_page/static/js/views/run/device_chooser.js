// A choice of nodes and of labels with their GPUs, for hundreds of devices: a line that says what is chosen, and a list
// with a search.

import { h, notice, show } from "../../dom.js";
import { quiet } from "../../elements.js";
import { LABELS_MAX, labelText } from "../../text/labels.js";
import { countText, wholeText } from "../../text/texts.js";

const SHOWN = 60; // nodes, until the search finds fewer
export const NODES_MAX = 256; // chosen: a bound of the server

/**
 * Return a chooser: {element, draw(labels)}.
 * @param {{nodes: Set, labels: Set, onChange: function()}} chosen both empty for all; the sets are changed
 */
export function deviceChooser({ nodes, labels, onChange }) {
  let known = [];
  let drawn = "";
  let search = "";
  const summary = h("summary", {});
  const list = h("div", { class: "device-list" });
  const none = h("button", { onclick: () => (nodes.clear(), labels.clear(), changed()) }, "All devices");
  const input = h("input", {
    ...{
      type: "search",
      class: "grow",
      placeholder: "Search nodes, labels, GPUs",
      "aria-label": "Search nodes, labels, GPUs",
    },
    oninput: () => {
      search = input.value.toLowerCase();
      drawList();
    },
  });
  const element = h("details", { class: "panel devices" }, summary, h("div", { class: "bar" }, input, none), list);
  element.addEventListener("toggle", () => element.open && drawList());

  function changed() {
    drawSummary();
    if (element.open) drawList();
    onChange();
  }

  function toggle(set, name, box) {
    const [most, noun] = set === nodes ? [NODES_MAX, "nodes"] : [LABELS_MAX, "labels"];
    if (box.checked && set.size >= most) {
      box.checked = false;
      notice(`At most ${wholeText(most)} ${noun} can be chosen.`, true);
      return;
    }
    if (box.checked) set.add(name);
    else set.delete(name);
    changed();
  }

  function drawSummary() {
    const nNodes = new Set(known.map(({ node }) => node)).size;
    const nLabels = new Set(known.map(({ label }) => label)).size;
    const nGpus = new Set(known.flatMap(({ node, gpus }) => (gpus ?? []).map((gpu) => `${node} ${gpu}`))).size;
    const all = [countText(nNodes, "node"), countText(nLabels, "label"), nGpus ? countText(nGpus, "GPU") : null];
    const chosen = [...nodes, ...[...labels].map(labelText)];
    const some =
      chosen.length > 6
        ? `${chosen.slice(0, 5).join(", ")} and ${wholeText(chosen.length - 5)} more`
        : chosen.join(", ");
    show(
      summary,
      h("b", {}, "Devices: "),
      chosen.length ? some : "all",
      h("span", { class: "quiet" }, ` of ${all.filter(Boolean).join(", ")}`),
    );
    none.disabled = !chosen.length;
  }

  function drawList() {
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    const byNode = new Map();
    for (const row of known) byNode.set(row.node, [...(byNode.get(row.node) ?? []), row]);
    const isFound = (row) =>
      [row.node, labelText(row.label), ...(row.gpus ?? [])].some((name) => name.toLowerCase().includes(search));
    const found = [...byNode].map(([node, rows]) => [node, rows.filter(isFound)]).filter(([, rows]) => rows.length);
    show(
      list,
      found.slice(0, SHOWN).map(([node, rows]) =>
        h(
          "fieldset",
          {},
          h("legend", {}, box("node", nodes, node, node)),
          rows.map(({ label, gpus }) =>
            box("label", labels, label, `${labelText(label)}${gpus?.length ? ` · ${gpus.join(", ")}` : ""}`, nodes.has(node)),
          ),
        ),
      ),
      found.length > SHOWN
        ? quiet(`The first ${SHOWN} of ${countText(found.length, "node")}; search for others.`)
        : null,
      found.length ? null : quiet("Nothing has such a name."),
    );
    if (focused) list.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
  }

  function box(kind, set, name, text, isOfNode = false) {
    const input = h("input", {
      ...{ type: "checkbox", checked: isOfNode || set.has(name), disabled: isOfNode, "data-id": `${kind} ${name}` },
      onchange: (event) => toggle(set, name, event.target),
    });
    return h("label", { title: text }, input, h("span", { class: "clip" }, text));
  }

  return {
    element,
    /** labels: rows of node, label, rank and gpus. */
    draw(rows) {
      const before = drawn;
      drawn = JSON.stringify([rows, ...nodes, ...labels]);
      known = rows;
      drawSummary();
      if (drawn !== before && element.open) drawList();
    },
  };
}
