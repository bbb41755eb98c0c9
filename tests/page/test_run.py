"""The view of one run: its header, tabs and details."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.curved_runs import fill_curved_runs
from tests.support.page_site import Site

MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def curved(site_of: Callable[..., Site]) -> Site:
    return site_of(fill_curved_runs)


def test_the_header_has_state_primary_failure_and_completeness(curved: Site, page: Page) -> None:
    curved.visit(page, "#/run/lines")
    header = page.locator(".run-header")
    expect(header.get_by_role("heading", name="four")).to_be_visible()
    expect(header).to_contain_text("rank0")
    expect(header).to_contain_text("4 labels, 1 failed")
    expect(header).to_contain_text("all 20,000 events stored")
    expect(header).to_contain_text("20 min")
    expect(header.locator(".run-failure")).to_have_text(f"rank3 failed: ValueError: {MARKUP}")
    expect(header.locator(".run-failure a")).to_have_attribute("href", "#/run/lines/events")
    assert page.locator("img").count() == 0


def test_the_details_show_config_and_summary_as_text(curved: Site, page: Page) -> None:
    curved.visit(page, "#/run/lines")
    page.get_by_text("Details: 2 config").click()
    config = page.locator(".run-details .panel", has_text="Config")
    expect(config).to_contain_text(MARKUP)
    expect(page.locator(".run-details .panel", has_text="Summary")).to_contain_text("epoch")
    assert page.locator("img").count() == 0


def test_an_unknown_run_links_to_the_runs(curved: Site, page: Page, errors: list[str]) -> None:
    curved.visit(page, "#/run/nothing")
    expect(page.get_by_role("heading", name="No such run yet")).to_be_visible()
    expect(page.get_by_role("link", name="All runs")).to_be_visible()
    errors.clear()  # its status is 404
