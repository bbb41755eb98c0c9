"""Samples of the machines of a run in the browser."""

from pathlib import Path

import duckdb
import pytest
from playwright.sync_api import Page, expect

from chiplog_schemas.paths import paths_for_root
from tests.support.hand_written import hand_written
from tests.support.page_site import Site, box_of
from tests.support.run_builder import RunBuilder
from tests.support.sampled_run import fill_sampled_run
from tests.support.served_database import changing, served_database


@pytest.mark.full
def test_devices_have_curves_and_marks(sampled: Site, page: Page) -> None:
    sampled.visit(page, "#/run/sampled/system")
    panel = page.get_by_role("region", name="GPU utilization")
    expect(panel.locator("canvas")).to_be_visible()
    expect(panel).to_contain_text("rank1")
    expect(page.get_by_role("region", name="Network received")).to_contain_text("per second")
    expect(page.get_by_role("region", name="Network received")).to_contain_text("all 2 devices")
    expect(page.get_by_text("GPU events and throttling: 2", exact=True)).to_be_visible()
    expect(page.get_by_text("GPU-1-1 is lost: fell off the bus (XID 79)")).to_be_visible()


@pytest.mark.full
def test_a_list_of_many_marks_begins_with_events_and_says_how_many_there_are(sampled: Site, page: Page) -> None:
    sampled.visit(page, "#/run/hot/system")
    expect(page.get_by_text("GPU events and throttling: 500 of 602", exact=True)).to_be_visible()
    marks = page.locator("details li")
    expect(marks).to_have_count(100)
    expect(marks.nth(0)).to_contain_text("03:20:00 UTC rank0 GPU-4 is lost (XID 79)")
    expect(marks.nth(1)).to_contain_text("03:00:01 UTC rank0 GPU-4 is lost (XID 79)")
    expect(marks.nth(2)).to_contain_text("03:19:59 UTC rank0 GPU-4 is throttled: SW power cap")
    sampled.visit(page, "#/run/hot/system?node=hot")
    expect(page.get_by_text("GPU events and throttling: 500", exact=True)).to_be_visible()


@pytest.mark.full
def test_what_an_agent_sends_after_the_end_of_a_run_is_shown(tmp_path: Path, page: Page) -> None:
    with hand_written(tmp_path) as database:
        fill_sampled_run(database)
        build = RunBuilder(database)
        build.update("role IN ('rank', 'agent')", state="crashed", ended_s=1000)
        build.received(0, 0, at=1000, where="true")
        build.position()

    def lose(database: duckdb.DuckDBPyConnection, seq: int) -> None:
        event = {"level": "error", "body": {"device": "GPU-1-0"}, "seq": seq, "at": 1000 + seq}
        with changing(database) as build:
            build.event("gpu.lost", "GPU-1-0 is lost", **event, where="role = 'agent' AND node = 'node-1-0'")

    page.clock.install(time="2026-01-02T03:16:45Z")  # 5 s after the end
    with served_database(paths_for_root(tmp_path)) as database, Site(tmp_path).running() as site:
        site.visit(page, "#/run/sampled/events")
        failures = page.get_by_role("region", name="Failures")
        expect(failures.locator("tbody tr")).to_have_count(2)
        lose(database, 3)
        expect(failures).to_contain_text("GPU-1-0 is lost")
        page.get_by_role("link", name="System").click()
        expect(page.get_by_text("GPU events and throttling: 3", exact=True)).to_be_visible()
        lose(database, 4)
        page.clock.fast_forward(5_000)
        expect(page.get_by_text("GPU events and throttling: 4", exact=True)).to_be_visible()
        page.goto("about:blank")  # no request is under way when the server ends


@pytest.mark.full
def test_a_choice_of_too_many_nodes_is_refused_with_a_notice(sampled: Site, page: Page) -> None:
    sampled.visit(page, "#/run/unsampled/system")
    page.evaluate(
        """async () => {
            const { deviceChooser } = await import("./static/js/views/run/device_chooser.js");
            const nodes = new Set(Array.from({ length: 256 }, (_, at) => `node${at}`));
            const chooser = deviceChooser({ nodes, labels: new Set(), onChange() {} });
            document.querySelector("main").append(chooser.element);
            chooser.draw([{ node: "one more", label: "rank0", gpus: [] }]);
            chooser.element.open = true;
        }"""
    )
    page.get_by_role("checkbox", name="one more").click()
    expect(page.get_by_text("At most 256 nodes can be chosen.")).to_be_visible()
    expect(page.get_by_role("checkbox", name="one more")).not_to_be_checked()
    page.get_by_role("checkbox", name="rank0").check()


def test_what_never_changes_is_a_row_of_a_table(sampled: Site, page: Page) -> None:
    sampled.visit(page, "#/run/sampled/system")
    rows = page.get_by_role("region", name="Constant values").locator("tbody tr")
    expect(rows).to_have_text(["GPU power limit hw.power.limit700 W2"])
    expect(page.get_by_role("region", name="GPU power limit")).to_have_count(0)


@pytest.mark.full
def test_a_time_in_the_address_is_shown_and_left(sampled: Site, page: Page) -> None:
    sampled.visit(page, "#/run/sampled/system?first=1767322860000000&last=1767322920000000")
    expect(page.get_by_text("2026-01-02 03:01:00 UTC to 2026-01-02 03:02:00 UTC")).to_be_visible()
    page.get_by_role("button", name="All times").click()
    expect(page.get_by_text("2026-01-02 03:00:00 UTC to")).to_be_visible()
    assert "first" not in page.url


def test_samples_are_aligned_with_steps_and_the_page_says_how(sampled: Site, page: Page) -> None:
    sampled.visit(page, "#/run/sampled/system")
    page.get_by_label("x axis").select_option("step")
    expect(page.get_by_text("steps 0 to 499", exact=True)).to_be_visible()
    expect(page.get_by_text("The step of a sample is the last one that the primary")).to_be_visible()
    assert "x=step" in page.url
    page.reload()
    panel = page.get_by_role("region", name="GPU utilization")
    expect(panel).to_contain_text("GPU utilization, %hw.gpu.utilization")
    expect(panel.locator("canvas")).to_be_visible()
    # The crosshair on the mark of the throttling has its words.
    box = box_of(panel.locator(".u-over"))
    page.mouse.move(box["x"] + box["width"] * 248 / 499, box["y"] + 50)
    expect(panel).to_contain_text("rank1 HW thermal slowdown")


@pytest.mark.full
def test_devices_are_chosen_by_label_and_by_node(sampled: Site, page: Page) -> None:
    sampled.visit(page, "#/run/many/system")
    panel = page.get_by_role("region", name="GPU utilization")
    expect(panel).to_contain_text("20 devices")
    page.get_by_text("of 20 nodes, 20 labels, 20 GPUs").click()
    page.get_by_role("searchbox", name="Search nodes, labels, GPUs").fill("rank7")
    page.get_by_role("checkbox", name="rank7 · GPU-2-7").check()
    expect(panel).to_contain_text("rank7")
    expect(panel).not_to_contain_text("devices")
    assert "labels=%3Drank7" in page.url
    page.reload()
    expect(panel).to_contain_text("rank7")
    labels = page.get_by_role("combobox", name="labels")
    expect(labels).to_have_value("=rank7")
    labels.select_option("=rank8")
    expect(panel).to_contain_text("rank8")
    labels.select_option("=rank7")
    page.get_by_text("rank7 of 20 nodes").click()
    page.get_by_role("button", name="All devices").click()
    expect(panel).to_contain_text("20 devices")


@pytest.mark.full
def test_samples_that_are_alone_in_their_buckets_have_a_unit_too(sampled: Site, page: Page) -> None:
    sampled.visit(page, "#/runs")
    line = "{ mean: [3 * 2 ** 30, null, 2 ** 30], min: null, max: null }"
    curve = f"{{ kind: 'lines', title: 'Host memory used', quantity: 'bytes', lines: [{line}] }}"
    found = page.evaluate(f"async () => (await import('./static/js/text/sample_units.js')).inUnit({curve})")
    assert found["title"] == "Host memory used, GiB"
    assert found["scaled"]["lines"][0]["mean"] == [3, None, 1]
