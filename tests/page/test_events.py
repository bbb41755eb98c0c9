"""Failures and events of a run in the browser."""

from collections.abc import Iterator
from dataclasses import dataclass

import duckdb
import pytest
from playwright.sync_api import Page, expect

from tests.support.page_run import MARKUP, running_page_run
from tests.support.page_site import Site, hold, let_go, refuse
from tests.support.run_builder import Sql
from tests.support.served_database import changing


@dataclass
class Failing:
    """A server of the page, and the database that it shows: `slow` still runs, `even` has ended."""

    site: Site
    database: duckdb.DuckDBPyConnection

    def store(
        self, rank: int, second: int, kind: str, message: str, body: str = '{"traceback": "Traceback of it"}'
    ) -> None:
        """Store an event of `slow`, as the collector does."""
        where = f"run_id = 'slow' AND rank = {rank}"
        event = {"level": "error", "body": Sql(f"'{body}'"), "seq": 7000 + second, "at": second, "where": where}
        with changing(self.database) as build:
            build.event(kind, message, **event)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failing]:
    root = tmp_path_factory.mktemp("failing")
    with running_page_run(root) as database, Site(root).running() as site:
        yield Failing(site, database)


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


@pytest.mark.full
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


@pytest.mark.full
def test_new_events_leave_what_a_reader_has_opened_and_selected(failing: Failing, page: Page) -> None:
    failing.site.visit(page, "#/run/slow/events")
    tracebacks = page.get_by_role("region", name="Tracebacks").locator("details")
    rows = page.get_by_role("region", name="All events").locator("tbody tr")
    expect(tracebacks).to_have_count(1)
    tracebacks.first.locator("summary").click()  # it was open
    rows.first.locator("summary").click()
    text = rows.first.locator("pre").text_content()
    rows.first.locator("pre").evaluate("element => getSelection().selectAllChildren(element)")
    failing.store(3, 999, "traceback", "RuntimeError: later")  # the newest, in any order of the tests
    expect(tracebacks).to_have_count(2)
    assert tracebacks.evaluate_all("all => all.map(({ open }) => open)") == [False, False]
    expect(rows.nth(0)).to_contain_text("RuntimeError: later")
    expect(rows.nth(1).locator("pre")).to_be_visible()
    assert page.evaluate("String(getSelection())").strip() == (text or "").strip() != ""


@pytest.mark.full
def test_the_alerts_are_listed_by_title(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/events")
    row = page.get_by_role("region", name="Alerts").locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row.get_by_role("cell")).to_have_text(
        ["warning", "loss spike", "3", "2026-01-02 03:00:02 UTC", "rank2", "at step 2"]
    )
    row.get_by_role("link", name="rank2").click()
    expect(page.locator(".line.chosen")).to_contain_text("line 1 of rank2")


@pytest.mark.full
def test_an_older_answer_does_not_replace_a_newer_one(runs: Site, page: Page) -> None:
    held = hold(page, "**/events?kind=alert*")
    runs.visit(page, "#/run/slow/events")
    rows = page.get_by_role("region", name="All events").locator("tbody tr")
    expect(rows).to_have_count(7)
    with page.expect_request("**/events?kind=alert*"):
        page.get_by_label("Kind").select_option("alert")
    page.get_by_label("Kind").select_option("file_stored")
    expect(rows).to_have_count(3)
    let_go(page, held[0])
    expect(rows.first).to_contain_text("file arrived")
    expect(rows).to_have_count(3)


@pytest.mark.full
def test_only_changes_of_a_run_that_is_not_complete_are_asked_for(failing: Failing, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/events" in request.url else None)
    failing.site.visit(page, "#/run/even/events")
    expect(page.get_by_text("No event.")).to_be_visible()
    n_asked = len(asked)
    # A second stream: its first event is the state now.
    stream = "new EventSource('api/live').addEventListener('change', () => (n += 1) === 1 ? begun() : changed())"
    promise = f"window.changed = new Promise((changed) => {{ let n = 0; {stream}; }});"
    page.evaluate(f"new Promise((begun) => {{ {promise} }})")
    failing.store(4, 996, "thread_failed", "of another run")
    page.evaluate("window.changed")
    page.evaluate("new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")
    assert len(asked) == n_asked
    failing.site.visit(page, "#/run/slow/events")
    expect(page.get_by_text("of another run")).to_be_visible()
    with page.expect_response(lambda response: "known=" in response.url) as answer, changing(failing.database):
        pass
    assert answer.value.json().keys() == {"digest"}


@pytest.mark.full
def test_an_event_whose_request_failed_is_asked_for_again_without_a_change(
    failing: Failing, page: Page, errors: list[str]
) -> None:
    failing.site.visit(page, "#/run/slow/events")
    expect(page.get_by_role("region", name="All events").locator("tbody tr").first).to_be_visible()
    page.route("**/api/runs/slow", lambda route: None)  # the report says that there are more events, too
    refuse(page, "**/events?*", "too many queries", times=2)
    failing.store(4, 997, "thread_failed", "the last one")
    expect(page.locator("#notice")).to_have_text("too many queries")
    expect(page.get_by_text("the last one")).to_be_visible()
    expect(page.locator("#notice")).to_be_hidden()
    errors.clear()  # answers of 503


@pytest.mark.full
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


def test_a_record_of_logging_has_the_name_of_its_logger(failing: Failing, page: Page) -> None:
    failing.store(4, 998, "log", "no checkpoint", '{"logger": "train.loop", "line": 7}')
    failing.site.visit(page, "#/run/slow/events?kind=log")
    row = page.get_by_role("region", name="All events").locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row.get_by_title("log", exact=True)).to_have_text("log record")
    expect(row.locator(".message")).to_contain_text("train.loop: no checkpoint")
    row.locator("summary").click()
    expect(row.locator("pre")).to_contain_text('"line": 7')
