"""Printed lines in the browser: labels, search, colours, older lines, a time in the address."""

from collections.abc import Iterator
from dataclasses import dataclass

import duckdb
import pytest
from playwright.sync_api import Page, expect

from tests.support.page_run import MARKUP, running_page_run
from tests.support.page_site import Site, first_of, hold, refuse
from tests.support.run_builder import Sql
from tests.support.served_database import changing


@dataclass
class Printing:
    """A server of the page, and the database that it shows."""

    site: Site
    database: duckdb.DuckDBPyConnection
    n_stored: int = 0

    def store(self, rank: int, second: int, line: str) -> None:
        """Store a line, as the collector does."""
        self.n_stored += 1
        where = f"run_id = 'slow' AND rank = {rank}"
        with changing(self.database) as build:
            build.console(line, seq=10_000 + self.n_stored, at=second, where=where)


@pytest.fixture(scope="module")
def printing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Printing]:
    root = tmp_path_factory.mktemp("printing")
    with running_page_run(root) as database, Site(root).running() as site:
        yield Printing(site, database)


def test_the_console_is_at_its_end_and_loads_older_lines_at_the_top(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/console?labels=%3Drank4")
    lines = page.locator(".line")
    expect(lines).to_have_count(500)
    expect(page.get_by_text("line 999 of rank4")).to_be_in_viewport()
    page.get_by_role("log").evaluate("element => { element.scrollTop = 0; }")
    expect(lines).to_have_count(1000)
    expect(lines.first).to_contain_text("line 0 of rank4")
    expect(page.get_by_text("line 500 of rank4")).to_be_in_viewport()  # what was at the top stays there


@pytest.mark.full
def test_a_scroll_to_the_top_while_new_lines_are_loading_loads_older_ones(printing: Printing, page: Page) -> None:
    held = hold(page, "**/console?*resume=*")
    printing.site.visit(page, "#/run/slow/console?labels=%3Drank4")
    expect(page.locator(".line")).to_have_count(500)
    printing.store(4, 1000, "new")
    first = first_of(held, page)  # perhaps one before there are any
    page.get_by_role("log").evaluate("element => { element.scrollTop = 0; }")
    page.evaluate("new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")  # it is handled
    page.route("**/console?*resume=*", lambda route: route.continue_())  # those after it
    first.continue_()
    expect(page.locator(".line")).to_have_count(1001)


def test_new_lines_are_shown_also_if_they_are_late_or_a_clock_is_slow(printing: Printing, page: Page) -> None:
    printing.site.visit(page, "#/run/slow/console")
    texts = page.locator(".line .text")
    expect(texts).to_have_count(500)
    printing.store(0, 1001, "newest of rank0")
    expect(texts.last).to_have_text("newest of rank0")
    printing.store(3, 970, "a clock that is 30 s slow")
    expect(page.get_by_text("a clock that is 30 s slow")).to_have_count(1)
    place = texts.all_text_contents().index("a clock that is 30 s slow")
    assert texts.nth(place - 1).text_content() == "line 970 of rank0" and texts.count() == 502
    printing.store(3, 10, "older than all lines that are shown")
    printing.store(0, 1002, "after it")
    expect(texts.last).to_have_text("after it")
    expect(page.get_by_text("older than all lines that are shown")).to_have_count(0)


@pytest.mark.full
def test_a_failed_request_is_reported_and_leaves_the_lines(printing: Printing, page: Page, errors: list[str]) -> None:
    notice = page.locator("#notice")
    lines = page.locator(".line")
    refuse(page, "**/console?*", "too many queries")
    printing.site.visit(page, "#/run/slow/console?labels=%3Drank5")
    expect(page.get_by_role("log")).to_have_text("too many queries")
    page.unroute_all()
    printing.store(5, 1000, "first")
    expect(lines.last).to_contain_text("first")
    n_shown = lines.count()
    refuse(page, "**/console?*", "too many queries")
    printing.store(5, 1001, "second")
    expect(notice).to_have_text("too many queries")
    expect(lines).to_have_count(n_shown)
    page.unroute_all()
    page.get_by_role("log").evaluate("element => { element.scrollTop = 0; }")
    expect(lines).to_have_count(n_shown + 500)
    expect(notice).to_be_hidden()
    page.get_by_role("log").evaluate("element => { element.scrollTop = element.scrollHeight; }")
    printing.store(5, 1002, "third")
    expect(lines.last).to_contain_text("third")
    expect(page.get_by_text("second")).to_be_visible()
    errors.clear()  # answers of 503


def test_a_search_finds_a_line_and_its_markup_and_colours_are_harmless(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/console")
    page.get_by_label("Search the lines").fill("error")
    expect(page.locator(".line")).to_have_count(1)
    expect(page.locator(".line .text")).to_have_text(f"ERROR {MARKUP}")
    expect(page.locator(".ansi-red.ansi-bold")).to_have_text("ERROR")
    assert page.locator("#content img").count() == 0
    assert "search=error" in page.url


@pytest.mark.full
def test_lines_do_not_wait_for_the_report_of_the_run(runs: Site, page: Page) -> None:
    held = hold(page, "**/api/runs/slow")
    runs.visit(page, "#/run/slow/console?labels=%3Drank4")
    expect(page.get_by_text("line 999 of rank4")).to_be_in_viewport()
    labels = page.get_by_label("labels", exact=True)
    expect(labels).to_have_value("=rank4")
    expect(labels.locator("option")).to_have_count(4)
    first_of(held, page).continue_()
    expect(labels.locator("option")).to_have_count(11)
    expect(labels).to_have_value("=rank4")
    expect(page.get_by_text("line 999 of rank4")).to_be_in_viewport()


@pytest.mark.full
def test_a_time_in_the_address_is_jumped_to(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/console?labels=%3Drank0&at=2026-01-02T03:08:20Z")
    expect(page.locator(".line.chosen")).to_contain_text("line 500 of rank0")
    expect(page.locator(".line.chosen")).to_be_in_viewport()
    page.get_by_role("button", name="To the end").click()
    expect(page.get_by_text("line 999 of rank0")).to_be_in_viewport()
    assert "at=" not in page.url


@pytest.mark.full
def test_lines_of_the_same_time_are_all_loaded_in_parts(printing: Printing, page: Page) -> None:
    """The first answer after a time ends among them."""
    with changing(printing.database) as build:
        lines = {"steps": 1500, "seq": "20000 + step", "at": 700, "where": "run_id = 'slow' AND rank = 7"}
        build.console(Sql("'block ' || step"), **lines)
    printing.site.visit(page, "#/run/slow/console?search=block&at=2026-01-02T03:11:39Z")
    expect(page.locator(".line")).to_have_count(500)
    page.get_by_role("log").evaluate("element => { element.scrollTop = element.scrollHeight; }")
    expect(page.locator(".line")).to_have_count(1500)
    expect(page.locator(".line").last).to_contain_text("block 1499")
