"""The view of one run: its header, tabs and details."""

from collections.abc import Callable

import duckdb
import pytest
from playwright.sync_api import Page, expect

from tests.support.page_run import fill_page_run
from tests.support.page_site import Site
from tests.support.run_builder import RunBuilder

MARKUP = "<img src=x onerror=alert(1)>"


def test_the_header_has_state_primary_failure_and_completeness(curved: Site, page: Page) -> None:
    curved.visit(page, "#/run/lines")
    header = page.locator(".run-header")
    expect(header.get_by_role("heading", name="four")).to_be_visible()
    expect(header).to_contain_text("rank0")
    expect(header).to_contain_text("4 labels, 1 failed")
    expect(header).to_contain_text("all 20,000 events stored")
    expect(header).to_contain_text("20 min")
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text(f"rank3 failed first, after step 300: ValueError: {MARKUP}.")
    expect(verdict.get_by_role("link", name="rank3").first).to_have_attribute("href", "#/run/lines/events")
    expect(header.locator(".run-failure")).to_have_count(0)  # the sentence has it
    assert page.locator("img").count() == 0


@pytest.mark.full
def test_the_details_show_config_and_summary_as_text(curved: Site, page: Page) -> None:
    curved.visit(page, "#/run/lines")
    summary = page.locator(".run-details summary")
    expect(summary).to_contain_text("Details: 2 config")
    summary.press("Enter")
    config = page.locator(".run-details .panel", has_text="Config")
    expect(config).to_contain_text(MARKUP)
    expect(page.locator(".run-details .panel", has_text="Summary")).to_contain_text("epoch")
    expect(summary).to_be_focused()
    page.get_by_role("link", name="Console").click()  # they stay open in each tab, and by their address
    expect(page.locator(".tab-console")).to_be_visible()
    page.reload()
    expect(config).to_contain_text(MARKUP)
    assert page.locator("img").count() == 0


def fill_generated(database: duckdb.DuckDBPyConnection) -> None:
    """A run of one process without a launcher, whose label was generated, with a metric, a line and an alert."""
    build = RunBuilder(database)
    build.position()
    label = "box-k3x9ab"
    build.run("solo", name="my run", primary_label=label)
    ended = {"state": "finished", "exit_code": 0, "ended_s": 1200}
    build.label("solo", label, is_primary=True, node="box", hostname="box", **ended, produced=13)
    build.received(0, 12, at=245)
    build.metrics({"loss": "step"}, steps=10, at=0)
    build.console("hello", seq=10, line_no=1, at=1)


def test_a_generated_label_is_shown_as_the_run(site_of: Callable[..., Site], page: Page) -> None:
    site_of(fill_generated).visit(page, "#/run/solo")
    expect(page.locator(".curve-line")).to_have_text("my run9")
    expect(page.locator(".facts")).to_contain_text("primarymy run")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert "solo,box-k3x9ab,9," in download.value.path().read_text()  # data keeps the label
    page.get_by_role("link", name="Console").click()
    expect(page.locator(".line")).to_contain_text("my run")
    expect(page.locator("#content")).not_to_contain_text("box-k3x9ab")


@pytest.mark.full
def test_a_tab_that_every_object_has_is_no_tab(curved: Site, page: Page) -> None:
    curved.visit(page, "#/run/lines/constructor")
    expect(page.get_by_role("link", name="Curves")).to_have_attribute("aria-current", "page")
    expect(page.locator(".panel.curve").first).to_be_visible()


def test_an_unknown_run_links_to_the_runs(curved: Site, page: Page, errors: list[str]) -> None:
    curved.visit(page, "#/run/nothing")
    expect(page.get_by_role("heading", name="No such run yet")).to_be_visible()
    expect(page.get_by_role("link", name="All runs")).to_be_visible()
    errors.clear()  # its status is 404


@pytest.mark.full
def test_the_chosen_labels_are_those_of_each_tab(site_of: Callable[..., Site], page: Page) -> None:
    site_of(fill_page_run).visit(page, "#/run/slow/console")
    labels = page.get_by_role("combobox", name="labels", exact=True)
    labels.select_option("failed")
    expect(page.locator(".line .of").filter(has_text="rank0")).to_have_count(0)
    expect(page.get_by_text("line 999 of rank6")).to_be_in_viewport()
    tabs = page.get_by_role("navigation", name="Parts of the run")
    for tab, words in (
        ("Files", "The chosen labels saved no file."),
        ("Media", "No media yet"),
        ("Ranks", "the median is that of all labels"),
    ):
        tabs.get_by_role("link", name=tab).click()
        expect(page.locator(".run-tab")).to_contain_text(words)
        expect(labels).to_have_value("failed")
    labels.select_option("primary")
    tabs.get_by_role("link", name="Files").click()
    expect(page.get_by_role("button", name="plots/red.png")).to_be_visible()
    assert page.url.endswith("files?labels=primary")
