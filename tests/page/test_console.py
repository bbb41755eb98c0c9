"""Printed lines in the browser: labels, search, colours, older lines, a time in the address."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.page_run import MARKUP, fill_page_run
from tests.support.page_site import Site


@pytest.fixture(scope="module")
def runs(site_of: Callable[..., Site]) -> Site:
    return site_of(fill_page_run)


def test_the_console_is_at_its_end_and_loads_older_lines_at_the_top(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/console?labels=%3Drank4")
    lines = page.locator(".line")
    expect(lines).to_have_count(500)
    expect(page.get_by_text("line 999 of rank4")).to_be_in_viewport()
    page.get_by_role("log").evaluate("element => { element.scrollTop = 0; }")
    expect(lines).to_have_count(1000)
    expect(lines.first).to_contain_text("line 0 of rank4")
    expect(page.get_by_text("line 500 of rank4")).to_be_in_viewport()  # what was at the top stays there


def test_a_scroll_to_the_top_while_new_lines_are_loading_loads_older_ones(runs: Site, page: Page) -> None:
    held: list[Route] = []
    page.route("**/console?*direction=after*", lambda route: held.append(route))
    change = "event: change\ndata: {}\n\n"
    page.route("**/api/live", lambda route: route.fulfill(content_type="text/event-stream", body=change))
    with page.expect_request("**/console?*direction=after*"):
        runs.visit(page, "#/run/slow/console?labels=%3Drank4")
    page.get_by_role("log").evaluate("element => { element.scrollTop = 0; }")
    page.evaluate("new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")  # it is handled
    held[0].continue_()
    expect(page.locator(".line")).to_have_count(1000)


def test_a_search_finds_a_line_and_its_markup_and_colours_are_harmless(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/console")
    page.get_by_label("Search the lines").fill("error")
    expect(page.locator(".line")).to_have_count(1)
    expect(page.locator(".line .text")).to_have_text(f"ERROR {MARKUP}")
    expect(page.locator(".ansi-red.ansi-bold")).to_have_text("ERROR")
    assert page.locator("#content img").count() == 0
    assert "search=error" in page.url


def test_lines_do_not_wait_for_the_report_of_the_run(runs: Site, page: Page) -> None:
    held: list[Route] = []
    page.route("**/api/runs/slow", lambda route: held.append(route))
    runs.visit(page, "#/run/slow/console?labels=%3Drank4")
    expect(page.get_by_text("line 999 of rank4")).to_be_in_viewport()
    labels = page.get_by_label("labels", exact=True)
    expect(labels).to_have_value("=rank4")
    expect(labels.locator("option")).to_have_count(4)
    held[0].continue_()
    expect(labels.locator("option")).to_have_count(11)
    expect(labels).to_have_value("=rank4")
    expect(page.get_by_text("line 999 of rank4")).to_be_in_viewport()


def test_a_time_in_the_address_is_jumped_to(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/console?labels=%3Drank0&at=2026-01-02T03:08:20Z")
    expect(page.locator(".line.chosen")).to_contain_text("line 500 of rank0")
    expect(page.locator(".line.chosen")).to_be_in_viewport()
    page.get_by_role("button", name="To the end").click()
    expect(page.get_by_text("line 999 of rank0")).to_be_in_viewport()
    assert "at=" not in page.url


def test_a_run_that_printed_nothing_says_so(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/even/console")
    expect(page.get_by_text("Nothing was printed yet")).to_be_visible()
