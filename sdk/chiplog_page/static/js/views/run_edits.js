// What a reader may change of runs: name, tags and notes; and deleting them. The collector refuses it without the right.

import { field, openDialog } from "../dialog.js";
import { h, notice } from "../dom.js";
import { ask, part } from "../net/api.js";

/** Edit a run in a dialog; onDone() is called after it was changed. */
export function editRun({ run_id: id, name, tags, notes }, onDone) {
  const old = { name: name ?? "", tags: (tags ?? []).join(", "), notes: notes ?? "" };
  openDialog(
    `Edit ${id}`,
    [
      field("Name", h("input", { name: "name", value: old.name, autofocus: true })),
      field("Tags, with commas between them", h("input", { name: "tags", value: old.tags })),
      field("Notes", h("textarea", { name: "notes", rows: 5 }, old.notes)),
    ],
    {
      action: "Save",
      onSubmit: async (data) => {
        const body = {};
        for (const name of ["name", "tags", "notes"]) {
          const value = data.get(name).replaceAll("\r\n", "\n").trim();
          if (value === old[name]) continue;
          body[name] = name === "tags" ? value.split(",").map((tag) => tag.trim()).filter(Boolean) : value || null;
        }
        if (!Object.keys(body).length) return;
        await ask(`runs/${part(id)}`, {}, { method: "PATCH", body });
        notice(`Saved ${id}`);
        await onDone();
      },
    },
  );
}

/**
 * Delete runs after a confirmation that names each of them.
 * @param {Array<{run_id: string, name: ?string, n_running: number}>} runs
 * @param {function(gone: Array<string>)} onDone called with those that were deleted, also if another one could not be
 * @param {?string} refusal why the server refused a run that has not ended; it is deleted nevertheless
 */
export function deleteRuns(runs, onDone, refusal = null) {
  const [these, are] = runs.length === 1 ? ["this run", "The run is"] : ["these runs", "The runs are"];
  let left = runs;
  const names = runs.map((run) => h("li", {}, run.name ? `${run.name} (${run.run_id})` : run.run_id));
  const title = runs.length === 1 ? `Delete ${runs[0].name || runs[0].run_id}?` : `Delete ${runs.length} runs?`;
  openDialog(
    title,
    [
      refusal && h("p", { class: "error" }, refusal),
      h("ul", { class: "names" }, names),
      h("p", {}, `All data of ${these} is deleted for every reader. This cannot be undone.`),
      refusal && h("p", { class: "error" }, `${are} still running: everything that the processes send from now on is discarded.`),
    ],
    {
      action: refusal ? "Delete although it runs" : "Delete",
      isDanger: true,
      onSubmit: async () => {
        const [gone, kept] = [[], []];
        let why = null;
        try {
          for (const run of left) {
            try {
              await ask(`runs/${part(run.run_id)}`, { force: refusal ? 1 : null }, { method: "DELETE" });
              gone.push(run.run_id);
            } catch (reason) {
              // The server refuses a run that has not ended; a second confirmation may force it.
              if (refusal || reason.kind !== "refused" || !run.n_running) throw reason;
              kept.push(run);
              why = reason.message;
            }
          }
        } finally {
          left = left.filter((run) => !gone.includes(run.run_id));
          await onDone(gone);
        }
        if (gone.length) notice(gone.length === 1 ? `Deleted ${gone[0]}` : `Deleted ${gone.length} runs`);
        if (kept.length) setTimeout(() => deleteRuns(kept, onDone, why));
      },
    },
  );
}
