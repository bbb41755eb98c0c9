"""The SQL view: completion, results, charts, errors, links, saved queries."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.support.collector_log import whole
from tests.support.kept_log import finished, kept_log
from tests.support.page_site import Site

CURVE = "SELECT range AS step, range * 2.5 AS loss, '=1+' || range AS word FROM range(3000)"


def test_a_link_runs_its_query_and_a_chart_is_drawn_on_request(site: Site, page: Page) -> None:
    site.visit(page, f"#/sql?q={quote(CURVE)}")
    expect(page.get_by_text(re.compile("^3,000 rows · "))).to_be_visible()
    assert page.locator(".table .rows .row").count() < 60
    chart = page.locator(".chart")
    expect(chart).to_be_hidden()
    page.get_by_role("button", name="Chart").click()
    expect(chart.locator("canvas")).to_be_visible()
    expect(chart.locator(".curve-legend")).to_contain_text("loss7,497.5")
    chart.get_by_label("x axis").select_option("loss")
    expect(chart.locator(".curve-legend")).to_contain_text("step2,999")
    assert "chart=1" in page.url and "x=loss" in page.url
    head = page.get_by_role("columnheader", name="loss")
    head.get_by_role("button").click()
    head.get_by_role("button").click()
    expect(page.get_by_role("gridcell", name="7497.5")).to_be_in_viewport()
    assert page.url.endswith("&sort=loss&order=down")
    page.reload()
    expect(page.get_by_role("columnheader", name="loss ↓")).to_be_visible()
    expect(page.get_by_role("gridcell", name="7497.5")).to_be_in_viewport()


@pytest.mark.full
def test_texts_beside_the_same_steps_have_a_line_each(site: Site, page: Page) -> None:
    rows = "SELECT step, 'rank' || r AS label, step * r AS value FROM range(20) a(step), (VALUES (2), (10)) b(r)"
    site.visit(page, f"#/sql?chart=1&q={quote(rows)}")
    entries = page.locator(".chart .curve-legend .curve-line")
    expect(entries).to_have_text(["rank238", "rank10190"])


def test_words_are_completed_and_ctrl_enter_runs(site: Site, page: Page) -> None:
    with page.expect_response("**/api/words"):
        site.visit(page, "#/sql")
    editor = page.get_by_role("textbox", name="SQL query")
    editor.fill("SELECT run_id FROM run")
    editor.press_sequentially("s WHERE proj")
    expect(page.get_by_role("button", name="project")).to_be_visible()
    editor.press("Tab")
    expect(editor).to_have_value("SELECT run_id FROM runs WHERE project")
    editor.press_sequentially(" = 'vision'")
    editor.press("Control+Enter")
    expect(page.get_by_role("gridcell", name="vit-20260104-0042")).to_be_visible()
    expect(page).to_have_url(re.compile("q=SELECT"))


def test_large_integers_have_all_digits(site: Site, page: Page) -> None:
    site.visit(page, "#/sql?q=" + quote("SELECT 1234567890123457 AS n, 1e15 + 0.5 AS x"))
    expect(page.get_by_role("gridcell", name="1234567890123457")).to_be_visible()
    expect(page.get_by_role("gridcell", name="1.000e+15")).to_be_visible()


@pytest.mark.full
def test_integers_beyond_a_double_are_numbers_with_all_digits(site: Site, page: Page, tmp_path: Path) -> None:
    exact = quote("SELECT d::DECIMAL(20, 15) AS d FROM (VALUES ('10.123456789012345'), ('9.5')) t(d) ORDER BY d DESC")
    site.visit(page, f"#/sql?sort=d&q={exact}")
    expect(page.get_by_role("gridcell")).to_have_text(["9.5", "10.123456789012345"])
    values = "(9007199254740993), (9007199254740992), (-9223372036854775807), (5), (NULL)"
    site.visit(page, "#/sql?sort=n&q=" + quote(f"SELECT n::BIGINT AS n FROM (VALUES {values}) t(n)"))
    cells = page.get_by_role("gridcell")
    expect(cells).to_have_text(["-9223372036854775807", "5", "9007199254740992", "9007199254740993", "NULL"])
    expect(cells.first).to_have_css("text-align", "right")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    download.value.save_as(tmp_path / "result.csv")
    rows = (tmp_path / "result.csv").read_text().split()
    assert rows == ["n", "9007199254740993", "9007199254740992", "-9223372036854775807", "5"]


def test_an_error_is_shown_and_the_last_result_stays(site: Site, page: Page, errors: list[str]) -> None:
    site.visit(page, "#/sql?q=" + quote("SELECT 41 + 1 AS answer"))
    expect(page.get_by_role("gridcell", name="42")).to_be_visible()
    editor = page.get_by_role("textbox", name="SQL query")
    editor.fill("SELECT nothing FROM runs")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("nothing")
    expect(page.get_by_role("gridcell", name="42")).to_be_visible()
    expect(page.get_by_text("The table below shows the result of the previous query.")).to_be_visible()
    errors.clear()  # the status of the answer


@pytest.mark.full
def test_a_query_that_runs_is_stopped(site: Site, page: Page) -> None:
    forever = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE (a.range + b.range) % 9 = 1"
    site.visit(page, "#/sql?q=" + quote(forever))
    expect(page.get_by_text(re.compile(r"^\d+ of at most 30 s$"))).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("alert")).to_have_text("The query was stopped.")
    page.get_by_role("textbox", name="SQL query").fill("SELECT 41 + 1 AS answer")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("gridcell", name="42")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_the_csv_has_all_rows_and_no_formulas(site: Site, page: Page, tmp_path: Path) -> None:
    site.visit(page, f"#/sql?q={quote(CURVE)}")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    download.value.save_as(tmp_path / "result.csv")
    with open(tmp_path / "result.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert (rows[0], rows[2], len(rows)) == (["step", "loss", "word"], ["1", "2.5", "'=1+1"], 3001)


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose collector takes changes."""
    logs = [whole(finished(1, "run-1"))]
    with kept_log(tmp_path_factory.mktemp("saving"), logs) as place, Site(place.root).running() as site:
        yield site


@pytest.mark.full
def test_queries_are_saved_under_a_name(changing: Site, page: Page) -> None:
    changing.visit(page, "#/sql?q=" + quote("SELECT 'kept' AS word"))
    page.get_by_role("button", name="Saved queries").click()
    page.get_by_role("button", name="Save this query as…").click()
    page.get_by_role("dialog").get_by_label("Name").fill("a/b <i>")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved a/b <i>")).to_be_visible()
    changing.visit(page, "#/sql")
    page.get_by_role("button", name="Saved queries").click()
    page.get_by_role("link", name="a/b <i>").click()
    expect(page.get_by_role("gridcell", name="kept")).to_be_visible()


@pytest.mark.full
def test_the_views_and_their_columns_are_listed_and_a_click_reads_one(site: Site, page: Page) -> None:
    site.visit(page, "#/sql")
    listed = page.locator(".views-list")
    expect(listed).to_be_hidden()
    page.get_by_role("button", name="Views", exact=True).click()
    expect(listed).to_contain_text("run_id")
    listed.get_by_role("link", name="stragglers", exact=True).click()
    expect(page.get_by_label("SQL query")).to_have_value("FROM stragglers LIMIT 100")
