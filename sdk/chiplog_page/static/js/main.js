// The router: the first part of the address names a view, which is a module in views/ and is loaded when it is needed.

import { h, notice, show } from "./dom.js";
import { emptySection, quiet } from "./elements.js";
import { addressOf, readAddress } from "./net/address.js";
import { follow } from "./net/api.js";
import { turnZone, zoneText } from "./text/texts.js";
import { restoreTheme, turnTheme } from "./theme.js";
import { firstRun } from "./views/first_run.js";

const VIEWS = { runs: "Runs", run: null, compare: null, sql: "SQL" }; // with a title: in the header
const AGAIN_MS = 1000; // until a view that failed is opened again
let close = () => {};
let turn = 0;

async function route() {
  const { path, query } = readAddress();
  const [name = "runs", ...rest] = path;
  const mine = ++turn;
  close();
  close = () => {};
  for (const dialog of document.querySelectorAll("dialog")) dialog.close(); // of the view before
  notice("");
  drawHeader(name);
  const content = newPlace(() => mine === turn);
  if (!Object.hasOwn(VIEWS, name)) {
    const all = h("a", { href: addressOf(["runs"]) }, "All runs");
    show(content, emptySection("h1", `There is no view ${name}`, h("p", {}, all)));
    return;
  }
  const words = [VIEWS[name] ?? rest[0] ?? "Compare", "chiplog"];
  document.title = words.join(" · ");
  const loading = setTimeout(() => {
    if (!content.firstChild) show(content, quiet("Loading…"));
  }, 300);
  try {
    const { default: Page } = await import(`./views/${name}.js`);
    if (mine !== turn) return;
    const view = new Page(content, rest, query);
    close = () => view.close();
    await view.start();
  } catch (error) {
    if (mine !== turn) return;
    close();
    close = () => {};
    showError(content, error);
  } finally {
    clearTimeout(loading);
  }
}

let place = null;

/**
 * Return an element for a view. The view before stays until this one draws; a view that draws after another one was
 * opened draws into an element that is not in the document any more.
 */
function newPlace(isCurrent) {
  if (!place?.firstChild) place?.remove();
  const content = document.getElementById("content");
  const former = [...content.childNodes];
  const mine = (place = h("div", { class: "view" }));
  content.append(mine);
  const drawn = new MutationObserver(() => {
    drawn.disconnect();
    if (isCurrent()) for (const node of former) node.remove();
  });
  drawn.observe(mine, { childList: true });
  return mine;
}

function showError(content, error) {
  // These end by themselves: as soon as the database answers, the view is opened.
  if (["no_data", "unreachable"].includes(error.kind)) {
    let timer = null;
    const unfollow = follow((state) => {
      if (!state.error) timer ??= setTimeout(route, AGAIN_MS);
    });
    close = () => {
      clearTimeout(timer);
      unfollow();
    };
  }
  if (error.kind === "no_data") {
    const again = h("button", { onclick: route }, "Check again");
    show(content, h("section", { class: "empty" }, firstRun(), quiet(error.message), again));
    return;
  }
  show(
    content,
    h(
      "section",
      { class: "empty", role: "alert" },
      h("h1", {}, TITLES[error.kind] ?? "This cannot be shown"),
      h("p", {}, error.message),
      ADVICE[error.kind] && quiet(ADVICE[error.kind]),
      h("button", { onclick: route }, "Try again"),
    ),
  );
  if (!error.kind) console.error(error); // a fault of the page, not an answer
}

// By the kind of an answer without a result.
const TITLES = {
  unreachable: "No answer",
  signed_out: "This browser is signed out",
  timeout: "The query took too long",
  busy: "The collector is busy",
  not_found: "Not found",
};
const ADVICE = {
  unreachable: "chiplog status shows which daemons run, and where.",
  timeout: "Queries are stopped after 30 s. Ask for fewer columns, runs or steps.",
  signed_out: "After each use chiplog ui prints a new address in its terminal.",
};

function drawHeader(current) {
  const links = Object.entries(VIEWS)
    .filter(([, title]) => title)
    .map(([name, title]) =>
      h("a", { href: addressOf([name]), "aria-current": name === current ? "page" : null }, title),
    );
  show(
    document.getElementById("header"),
    h("a", { class: "logo", href: addressOf(["runs"]) }, "chiplog"),
    h("nav", { "aria-label": "Views" }, links),
    h("button", { class: "theme zone", onclick: onZone, "aria-label": `Times in ${zoneText()}`, title: "Switch between UTC and local time" }, zoneText()),
    h("button", { class: "theme", onclick: turnTheme, "aria-label": "Dark or light" }, "◐"),
  );
}

function onZone() {
  turnZone();
  const [name] = readAddress().path;
  if (name === "sql") drawHeader(name); // its times are data, and what is typed there is not in the address
  else route();
  document.querySelector(".zone").focus();
}

// The address is that of the view, so a link must not change it.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("content").focus();
});
restoreTheme();
addEventListener("hashchange", route);
route();
