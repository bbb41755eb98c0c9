"""The page without a pointer: from the top of the document by Tab alone to a run, its tabs, a chart and a dialog."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.page_site import Site
from tests.support.whole_run import fill_whole_runs, run_id_of

TABS_MAX = 60
OUTLINE = "element => getComputedStyle(element).outlineStyle"


@pytest.fixture(scope="module")
def site(site_of: Callable[..., Site]) -> Site:
    return site_of(fill_whole_runs)


def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until an element has the focus, which must be visible."""
    expect(target).to_be_visible()
    for _ in range(TABS_MAX):
        page.keyboard.press("Tab")
        if target.evaluate("element => element === document.activeElement"):
            assert target.evaluate(OUTLINE) != "none", "the focus is visible"
            return
    pytest.fail(f"{TABS_MAX} Tabs do not reach {target}")


@pytest.mark.full
def test_tab_alone_reaches_a_run_its_tabs_and_a_chart(site: Site, page: Page) -> None:
    site.visit(page, "#/runs")
    grid = page.get_by_role("grid", name="Runs")
    expect(grid).to_contain_text("whole-1")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    tab_to(page, grid)
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    tabs = page.get_by_role("navigation", name="Parts of the run")
    tab_to(page, tabs.get_by_role("link", name="Curves"))
    tab_to(page, page.get_by_role("group", name="Curve of lr", exact=True))
    page.reload()
    tab_to(page, tabs.get_by_role("link", name="Ranks"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("img", name="Heat map of 8 labels by step"))


def test_a_dialog_keeps_the_focus_and_gives_it_back(site: Site, page: Page) -> None:
    site.visit(page, f"#/runs?run={run_id_of(lambda text: text, 1)}")
    for name in ("Columns…", "Edit", "Delete"):
        button = page.get_by_role("button", name=name, exact=True)
        button.focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        for _ in range(30):
            page.keyboard.press("Tab")
            # The body has the focus for one step, while it goes through the frame of the browser.
            assert page.evaluate("document.activeElement.matches('body, dialog, dialog *')")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(button).to_be_focused()
