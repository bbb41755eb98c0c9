"""States in which there is little or nothing to show: each says what is the matter and what helps."""

from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pytest
from playwright.sync_api import Page, expect

from chiplog_client.client import Client
from chiplog_schemas.paths import paths_for_root
from tests.support.node import Node
from tests.support.page_site import Site
from tests.support.query_client import FOR_EVER
from tests.support.run_builder import RunBuilder, Sql

KEYS = 10_000
BEGUN = "TIMESTAMP '2026-01-02 03:00:00'"


def fill_odd_runs(database: duckdb.DuckDBPyConnection) -> None:
    """Write the runs `talk`, which only printed, and `keys` with KEYS keys of 2 steps."""
    build = RunBuilder(database)
    build.position()
    for run_id in ("talk", "keys"):
        build.run(run_id)
        build.ranks(run_id, node="node", produced=100000, state="finished", ended_s=10, exit_code=0)
    build.received(0, 99999)
    build.console(Sql("'line ' || step"), steps=5, where="run_id = 'talk'")
    build.names(f"layer{n // 100}/weight{n}" for n in range(KEYS))
    build.metrics_of_all("number + step / 4", steps=2, seq="number * 2 + step", where="run_id = 'keys'")


@pytest.fixture(scope="module")
def odd(site_of: Callable[..., Site]) -> Site:
    return site_of(fill_odd_runs)


@pytest.mark.full
def test_a_run_that_only_printed_says_so_in_each_tab(odd: Site, runs: Site, page: Page) -> None:
    odd.visit(page, "#/run/talk")
    expect(page.get_by_text("No metrics yet")).to_be_visible()
    page.locator(".empty").get_by_role("link", name="Console").click()
    expect(page.locator(".tab-console")).to_contain_text("line 4")
    for tab, words in (
        ("media", "chiplog.Histogram.of(model.weight)"),
        ("files", "No file was saved."),
        ("events", "No event."),
        ("system", "No samples of GPUs, hosts or processes for this run yet."),
        ("ranks", "nothing to compare"),
    ):
        page.evaluate("(tab) => { location.hash = `#/run/talk/${tab}`; }", tab)
        expect(page.locator("main")).to_contain_text(words)
    expect(page.get_by_label("Phase", exact=True)).to_be_hidden()
    runs.visit(page, "#/run/even/console")
    expect(page.get_by_text("Nothing was printed yet")).to_be_visible()


@pytest.mark.full
def test_of_ten_thousand_keys_few_are_drawn_and_a_filter_finds_one(odd: Site, page: Page) -> None:
    odd.visit(page, "#/run/keys")
    expect(page.get_by_role("heading", name="layer0", exact=True)).to_be_visible()
    assert page.locator(".panel.curve").count() <= 200
    expect(page.locator(".panel.curve h3").nth(1)).to_have_text("layer0/weight1")
    expect(page.locator(".panel.curve h3").nth(2)).to_have_text("layer0/weight2")
    expect(page.get_by_text("10,000 metrics are listed; SQL finds others")).to_be_visible()
    page.get_by_role("searchbox", name="Filter metrics").fill("weight9876")
    panel = page.locator(".panel.curve")
    expect(panel).to_have_count(1)
    expect(panel).to_contain_text("9,877.25")
    page.get_by_role("searchbox", name="Filter metrics").fill("no-such-key")
    expect(page.get_by_text("None of 10,000 metrics matches “no-such-key”.")).to_be_visible()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose collector is started and killed."""
    root = tmp_path_factory.mktemp("node")
    node = Node(root)
    yield node
    node.stop_collector()


@pytest.mark.full
def test_a_page_recovers_when_its_collector_does(node: Node, page: Page, errors: list[str]) -> None:
    node.start_collector()
    node.until("SELECT 1")
    with Site(node.root, url=paths_for_root(node.root).collector_address).running() as site:
        site.visit(page, "#/runs")
        expect(page.get_by_role("heading", name="No run yet")).to_be_visible()
        expect(page.locator("pre")).to_contain_text("run = chiplog.init(")
        expect(page.get_by_text("CHIPLOG_COLLECTOR=tcp://HOST:PORT python train.py")).to_be_visible()
        assert node.collector is not None
        node.collector.kill()
        node.collector.wait()
        expect(page.locator("#notice")).to_contain_text("The database does not answer")
        page.reload()
        expect(page.get_by_role("heading", name="No answer")).to_be_visible()
        node.start_collector()
        expect(page.get_by_role("heading", name="No run yet")).to_be_visible()
        expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#notice")).to_contain_text("chiplog ui does not answer")  # it has ended, too
    page.goto("about:blank")
    errors.clear()  # answers of 503, and none


def test_a_session_that_has_ended_is_explained(odd: Site, page: Page, errors: list[str]) -> None:
    odd.visit(page, "#/runs")
    expect(page.get_by_role("link", name="talk")).to_be_visible()
    page.context.clear_cookies()
    page.evaluate("location.hash = '#/run/keys'")
    expect(page.get_by_role("heading", name="This browser is signed out")).to_be_visible()
    expect(page.get_by_text("chiplog ui prints a new address")).to_be_visible()
    errors.clear()  # answers of 401
    page.goto(odd.server.new_address())
    expect(page.get_by_role("link", name="talk")).to_be_visible()


@pytest.mark.full
def test_a_query_that_takes_too_long_says_what_helps(
    odd: Site, page: Page, errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = Client.sql

    def slow(client: Client, query: str, *given: Any, **named: Any) -> Any:
        if "FROM runs r" in query:
            return sql(client, FOR_EVER, timeout_s=0.1)
        return sql(client, query, *given, **named)

    monkeypatch.setattr(Client, "sql", slow)
    odd.visit(page, "#/runs?config=other")
    expect(page.get_by_role("heading", name="The query took too long")).to_be_visible()
    expect(page.get_by_text("query took longer than 0.1 s and was cancelled")).to_be_visible()
    expect(page.get_by_text("Ask for fewer columns, runs or steps.")).to_be_visible()
    monkeypatch.undo()
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("link", name="talk")).to_be_visible()
    errors.clear()  # answers of 504
