"""Failures and events of a run in the browser."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.page_run import MARKUP, fill_page_run
from tests.support.page_site import Site


@pytest.fixture(scope="module")
def runs(site_of: Callable[..., Site]) -> Site:
    return site_of(fill_page_run)


def test_all_labels_are_aligned_to_the_first_failure(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/events")
    ends = page.get_by_role("region", name="Failures").locator("tbody tr")
    expect(ends).to_have_count(8)
    expect(ends.nth(0)).to_contain_text("0 srank2failed firstfailed exit 1999node0ValueError: boomline 999 of rank2")
    expect(ends.nth(1)).to_contain_text("+2 srank6echocrashed signal 15999")
    expect(ends.nth(2)).to_contain_text("+10 srank0finished exit 0")
    expect(page.get_by_role("region", name="Tracebacks").locator("pre")).to_contain_text(f"ValueError: {MARKUP}")
    expect(page.get_by_role("region", name="Losses")).to_contain_text("the queue was full")
    ends.nth(1).get_by_role("link", name="rank6").click()
    expect(page.get_by_label("labels", exact=True)).to_have_value("=rank6")
    expect(page.locator(".line.chosen")).to_contain_text("line 991 of rank6")


def test_events_are_filtered_by_kind(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/events?level=warning")
    rows = page.get_by_role("region", name="All events").locator("tbody tr")
    expect(rows).to_have_count(3)
    page.get_by_label("Level").select_option("error")
    expect(rows).to_have_count(1)
    page.get_by_label("Level").select_option("")
    page.get_by_label("Kind").select_option("alert")
    expect(rows).to_have_count(3)
    assert "kind=alert" in page.url and "level" not in page.url
    page.get_by_label("Kind").select_option(label="file arrived (3)")  # in plain words, the kind itself as the title
    expect(rows.first.get_by_title("file_stored")).to_have_text("file arrived")


def test_a_change_of_the_database_asks_for_what_is_new(runs: Site, page: Page) -> None:
    change = "event: change\ndata: {}\n\n"
    page.route("**/api/live", lambda route: route.fulfill(content_type="text/event-stream", body=change))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/failures" in request.url else None)
    with page.expect_request(lambda request: "/failures" in request.url and len(asked) > 1):
        runs.visit(page, "#/run/slow/events")
    expect(page.get_by_role("region", name="Failures").locator("tbody tr")).to_have_count(8)


def test_events_of_failed_labels(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/events?labels=failed")
    rows = page.get_by_role("region", name="All events").locator("tbody tr")
    expect(rows).to_have_count(2)  # the traceback and the alert of rank2
    expect(page.get_by_role("region", name="Tracebacks").locator("details")).to_have_count(1)
    page.get_by_role("combobox", name="labels").select_option("primary")
    expect(rows.get_by_role("link")).to_have_text(["rank0"] * 4)
    assert "labels=primary" in page.url
    runs.visit(page, "#/run/even/events?labels=failed")
    expect(page.get_by_text("None of 4 labels has failed.")).to_be_visible()


def test_a_run_without_events_says_so(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/even/events")
    expect(page.get_by_text("No event.")).to_be_visible()
