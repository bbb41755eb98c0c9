"""What holds in every view: no barrier that axe-core finds, in both themes, and nothing wider than the screen."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.page_site import Site, opened_page
from tests.support.whole_run import fill_whole_runs, run_id_of, store_whole_files

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()
LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
# The violations as lines: rule, element, what to do.
BARRIERS = """async (levels) => {
    const rules = { "heading-order": { enabled: true }, "page-has-heading-one": { enabled: true } };
    const { violations } = await axe.run(document, { runOnly: { type: "tag", values: levels }, rules });
    return violations.flatMap(({ id, nodes }) => nodes.map((node) =>
        `${id}: ${node.target.join(" ")}: ${node.html.slice(0, 120)}: ${node.failureSummary.split("\\n")[1]}`));
}"""
# Elements that reach beyond the window and are not in an area that scrolls.
BEYOND = """() => {
    const { clientWidth: width, scrollWidth } = document.documentElement;
    const scrolls = (element) => {
        for (let each = element.parentElement; each; each = each.parentElement) {
            if (getComputedStyle(each).overflowX !== "visible") return true;
        }
        return false;
    };
    const found = scrollWidth > width ? [`the document: ${scrollWidth}`] : [];
    for (const element of document.querySelectorAll("#header *, #content *")) {
        const { right, left, width: own } = element.getBoundingClientRect();
        const isBeyond = own > 1 && (right > width + 1 || left < -1);
        if (isBeyond && !scrolls(element)) found.push(`${element.outerHTML.slice(0, 120)}: ${right}`);
    }
    return found;
}"""
RUN, OTHER = (run_id_of(lambda text: text, number) for number in (1, 2))
# By name: the address, and a selector of what comes last.
VIEWS = {
    "runs": (f"#/runs?run={RUN}", ".rows .row"),
    "curves": (f"#/run/{RUN}", ".tab-curves canvas"),
    "ranks": (f"#/run/{RUN}/ranks", "[aria-label='Phases over time'] canvas"),
    "console": (f"#/run/{RUN}/console", ".tab-console .ansi-red"),
    "events": (f"#/run/{RUN}/events", ".tab-events td"),
    "media": (f"#/run/{RUN}/media", ".tab-media canvas"),
    "files": (f"#/run/{RUN}/files?file=scores.csv", "[aria-label=Preview] td"),
    "system": (f"#/run/{RUN}/system", ".tab-system canvas"),
    "sql": ("#/sql?q=" + quote("SELECT step, value FROM metrics WHERE key = 'lr'"), ".table .rows .row"),
    "compare": (f"#/compare?all=1&run={RUN}&run={OTHER}", "[aria-label^=Summary] td"),
    "empty": ("#/nothing", ".empty h1"),
}

EVERYDAY = ("runs", "curves", "ranks", "sql")


@pytest.fixture(scope="module")
def site(site_of: Callable[..., Site]) -> Site:
    site = site_of(fill_whole_runs)
    store_whole_files(site.root, lambda text: text)
    return site


@pytest.fixture(scope="module")
def shared(browser: Browser, site: Site) -> Iterator[Page]:
    """One page that goes from view to view."""
    errors: list[str] = []
    with opened_page(browser, errors) as page:
        site.visit(page)
        page.evaluate(AXE)  # not as an element: the policy of the page forbids it
        yield page
    assert errors == []


def go(page: Page, name: str) -> None:
    address, last = VIEWS[name]
    page.evaluate("(address) => { location.hash = address; }", address)
    expect(page.locator(last).first).to_be_visible()
    if name == "curves":
        page.locator(".run-details > summary").click()


@pytest.mark.parametrize(
    "name", [name if name in EVERYDAY else pytest.param(name, marks=pytest.mark.full) for name in VIEWS]
)
def test_a_view_has_no_barrier_and_is_not_wider_than_the_screen(shared: Page, name: str) -> None:
    go(shared, name)
    found: list[Any] = []
    for theme in ("light", "dark"):
        shared.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", theme)
        found += [f"{theme}: {barrier}" for barrier in shared.evaluate(BARRIERS, LEVELS)]
    for width in (400, 2560, 1280):
        shared.set_viewport_size({"width": width, "height": 800})
        shared.evaluate("new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")
        found += [f"{width} px: {element}" for element in shared.evaluate(BEYOND)]
    assert not found, "\n".join(found)


def test_the_dialogs_have_no_barrier_and_the_current_tab_is_on_a_small_screen(shared: Page) -> None:
    go(shared, "runs")
    for button in ("Edit", "Delete", "Columns…"):
        shared.get_by_role("button", name=button, exact=True).click()
        expect(shared.get_by_role("dialog")).to_be_visible()
        assert shared.evaluate(BARRIERS, LEVELS) == []
        shared.keyboard.press("Escape")
    shared.set_viewport_size({"width": 400, "height": 800})
    go(shared, "system")
    expect(shared.get_by_role("navigation", name="Parts of the run").get_by_text("System")).to_be_in_viewport(ratio=0.9)
