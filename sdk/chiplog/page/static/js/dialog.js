// Dialogs: closed by Escape; the focus goes back to where it was.

import { h } from "./dom.js";

/**
 * Show a dialog with a form; return a function that closes it.
 * @param {string} title
 * @param {Array} children fields
 * @param {Object} options action: the text of the button; isDanger; onSubmit(form data): an error's message stays in the
 *   dialog, else it closes
 */
export function openDialog(title, children, { action, isDanger = false, onSubmit } = {}) {
  const error = h("p", { class: "error", role: "alert" });
  const submit = action && h("button", { class: isDanger ? "danger" : "main" }, action);
  const form = h("form", { onsubmit: send }, h("h2", {}, title), children, error);
  form.append(
    h("div", { class: "bar" }, h("button", { type: "button", onclick: close }, action ? "Cancel" : "Close"), submit ?? ""),
  );
  const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove() }, form);
  document.body.append(dialog);
  dialog.showModal();

  function close() {
    dialog.close();
  }

  async function send(event) {
    event.preventDefault();
    if (!onSubmit) return;
    error.textContent = "";
    submit.disabled = true;
    try {
      await onSubmit(new FormData(form));
      close();
    } catch (reason) {
      error.textContent = reason.message;
    } finally {
      submit.disabled = false;
    }
  }

  return close;
}

/** Return a labelled control of a dialog. */
export function field(title, control) {
  return h("label", { class: "field" }, h("span", {}, title), control);
}
