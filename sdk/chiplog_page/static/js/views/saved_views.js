// What people save under a name, and a menu to open, save and delete it. The collector keeps it, for all who read it.

import { field, openDialog } from "../dialog.js";
import { h, notice, show } from "../dom.js";
import { quiet } from "../elements.js";
import { ask, part } from "../net/api.js";
import { timeText } from "../text/texts.js";

const NAME_MAX = 128; // characters, with the folder: a bound of the collector
const GAP = 4; // pixels between the button and the menu
let menus = 0;

/**
 * Return a button that opens a menu.
 * @param {Object} options title: of the button; noun: what is saved ("view"); folder: what the names begin with in the
 *   collector; shipped(): [{name, href, note}], those that come with chiplog; current(): the object to save, which is
 *   in the address afterwards; hrefOf(object): the address of a saved one, null if it is not valid
 */
export function savedViews({ title, noun, folder, shipped = () => [], current, hrefOf }) {
  const id = `menu${++menus}`;
  const button = h("button", { popovertarget: id, "aria-haspopup": "true", "aria-expanded": "false" }, title, h("span", { "aria-hidden": "true" }, "▾"));
  const own = h("div");
  const given = h("div");
  const menu = h(
    "div",
    { id, class: "menu", popover: "auto", role: "group", "aria-label": title, onkeydown: onKey },
    given,
    own,
    h("div", { class: "actions" }, h("button", { class: "bare", onclick: onSave }, `Save this ${noun} as…`),
      h("button", { class: "bare", onclick: onCopy }, "Copy link")),
  );
  let saved = [];

  menu.addEventListener("toggle", ({ newState }) => {
    const isOpen = newState === "open";
    button.setAttribute("aria-expanded", String(isOpen));
    if (!isOpen) return;
    drawGiven();
    drawOwn();
    place();
    menu.querySelector("a, button").focus();
    load().then(drawOwn, (reason) => show(own, h("p", { class: "error" }, reason.message)));
  });

  /** Put the menu below its button, within the window. */
  function place() {
    const { left, bottom } = button.getBoundingClientRect();
    menu.style.left = `${Math.max(GAP, Math.min(left, innerWidth - menu.offsetWidth - GAP))}px`;
    menu.style.top = `${bottom + GAP}px`;
  }

  async function load() {
    saved = await ask("views", { prefix: folder });
  }

  function drawGiven() {
    const items = shipped();
    show(given, items.map(({ name, href, note }) =>
      href
        ? h("a", { href, onclick: close }, name, note && h("span", { class: "quiet" }, note))
        : quiet(name, h("span", {}, note))));
    given.hidden = !items.length;
  }

  function drawOwn() {
    const focused = own.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    show(own, saved.length ? saved.map(itemOf) : quiet(`No saved ${noun} yet`));
    if (focused) own.querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus();
  }

  function itemOf({ name, view, ts }) {
    const short = name.slice(folder.length);
    const href = hrefOf(view);
    return h("div", { class: "item" },
      href
        ? h("a", { href, class: "clip", title: ts && `saved ${timeText(ts)}`, "data-name": `open ${name}`, onclick: close }, short)
        : h("p", { class: "quiet clip", title: "saved by another version of chiplog" }, short),
      h("button", { class: "bare", "data-name": name, "aria-label": `Delete ${short}`, onclick: () => onDelete(name) }, "✕"));
  }

  function close() {
    menu.hidePopover();
    button.focus();
  }

  function onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...menu.querySelectorAll("a, button")];
    const at = all.indexOf(document.activeElement);
    all[(at + step + all.length) % all.length].focus();
  }

  function onSave() {
    close();
    let replaced = "";
    const why = "Everyone who reads this collector can open it. Saving under an existing name replaces that one.";
    openDialog(`Save the ${noun}`, [field("Name", h("input", { name: "name", required: true, autofocus: true })), quiet(why)], {
      action: "Save",
      onSubmit: async (data) => {
        const short = data.get("name").trim();
        const name = folder + short;
        if (!short) throw new Error("the name is empty");
        if (name.length > NAME_MAX) throw new Error(`the name is longer than ${Math.max(0, NAME_MAX - folder.length)} characters`);
        await load();
        if (replaced !== name && saved.some((view) => view.name === name)) {
          replaced = name;
          throw new Error(`There is a ${noun} ${short}. Save again to replace it.`);
        }
        try {
          await ask(`views/${part(name)}`, {}, { method: "PUT", body: current() });
        } catch (reason) {
          throw ["refused", "forbidden"].includes(reason.kind) ? new Error(`${reason.message}. Copy link shares the ${noun} without saving it.`) : reason;
        }
        notice(`Saved ${short}`);
      },
    });
  }

  function onDelete(name) {
    close();
    openDialog(`Delete the ${noun} ${name.slice(folder.length)}?`, [h("p", {}, "It is deleted for all readers.")], {
      action: "Delete",
      isDanger: true,
      onSubmit: async () => {
        await ask(`views/${part(name)}`, {}, { method: "DELETE" });
        notice(`Deleted ${name.slice(folder.length)}`);
      },
    });
  }

  async function onCopy() {
    close();
    current();
    try {
      await navigator.clipboard.writeText(location.href);
      notice("Copied the address");
    } catch {
      notice("The browser does not allow copying. Copy the address from the address bar.", true);
    }
  }

  return [button, menu];
}
