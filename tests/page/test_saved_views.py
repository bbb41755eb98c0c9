"""Saved views: a menu that opens, saves and deletes them by keyboard."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.support.collector_log import whole
from tests.support.kept_log import finished, kept_log
from tests.support.page_site import Site, refuse


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose collector takes changes: three runs, of which run-3 belongs to another project."""
    runs = (finished(1, "run-1"), finished(2, "run-2"), finished(3, "run-3", project="a/b"))
    logs = [whole(run) for run in runs]
    with kept_log(tmp_path_factory.mktemp("views"), logs) as place, Site(place.root).running() as site:
        yield site


def open_menu(page: Page) -> None:
    page.get_by_role("button", name="Views").focus()
    page.keyboard.press("Enter")


def save_as(page: Page, name: str) -> None:
    open_menu(page)
    page.get_by_role("button", name="Save this view as…").click()
    page.get_by_role("dialog").get_by_label("Name").fill(name)
    page.keyboard.press("Enter")


@pytest.mark.full
def test_a_layout_of_a_run_is_opened_on_another_run_of_its_project(changing: Site, page: Page) -> None:
    changing.visit(page, "#/run/run-1/curves?labels=primary&log=1&filter=loss")
    save_as(page, "a/b <i>")
    expect(page.get_by_text("Saved a/b <i>")).to_be_visible()
    changing.visit(page, "#/run/run-2/console")
    expect(page.get_by_text("Nothing was printed yet")).to_be_visible()
    open_menu(page)
    expect(page.get_by_role("link", name="a/b <i>")).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")  # after All ranks and Primary only: no label of this run crashed
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"#/run/run-2/curves\?labels=primary&log=1&filter=loss$"))
    expect(page.get_by_label("log y")).to_be_checked()
    changing.visit(page, "#/run/run-3/curves")
    open_menu(page)
    expect(page.get_by_text("No saved view yet")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Views")).to_be_focused()


@pytest.mark.full
def test_a_view_is_replaced_only_when_asked_twice_and_deleted(changing: Site, page: Page) -> None:
    changing.visit(page, "#/runs?filter=run-1")
    save_as(page, "mine")
    expect(page.get_by_text("Saved mine")).to_be_visible()
    changing.visit(page, "#/runs?filter=run-2&group=state")
    save_as(page, "mine")
    expect(page.get_by_text("There is a view mine. Save again to replace it.")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Saved mine")).to_be_visible()
    changing.visit(page, "#/runs")
    open_menu(page)
    page.get_by_role("link", name="mine").click()
    expect(page.get_by_role("searchbox", name="Filter runs")).to_have_value("run-2")
    open_menu(page)
    page.get_by_role("button", name="Delete mine").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Deleted mine")).to_be_visible()
    open_menu(page)
    expect(page.get_by_text("No saved view yet")).to_be_visible()


def test_a_readers_key_is_told_what_it_cannot_do(site: Site, page: Page, errors: list[str]) -> None:
    refuse(page, "**/api/views/**", "changes need a key with the role admin", "forbidden", 403)
    site.visit(page, "#/runs")
    save_as(page, "mine")
    expect(page.get_by_text("a key with the role admin. Copy link shares the view without saving it.")).to_be_visible()
    errors.clear()  # the refusal


@pytest.mark.full
def test_views_that_ship_filter_the_labels_and_keep_the_rest(site: Site, page: Page) -> None:
    site.visit(page, "#/run/gpt-20260103-11aa22/curves?log=1")
    open_menu(page)
    page.get_by_role("link", name="Primary only").click()
    expect(page).to_have_url(re.compile(r"curves\?log=1&labels=primary$"))
    expect(page.get_by_label("labels", exact=True)).to_have_value("primary")
    open_menu(page)
    page.get_by_role("link", name="Crashed workers").click()
    expect(page.get_by_label("labels", exact=True)).to_have_value("failed")
    open_menu(page)
    page.get_by_role("link", name="All ranks").click()
    expect(page).to_have_url(re.compile(r"curves\?log=1$"))
