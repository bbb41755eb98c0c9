// Dialogs: closed by Escape; the focus goes back to where it was.

import { h } from "./dom.js";

/**
 * Show a dialog with a form.
 * @param {string} title
 * @param {Array} children fields
 * @param {{action: string, isDanger: boolean, onSubmit: function(FormData)}} options action: the text of the button;
 *   onSubmit: the message of its error stays in the dialog, else this closes
 */
export function openDialog(title, children, { action, isDanger = false, onSubmit }) {
  const error = h("p", { class: "error", role: "alert" });
  const submit = h("button", { class: isDanger ? "danger" : "main" }, action);
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const bar = h("div", { class: "bar" }, cancel, submit);
  const form = h("form", { onsubmit: send }, h("h2", {}, title), children, error, bar);
  const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove() }, form);
  document.body.append(dialog);
  dialog.showModal();

  async function send(event) {
    event.preventDefault();
    error.textContent = "";
    submit.disabled = true;
    try {
      await onSubmit(new FormData(form));
      dialog.close();
    } catch (reason) {
      error.textContent = reason.message;
    } finally {
      submit.disabled = false;
    }
  }
}

/** Return a labelled control of a dialog. */
export function field(title, control) {
  return h("label", { class: "field" }, h("span", {}, title), control);
}
