"""The table of runs: rows that are drawn, filters, sorting, groups, columns, and what is changed from it."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from chiplog_client.client import connect
from chiplog_client.reads.runs.run_filter import read_filtered
from chiplog_client.reads.runs.runs_query import RunsRequest
from tests.support.collector_log import START_US, Rank, whole
from tests.support.kept_log import finished, kept_log
from tests.support.page_site import Site, hold, let_go, refuse
from tests.support.run_builder import RunBuilder, Sql

SMALL_CURVE = "loss, means of 40 parts of its steps: from 99.5 to 21.5, least 21.5, most 99.5"
RUNS = 10_000
LATER = 'retry: 1500\nevent: change\ndata: {"position": 1}\n\n'  # the browser connects again after that
MARKUP = "<img src=x onerror=alert(1)>"


def fill_many(database: duckdb.DuckDBPyConnection) -> None:
    """10,000 runs of a rank, the newest first: run-1, …"""
    build = RunBuilder(database, "TIMESTAMP '2026-06-01'")
    named = {"run_id": Sql("'run-' || run"), "project": Sql("CASE WHEN run % 2 = 0 THEN 'gpt' ELSE 'vision' END")}
    named["tags"] = Sql("CASE WHEN run % 3 = 0 THEN ['base'] ELSE [] END")
    named["name"] = Sql(f"CASE run WHEN 7 THEN '{MARKUP}' WHEN 8 THEN 'two words' END")
    state = Sql("CASE run % 10 WHEN 1 THEN 'failed' ELSE 'finished' END")
    times = {"started_s": "-60 * run", "ended_s": "-60 * run + 10 + run % 100"}
    build.many_runs(RUNS, named, state=state, exit_code=0, **times, produced=10)
    build.config({"lr": Sql("(run * 1e-3)::VARCHAR")})
    build.metrics({"loss": "100 - step"}, steps=80, at=0, where="run <= 200")


@pytest.fixture(scope="module")
def many(site_of: Callable[..., Site]) -> Site:
    return site_of(fill_many)


def rows(page: Page) -> Locator:
    return page.locator(".table .rows .row")


def names(page: Page) -> list[str]:
    return rows(page).locator("a").all_inner_texts()


def test_of_ten_thousand_runs_only_the_visible_ones_are_drawn(many: Site, page: Page, errors: list[str]) -> None:
    many.visit(page)
    expect(page.get_by_text("10,000 runs")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), (
        "the table scrolls, and the page does not"
    )
    grid = page.get_by_role("grid", name="Runs")
    assert (grid.get_attribute("aria-rowcount"), rows(page).count() < 60) == ("10001", True)
    grid.focus()
    page.keyboard.press("End")
    expect(page.get_by_role("link", name="run-10000", exact=True)).to_be_in_viewport()
    assert rows(page).count() < 60
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#/run/run-10000"))
    errors.clear()  # of another view


def test_the_filter_is_typed_and_kept_in_the_address(many: Site, page: Page) -> None:
    many.visit(page)
    field = page.get_by_role("searchbox", name="Filter runs")
    field.fill("lr<0.05 state:failed -tag:base")
    expect(page.get_by_text("4 of 10,000 runs")).to_be_visible()
    assert names(page) == ["run-1", "run-11", "run-31", "run-41"]  # run-21 has the tag
    page.reload()
    expect(page.get_by_role("searchbox", name="Filter runs")).to_have_value("lr<0.05 state:failed -tag:base")
    page.get_by_role("searchbox", name="Filter runs").fill('"two words"')
    expect(page.get_by_text("1 of 10,000 runs")).to_be_visible()


def test_the_command_line_finds_the_same_runs_by_a_filter(many: Site, page: Page) -> None:
    many.visit(page)
    field = page.get_by_role("searchbox", name="Filter runs")
    with connect(dir=many.root, start=False) as client:
        for text in (
            *(
                "state:fail",
                "project=GPT",
                "tag=base -gpt",
                "two words",
                "name:two",
                'name="two words"',
                "-two -tag:base",
            ),
            *("lr=5", "lr>=9.5", "lr<1e-1 failures>0", "loss<=21", "duration>100", "started<2026-05-26", "2026-05-31t"),
            *("id:run-99", "labels=1 lr<1", "attempts>1", "complete:yes lr<2", "lr:.5"),
        ):
            n = len(read_filtered(client, RunsRequest(["run_id"], limit=RUNS), text))
            field.fill(text)
            expect(page.get_by_text(f"{n:,} of 10,000 runs", exact=True)).to_be_visible()


@pytest.mark.full
def test_a_wrong_filter_says_why_in_one_line(many: Site, page: Page) -> None:
    many.visit(page, "#/runs?filter=size<3")
    error = page.locator("#filter-error")
    expect(error).to_have_text('there is no column size; put words with < in quotes: "size<3"')
    page.get_by_role("searchbox", name="Filter runs").fill("lr<small")
    expect(error).to_have_text("lr<small: small is neither a number nor a date; use lr:small for a text")
    page.get_by_role("searchbox", name="Filter runs").fill("nothing-has-this")
    expect(page.get_by_role("heading", name="No run matches the filter")).to_be_visible()
    page.get_by_role("button", name="Clear the filter").click()
    expect(page.get_by_text("10,000 runs")).to_be_visible()


def test_runs_are_sorted_and_grouped_by_keyboard(many: Site, page: Page) -> None:
    many.visit(page, "#/runs?filter=duration<12")
    head = page.get_by_role("columnheader", name="Duration")
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(page).to_have_url(re.compile("sort=duration"))
    page.get_by_label("Group by").select_option("project")
    expect(rows(page).first).to_have_text(re.compile("^▾ (gpt · 100 runs|vision · 100 runs, 100 failed)$"))


@pytest.mark.full
def test_groups_are_folded_by_keyboard_and_stay_so(many: Site, page: Page) -> None:
    many.visit(page, "#/runs?group=project")
    expect(rows(page).first).to_have_text("▾ vision · 5,000 runs, 1,000 failed")
    page.get_by_role("grid").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(rows(page).nth(0)).to_have_text(re.compile("^▸ vision"))
    expect(rows(page).nth(1)).to_have_text(re.compile("^▾ gpt"))
    page.get_by_role("button", name="Fold all").click()
    expect(rows(page)).to_have_count(2)
    page.get_by_text("gpt · 5,000 runs").click()
    page.reload()
    expect(rows(page).nth(0)).to_have_text(re.compile("^▸ vision"))
    expect(rows(page).nth(1)).to_have_text(re.compile("^▾ gpt"))
    expect(page.get_by_role("link", name="run-2", exact=True)).to_be_visible()


@pytest.mark.full
def test_small_curves_are_asked_for_the_visible_rows_only(many: Site, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "api/sparklines" in request.url else None)
    many.visit(page, "#/runs?curve=loss")
    curve = page.get_by_role("img", name=SMALL_CURVE).first
    expect(curve.locator("path")).to_have_attribute("d", re.compile("^M1.3 2.0L"))
    assert len(asked) == 1 and 0 < asked[0].count("run=") < 60
    grid = page.get_by_role("grid")
    grid.focus()
    page.keyboard.press("End")
    expect(page.get_by_role("img", name="loss was not logged").first).to_be_attached()
    assert sum(url.count("run=") for url in asked) < 150
    page.get_by_role("button", name="Columns…").click()
    expect(page.get_by_role("dialog").get_by_label("curve.loss")).to_be_checked()


@pytest.mark.full
def test_chosen_columns_come_from_config(many: Site, page: Page) -> None:
    many.visit(page)
    page.get_by_role("button", name="Columns…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("searchbox").fill("lr")
    dialog.get_by_label("config.lr").check()
    dialog.get_by_role("searchbox").fill("Tags")
    dialog.get_by_label("Tags").uncheck()
    dialog.get_by_role("button", name="Show").click()
    expect(rows(page).first).to_contain_text("0.001")
    expect(page.get_by_role("columnheader", name="Tags")).to_have_count(0)
    expect(page).to_have_url(re.compile("config=lr"))


@pytest.mark.full
def test_columns_are_listed_that_became_known_while_the_dialog_was_open(many: Site, page: Page) -> None:
    held = hold(page, "**/api/keys")
    many.visit(page)
    with page.expect_request("**/api/keys"):
        page.get_by_role("button", name="Columns…").click()
    page.get_by_role("dialog").get_by_role("searchbox").fill("lr")
    for route in held:  # that of the table, and that of the dialog
        let_go(page, route)
    expect(page.get_by_role("dialog").get_by_label("config.lr")).to_be_visible()


def test_selected_runs_are_compared(many: Site, page: Page, errors: list[str]) -> None:
    many.visit(page, "#/runs?run=run-2")
    page.get_by_label("Select run-3", exact=True).check()
    page.get_by_role("grid").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    page.get_by_role("button", name="Compare 3").click()
    expect(page).to_have_url(re.compile(r"#/compare\?run=run-2&run=run-3&run=run-1"))
    page.go_back()
    page.get_by_role("button", name="Overlay").click()
    expect(page).to_have_url(re.compile(r"#/run/run-2/curves\?with=run-3&with=run-1"))
    errors.clear()  # of another view


@pytest.mark.full
def test_runs_that_come_above_do_not_move_what_is_read(many: Site, page: Page) -> None:
    later: list[Route] = []

    def shorten(route: Route) -> None:
        """Answer the first request without the newest 100 runs, and keep the second one."""
        if "since=" in route.request.url:
            later.append(route)
            return
        body = route.fetch().json()
        rows = [row for row in body["rows"] if int(row[0].removeprefix("run-")) > 100]
        route.fulfill(json=body | {"rows": rows, "version": "none.0"})

    page.route(re.compile("api/runs"), shorten)
    with page.expect_request(re.compile("since=")):
        many.visit(page, "#/runs")
    expect(page.get_by_text("9,900 runs")).to_be_visible()
    page.get_by_role("grid").evaluate("table => { table.scrollTop = 3000 }")
    first = page.get_by_role("link", name="run-205", exact=True)
    expect(first).to_be_in_viewport()
    place = first.bounding_box()
    later[0].continue_()
    expect(page.get_by_text("10,000 runs")).to_be_visible()
    assert first.bounding_box() == place


@pytest.mark.full
def test_a_late_answer_with_other_columns_is_not_drawn(many: Site, page: Page) -> None:
    late = hold(page, "**/api/runs?config=lr*")
    many.visit(page)
    field = page.get_by_role("searchbox", name="Filter runs")
    with page.expect_request("**/api/runs?config=lr*"):
        field.fill("lr<0.05")
    field.fill("loss<22")
    expect(page.get_by_text("200 of 10,000 runs")).to_be_visible()
    let_go(page, late[0])
    expect(page.get_by_text("200 of 10,000 runs")).to_be_visible()
    assert names(page)


@pytest.mark.full
def test_a_selected_run_that_was_deleted_leaves_the_address(many: Site, page: Page) -> None:
    many.visit(page, "#/runs?run=run-2&run=gone")
    expect(page.get_by_role("button", name="Compare 1")).to_be_visible()
    assert "run=run-2" in page.url and "gone" not in page.url


@pytest.mark.full
def test_a_column_that_was_logged_after_the_page_was_opened_is_found(many: Site, page: Page) -> None:
    page.route("**/api/keys", lambda route: route.fulfill(json={"config": [], "summary": [], "curve": []}), times=1)
    many.visit(page)
    expect(page.get_by_text("10,000 runs")).to_be_visible()
    page.get_by_role("searchbox", name="Filter runs").fill("lr<0.05")
    expect(page.get_by_text("49 of 10,000 runs")).to_be_visible()
    expect(page.locator("#filter-error")).to_be_hidden()


@pytest.mark.full
def test_a_filter_by_a_column_beyond_the_most_says_so(many: Site, page: Page) -> None:
    columns = "&".join(f"config=k{n}" for n in range(20))
    many.visit(page, f"#/runs?filter=lr<0.05&{columns}")
    error = page.locator("#filter-error")
    expect(error).to_have_text("config.lr cannot be read beside 20 columns of config; hide one of them")
    expect(page.get_by_text("10,000 runs")).to_be_visible()
    page.get_by_role("searchbox", name="Filter runs").fill("k1:none")
    expect(error).to_be_hidden()
    many.visit(page, f"#/runs?filter=state:failed&sort=config.lr&{columns}")
    expect(error).to_have_text(
        "sorted by start: config.lr cannot be read beside 20 columns of config; hide one of them"
    )
    expect(page.get_by_text("1,000 of 10,000 runs")).to_be_visible()
    expect(page.get_by_label("Filter runs")).to_have_attribute("aria-invalid", "false")
    assert names(page)[0] == "run-1"


@pytest.mark.full
def test_names_that_every_object_has_are_no_columns(many: Site, page: Page) -> None:
    many.visit(page, "#/runs?group=constructor&column=constructor&column=name&filter=constructor:a&sort=valueOf.x")
    expect(page.get_by_text("there is no column constructor")).to_be_visible()
    expect(page.get_by_label("Group by")).to_have_value("")
    expect(page.get_by_role("columnheader")).to_have_count(2)


@pytest.mark.full
def test_words_find_names_and_not_the_primary_of_each_run(many: Site, page: Page) -> None:
    many.visit(page, "#/runs?filter=rank0")
    expect(page.get_by_role("heading", name="No run matches the filter")).to_be_visible()
    page.get_by_role("searchbox", name="Filter runs").fill("primary:rank0")
    expect(page.get_by_text("10,000 runs")).to_be_visible()
    page.get_by_role("button", name="Columns…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("searchbox").fill("lr config")
    expect(dialog.get_by_label("config.lr")).to_be_visible()
    dialog.get_by_role("searchbox").fill("primary")
    dialog.get_by_label("Primary").check()
    dialog.get_by_role("button", name="Show").click()
    expect(page.get_by_role("columnheader", name="Primary")).to_be_visible()
    expect(rows(page).first).to_contain_text("rank0")


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Site]:
    """A site whose collector takes changes: two finished runs, and one that runs."""
    running = Rank(3, rank=0, label="rank0", primary=True, run_id="run-3", start_us=START_US)
    running.log(1, loss=1.0)
    ranks = [finished(1, "run-1", name="old"), finished(2, "run-2"), running]
    logs = [whole(rank) for rank in ranks]
    with kept_log(tmp_path, logs) as place, Site(place.root).running() as site:
        yield site


def test_a_run_is_edited_in_place_and_others_see_it(changing: Site, page: Page) -> None:
    changing.visit(page, "#/runs?run=run-1")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog", name="Edit run-1")
    dialog.get_by_label("Name").fill(MARKUP)
    dialog.get_by_label("Tags").fill("best, b")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("link", name=MARKUP)).to_be_visible()
    expect(page.get_by_text("best", exact=True)).to_be_visible()
    with connect(dir=changing.root, start=False) as client:  # another reader: the table follows
        client.edit_run("run-2", name="new name")
    expect(page.get_by_role("link", name="new name")).to_be_visible()


def test_deleting_names_the_run_and_asks_twice_while_it_runs(changing: Site, page: Page, errors: list[str]) -> None:
    changing.visit(page, "#/runs?run=run-3")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog", name="Delete run-3?")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    again = page.get_by_role("button", name="Delete although it runs")
    expect(page.get_by_text("run run-3 is running")).to_be_visible()
    again.click()
    expect(page.get_by_role("link", name="run-3")).to_have_count(0)
    expect(page.get_by_text("2 runs")).to_be_visible()
    assert errors and all("400" in error for error in errors)
    errors.clear()  # the refusal


@pytest.mark.full
def test_a_missing_role_is_reported_and_not_asked_about_again(changing: Site, page: Page, errors: list[str]) -> None:
    message = "changes need a key with the role admin"
    refuse(page, "**/api/runs/run-3", message, "forbidden", 403)
    changing.visit(page, "#/runs?run=run-3")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text(message)
    expect(page.get_by_role("button", name="Delete although it runs")).to_have_count(0)
    errors.clear()  # the refusal


@pytest.mark.full
def test_of_several_runs_only_those_that_run_are_asked_about_again(
    changing: Site, page: Page, errors: list[str]
) -> None:
    changing.visit(page, "#/runs?run=run-1&run=run-3&run=run-2")
    page.get_by_role("button", name="Delete 3").click()
    page.get_by_role("dialog", name="Delete 3 runs?").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog", name="Delete run-3?")).to_be_visible()
    expect(page.get_by_text("1 run", exact=True)).to_be_visible()
    page.get_by_role("button", name="Delete although it runs").click()
    expect(page.get_by_role("link", name="run-3")).to_have_count(0)
    errors.clear()  # the refusal


@pytest.mark.full
def test_a_run_is_edited_and_deleted_on_its_own_page(changing: Site, page: Page, errors: list[str]) -> None:
    changing.visit(page, "#/run/run-2/files")
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("dialog").get_by_label("Name").fill("the best")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="the best")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog", name="Delete the best?").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("2 runs", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile("#/runs$"))
    errors.clear()  # its page may have asked for it once more
