// What to do where no run is stored yet.

import { h } from "../dom.js";

const CODE = [
  "import chiplog",
  "",
  'run = chiplog.init(project="first")',
  "for step in range(100):",
  '    run.log({"loss": 1 / (step + 1)}, step=step)',
  "run.finish()",
].join("\n");

/** Return a title and the lines that record a first run. */
export function firstRun() {
  return [
    h("h1", {}, "No run yet"),
    h("p", {}, "Save these lines as train.py, run it, and the run appears here."),
    h("pre", { tabindex: 0 }, CODE),
  ];
}

/** Return how a training sends to a collector on another host. */
export function remoteHint() {
  return h(
    "p",
    { class: "quiet" },
    "If this page reads a collector on another host, run ",
    h("code", {}, "CHIPLOG_COLLECTOR=tcp://HOST:PORT python train.py"),
    " with its address. Connections between hosts need keys: ",
    h("code", {}, "chiplog keys --help"),
    ".",
  );
}
