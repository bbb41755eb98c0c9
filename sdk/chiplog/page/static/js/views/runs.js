// The table of runs.

import { ask, objects } from "../api.js";
import { addressOf } from "../address.js";
import { h, show } from "../dom.js";

export async function open(content) {
  const runs = objects(await ask("runs"));
  show(
    content,
    h(
      "table",
      { class: "grid" },
      h("thead", {}, h("tr", {}, ["Name", "State", "Project"].map((title) => h("th", {}, title)))),
      h(
        "tbody",
        {},
        runs.map((run) =>
          h(
            "tr",
            {},
            h("td", {}, h("a", { href: addressOf(["run", run.run_id]) }, run.name || run.run_id)),
            h("td", {}, h("span", { class: `chip ${run.state}` }, run.state)),
            h("td", {}, run.project),
          ),
        ),
      ),
    ),
  );
}
