"""The curves of a run in the browser."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import duckdb
import pytest
from playwright.sync_api import Locator, Page, Request, Route, expect

from tests.support.hand_written import hand_written
from tests.support.page_site import Site, box_of, drag, first_of, hold, let_go, refuse
from tests.support.run_builder import RunBuilder
from tests.support.waiting import WAIT_S, wait_until

CHANGES = 'retry: 100\nevent: change\ndata: {"position": 1}\n\n'  # the browser connects again, and hears of a change
KEYS = 70


def fill_growing(database: duckdb.DuckDBPyConnection) -> None:
    """A run of one rank that has not ended, with 70 metrics of 100 steps, and one without a slash."""
    build = RunBuilder(database)
    build.run("on", project="p")
    build.ranks("on", node="node", produced=1000)
    build.received(0, 999, at=245)
    build.names([*(f"m/{n:02}" for n in range(KEYS)), "alone"])
    build.metrics_of_all("step", steps=100)


@pytest.fixture(scope="module")
def growing(site_of: Callable[..., Site]) -> Site:
    return site_of(fill_growing)


CHANGE = """
import sys, time, duckdb
from pathlib import Path
from tests.support.hand_written import hand_written
from tests.support.run_builder import RunBuilder

root, *statements = sys.argv[1:]
while True:
    try:
        with hand_written(Path(root)) as database:
            for statement in statements:
                exec(statement, {"build": RunBuilder(database)})
            database.execute("UPDATE base.position SET next_number = next_number + 1")
        break
    except duckdb.IOException:  # the server reads
        time.sleep(0.01)
"""
LOSSES = "build.metrics({{'train/loss': 'step'}}, steps={}, where='rank = {}')"
DEFINITION = "build.define({!r}, step_metric={!r}, hidden={!r}, seq={}, where='is_primary')"


def fill_uneven(database: duckdb.DuckDBPyConnection) -> None:
    """A run of four ranks that has not ended.

    `train/loss`: rank1 has sent 200 of 300 steps, rank2 lacks three of them, rank3 has sent none. `eval/score` is
    logged by rank0 alone, each 50 steps, over `epoch`; `step` is a metric, ten times the step.
    """
    build = RunBuilder(database)
    build.position()
    build.run("uneven")
    build.ranks("uneven", 4, node="node", produced=1000)
    build.received(0, 999, at=245)
    build.define("eval/*", step_metric="epoch", where="is_primary")
    for rank, steps in ((0, range(300)), (1, range(200)), (2, [*range(101), *range(104, 300)])):
        build.metrics({"train/loss": "step"}, steps=steps, where=f"rank = {rank}")
    evaluated = {"eval/score": "step", "epoch": "step // 50", "step": "step * 10"}
    build.metrics(evaluated, steps=range(0, 300, 50), at="step + 200", where="is_primary")


@pytest.fixture
def uneven(tmp_path: Path) -> Iterator[Site]:
    with hand_written(tmp_path) as database:
        fill_uneven(database)
    with Site(tmp_path).running() as site:
        yield site


def change(site: Site, *statements: str) -> None:
    """Let statements `build` in another process: the readers of the server wait for it."""
    subprocess.run([sys.executable, "-c", CHANGE, str(site.root), *statements], check=True, timeout=WAIT_S)


def steps_of(page: Page, key: str, label: str) -> list[int]:
    """Return the steps that the CSV of a panel has for a label."""
    with page.expect_download() as download:
        panel(page, key).get_by_role("button", name="CSV").click()
    rows = [line.split(",") for line in download.value.path().read_text().splitlines()]
    return [int(row[2]) for row in rows if row[1] == label]


def follow_changes(page: Page) -> None:
    page.route("**/api/live", lambda route: route.fulfill(content_type="text/event-stream", body=CHANGES))


def visit(site: Site, page: Page, fragment: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 2400})  # only visible panels load
    site.visit(page, fragment)


def panel(page: Page, key: str) -> Locator:
    return page.locator(f'.panel.curve[data-key="{key}"]')


def test_each_label_has_a_curve_and_the_panel_names_what_is_missing(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/lines/curves")
    loss = panel(page, "train/loss")
    expect(loss.locator(".curve-line")).to_have_count(4)
    expect(loss.locator("canvas")).to_be_visible()
    expect(loss.locator(".curve-notes")).to_contain_text("1 of 4 labels has not sent step 999 (rank3)")
    expect(loss.locator(".curve-notes")).to_contain_text("330 NaN")
    same = panel(page, "epoch")  # until rank3 failed
    expect(same.locator(".curve-line")).to_have_text(["all 4 labels9"])
    expect(same.locator(".curve-notes")).to_contain_text("1 of 4 labels has not sent step 999 (rank3)")
    expect(panel(page, "bad/nan")).to_contain_text("All 3,301 values are NaN.")
    assert page.locator("img").count() == 0


def test_many_labels_are_a_band_whose_extremes_are_named(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/band/curves")
    legend = panel(page, "train/loss").locator(".curve-legend")
    expect(legend).to_contain_text("max (mostly rank7)")
    expect(legend).to_contain_text("median")
    expect(legend).to_contain_text("min (mostly rank0)")
    expect(panel(page, "train/loss").locator(".curve-notes")).to_contain_text("20 labels")
    chart = page.get_by_role("group", name="Curve of train/loss")
    expect(chart).to_have_accessible_description("At the right edge: rank7 above, rank0 below.")


def test_dragging_zooms_all_panels_to_finer_buckets_and_a_double_click_resets(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/long/curves")
    loss = panel(page, "train/loss")
    expect(loss.locator(".curve-notes")).to_contain_text("each point covers 16 steps")
    over = loss.locator(".u-over")
    over.scroll_into_view_if_needed()
    box = box_of(over)
    drag(page, (box["x"] + box["width"] * 0.5, box["y"] + 50), (box["x"] + box["width"] * 0.7, box["y"] + 60))
    expect(loss.locator(".curve-notes")).not_to_contain_text("each point covers")
    expect(panel(page, "epoch").locator(".curve-notes")).not_to_contain_text("each point covers")
    epoch = panel(page, "epoch").locator(".curve-legend")
    expect(epoch).to_contain_text("y begins at 1")  # a small range looks large
    first = int(page.get_by_label("first step").input_value())
    assert 1_920 <= first <= 2_080 and f"first={first}" in page.url
    over.dblclick()
    expect(loss.locator(".curve-notes")).to_contain_text("each point covers 16 steps")
    assert "first" not in page.url


@pytest.mark.full
def test_the_crosshair_shows_the_values_of_all_panels(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/other/curves")
    expect(panel(page, "train/loss").locator("canvas")).to_be_visible()
    panel(page, "epoch").locator(".u-over").hover()
    here = panel(page, "epoch").locator(".curve-where")
    expect(here).to_contain_text("step ")
    expect(panel(page, "train/loss").locator(".curve-where")).to_have_text(here.inner_text())


@pytest.mark.full
def test_metrics_are_found_by_an_expression_and_a_bad_one_says_so(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/lines/curves?filter=/^(bad|EPOCH)/")
    panels = page.locator(".panel.curve")
    expect(panels).to_have_count(2)
    page.get_by_label("Filter metrics").fill("/(/")
    expect(page.get_by_text("Invalid regular expression: /(/i: Unterminated group")).to_be_visible()
    expect(panels).to_have_count(2)
    page.get_by_label("Filter metrics").fill("train/")
    expect(panels).to_have_count(1)
    expect(page.get_by_text("Invalid regular expression")).to_be_hidden()


def test_filter_axes_and_smoothing_are_in_the_address(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/lines/curves")
    expect(page.locator(".panel.curve")).to_have_count(4)
    page.get_by_label("Filter metrics").fill("LOSS")
    expect(page.locator(".panel.curve")).to_have_count(1)
    page.get_by_label("x axis").select_option("=epoch")
    page.get_by_label("log y").check()
    page.get_by_label("log x").check()
    page.get_by_label("smoothing", exact=True).fill("0.5")
    loss = panel(page, "train/loss")
    expect(loss.locator("canvas")).to_be_visible()
    loss.get_by_role("button", name="Wide").click()
    page.reload()
    expect(page.locator(".panel.curve")).to_have_count(1)
    expect(page.get_by_label("x axis")).to_have_value("=epoch")
    expect(page.get_by_label("log y")).to_be_checked()
    expect(page.get_by_label("log x")).to_be_checked()
    expect(loss.get_by_role("button", name="Wide")).to_have_attribute("aria-pressed", "true")
    expect(loss.locator(".curve-notes")).to_contain_text("values at x ≤ 0 not shown")  # of the first epoch
    expect(page.get_by_label("smoothing", exact=True)).to_have_value("0.5")


def test_several_runs_have_a_colour_each_and_their_configs_beside_them(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/lines/curves?with=other&with=band")
    expect(page.locator(".overlaid")).to_contain_text("0.2")
    expect(page.locator(".overlaid")).not_to_contain_text('"')  # a text is not JSON
    header = page.locator(".run-header")
    expect(header.get_by_role("heading")).to_have_text("Curves of 3 runs")  # none of them is edited or deleted here
    expect(header.get_by_role("button")).to_have_count(0)
    loss = panel(page, "train/loss")
    expect(loss.locator(".curve-line")).to_have_count(3)
    colours = loss.locator(".curve-line i").evaluate_all("all => all.map(i => getComputedStyle(i).borderTopColor)")
    assert len(set(colours)) == 3
    page.get_by_role("button", name="Remove").first.click()
    expect(loss.locator(".curve-line")).to_have_count(2)


def test_csv_has_the_values_of_a_panel(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/other/curves")
    expect(panel(page, "train/loss").locator("canvas")).to_be_visible()
    with page.expect_download() as download:
        panel(page, "train/loss").get_by_role("button", name="CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0] == "run,label,step,time,value"
    assert len(lines) == 1 + 1_000
    with page.expect_download() as download:
        panel(page, "train/loss").get_by_role("button", name="PNG").click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_a_name_in_the_legend_hides_its_line_in_all_panels(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/lines/curves")
    loss = panel(page, "train/loss")
    loss.get_by_role("button", name="rank1").click()
    for key in ("train/loss", "eval/<img src=x onerror=alert(1)>"):
        expect(panel(page, key).get_by_role("button", name="rank1")).to_have_attribute("aria-pressed", "false")
    assert "hide=rank1" in page.url
    loss.get_by_role("button", name="rank2").click(modifiers=["Shift"])
    expect(loss.locator("button.curve-line[aria-pressed=true]")).to_have_count(1)
    page.reload()
    expect(loss.locator("button.curve-line[aria-pressed=false]")).to_have_count(3)
    loss.get_by_role("button", name="rank2").click(modifiers=["Shift"])
    expect(loss.locator("button.curve-line[aria-pressed=true]")).to_have_count(4)


@pytest.mark.full
def test_a_click_keeps_a_step_with_links_to_the_console_and_the_ranks(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/lines/curves")
    over = panel(page, "train/loss").locator(".u-over")
    over.click()
    picked = page.locator(".picked")
    expect(picked).to_contain_text("Step ")
    expect(picked.get_by_role("link", name="console at that time")).to_have_attribute(
        "href", re.compile(r"#/run/lines/console\?at=20\d\d-")
    )
    page.reload()
    picked.get_by_role("link", name="ranks at that step").click()
    expect(page.get_by_role("link", name="Ranks", exact=True)).to_have_attribute("aria-current", "page")
    assert "step=" in page.url


@pytest.mark.full
def test_a_chart_is_moved_and_zoomed_by_keys_and_by_dragging_with_shift(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/lines/curves?first=400&last=599")
    chart = panel(page, "train/loss").locator(".curve-box")
    expect(chart.locator("canvas")).to_be_visible()
    first, last = page.get_by_label("first step"), page.get_by_label("last step")
    chart.press("Shift+ArrowRight")
    expect(first).to_have_value("450")
    expect(last).to_have_value("649")
    chart.press("+")
    expect(first).to_have_value("500")
    chart.press("ArrowRight")
    expect(panel(page, "train/loss").locator(".curve-where")).to_contain_text("step 500")
    chart.press("Enter")
    expect(page.locator(".picked")).to_contain_text("Step 500")
    box = box_of(chart.locator(".u-over"))
    page.keyboard.down("Shift")
    drag(page, (box["x"] + box["width"] / 2, box["y"] + 50), (box["x"] + box["width"], box["y"] + 50))
    page.keyboard.up("Shift")
    expect(first).to_have_value(re.compile("^4[45][0-9]$"))
    chart.press("Escape")
    expect(first).to_have_value("")


@pytest.mark.full
def test_only_the_chosen_labels_have_curves(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/lines/curves?labels=failed")
    lines = panel(page, "train/loss").locator(".curve-line")
    expect(lines).to_have_count(1)
    expect(lines).to_contain_text("rank3")
    page.get_by_label("labels", exact=True).select_option("primary")
    expect(lines).to_contain_text("rank0")
    assert "labels=primary" in page.url
    visit(curved, page, "#/run/band/curves?labels=failed")
    expect(page.get_by_text("None of 20 labels has failed.")).to_be_visible()
    page.get_by_label("labels", exact=True).select_option("")
    expect(panel(page, "train/loss").locator("canvas")).to_be_visible()


@pytest.mark.full
def test_a_run_keeps_its_colour_where_another_one_lacks_the_metric(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/lines/curves?with=silent&with=other")
    entry = panel(page, "train/loss").locator(".curve-line", has_text="other").locator("i")
    mark = page.locator(".overlaid .mark").nth(2)
    colour = "mark => getComputedStyle(mark).borderTopColor"
    expect(entry).to_be_visible()
    assert entry.evaluate(colour) == mark.evaluate(colour)


@pytest.mark.full
def test_the_legend_keeps_its_entries_and_the_focus(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/lines/curves")
    entry = panel(page, "train/loss").get_by_role("button", name="rank1")
    entry.press("Enter")
    expect(entry).to_have_attribute("aria-pressed", "false")
    expect(entry).to_be_focused()
    entry.evaluate("entry => { window.entry = entry; }")
    page.get_by_label("smoothing", exact=True).fill("0.5")  # draws again
    expect(panel(page, "train/loss").locator(".curve-line").first).to_be_visible()
    assert page.evaluate("window.entry.isConnected")


def test_arrow_keys_read_out_the_values_of_one_chart(curved: Site, page: Page) -> None:
    visit(curved, page, "#/run/other/curves")
    chart = panel(page, "epoch").locator(".curve-box")
    expect(chart.locator("canvas")).to_be_visible()
    chart.press("ArrowRight")
    expect(chart.locator("[aria-live=polite]")).to_have_text("step 0, rank0 0")
    expect(panel(page, "train/loss").locator("[aria-live=polite]")).to_have_text("")


@pytest.mark.full
def test_a_coarse_answer_after_the_wide_one_is_not_drawn(curved: Site, page: Page) -> None:
    coarse = hold(page, "**/curves?*points=400*")
    visit(curved, page, "#/run/other/curves?filter=loss")
    loss = panel(page, "train/loss")
    first = first_of(coarse, page)
    loss.get_by_role("button", name="Wide").click()
    expect(loss.locator("canvas")).to_be_visible()
    let_go(page, first)
    expect(loss.locator(".curve-notes")).not_to_contain_text("each point covers")


@pytest.mark.full
def test_live_values_of_many_curves_are_asked_for_in_parts(growing: Site, page: Page) -> None:
    follow_changes(page)
    parts: list[list[str]] = []

    def has_all(request: Request) -> bool:
        query = parse_qs(urlsplit(request.url).query)
        if "/curves" in request.url and "width" in query:
            parts.append(query["key"])
        return {key for part in parts for key in part} >= {f"m/{n:02}" for n in range(60)}

    page.set_viewport_size({"width": 1280, "height": 10_000})
    with page.expect_request(has_all):
        growing.visit(page, "#/run/on/curves?open=m")
    assert max(map(len, parts)) <= 6


@pytest.mark.full
def test_a_late_label_fills_its_part_and_the_end_of_a_run_what_was_logged_out_of_order(
    uneven: Site, page: Page
) -> None:
    visit(uneven, page, "#/run/uneven/curves?filter=loss")
    notes = panel(page, "train/loss").locator(".curve-notes")
    expect(notes).to_contain_text("2 of 4 labels have not sent step 299 (rank3, …)")
    expect(notes).to_contain_text("rank2 has no value for 3 of 300 steps")
    change(uneven, LOSSES.format(range(200, 300), 1))
    expect(notes).to_contain_text("1 of 4 labels has not sent step 299 (rank3)")
    assert steps_of(page, "train/loss", "rank1") == list(range(300))
    change(
        uneven,
        LOSSES.format(range(101, 104), 2),
        "build.update('true', state='finished', exit_code=0, ended_s=1200)",
    )
    expect(page.locator(".chip.finished")).to_be_visible()
    expect(notes).not_to_contain_text("has no value for")
    assert steps_of(page, "train/loss", "rank2") == list(range(300))


@pytest.mark.full
def test_a_label_that_is_far_behind_makes_few_answers_long(uneven: Site, page: Page) -> None:
    page.add_init_script("window.passedMs = 0; performance.now = () => window.passedMs;")  # also on a slow machine
    asked: list[int] = []

    def note(request: Request) -> None:
        query = parse_qs(urlsplit(request.url).query)
        if "/curves" in request.url and "width" in query:
            asked.append(int(query["first"][0]))

    page.on("request", note)
    visit(uneven, page, "#/run/uneven/curves?filter=loss")
    notes = panel(page, "train/loss").locator(".curve-notes")
    expect(notes).to_contain_text("2 of 4 labels have not sent step 299")
    change(uneven, LOSSES.format(range(300, 310), 0), LOSSES.format(range(200, 205), 1))
    expect(notes).to_contain_text("3 of 4 labels have not sent step 309")
    assert min(asked) > 280
    asked.clear()
    with page.expect_response(lambda response: "first=192" in response.url):
        page.evaluate("window.passedMs = 10_000")
    page.evaluate("new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")  # it is handled
    assert steps_of(page, "train/loss", "rank1") == list(range(205))
    assert asked == [192]


def test_a_hidden_metric_has_a_panel_for_those_who_look_for_it(uneven: Site, page: Page) -> None:
    change(uneven, DEFINITION.format("[es]*", "", "true", 1))
    visit(uneven, page, "#/run/uneven/curves")
    panels = page.locator(".panel.curve")
    expect(panels).to_have_count(1)
    expect(panel(page, "train/loss").locator("canvas")).to_be_visible()
    expect(page.get_by_label("x axis").locator("option", has_text="epoch")).to_be_attached()
    page.get_by_label("Filter metrics").fill("score")
    expect(panel(page, "eval/score").locator("canvas")).to_be_visible()
    page.get_by_label("Filter metrics").fill("")
    expect(panels).to_have_count(1)
    page.get_by_role("button", name="Show 3 hidden metrics").click()
    expect(panels).to_have_count(4)
    page.reload()
    expect(panels).to_have_count(4)
    change(uneven, DEFINITION.format("*", "", "true", 2))
    visit(uneven, page, "#/run/uneven/curves?all=")
    expect(page.get_by_role("button", name="Show 4 hidden metrics")).to_be_visible()
    change(uneven, DEFINITION.format("step", "", "false", 3))
    expect(panel(page, "step").locator("canvas")).to_be_visible()


@pytest.mark.full
def test_a_step_metric_that_is_defined_later_is_the_x_of_all_values(uneven: Site, page: Page) -> None:
    visit(uneven, page, "#/run/uneven/curves?filter=loss")
    loss = panel(page, "train/loss")
    expect(loss.locator("canvas")).to_be_visible()
    axis = page.get_by_label("x axis")
    expect(axis.locator("option:checked")).to_have_text("x: step")
    change(uneven, DEFINITION.format("train/*", "epoch", "", 1))
    expect(loss.locator(".curve-notes")).to_contain_text("x: epoch")
    expect(axis.locator("option:checked")).to_have_text("x: as defined")
    loss.locator(".curve-box").press("ArrowRight")
    expect(loss.locator(".curve-where")).to_have_text("epoch 0, step 0")


@pytest.mark.full
def test_an_overlaid_run_that_was_deleted_is_asked_for_once(growing: Site, page: Page, errors: list[str]) -> None:
    n_asked = 0

    def gone(route: Route) -> None:
        nonlocal n_asked
        n_asked += 1
        running = {"n_running": 1, "completeness": {"pending": 0, "stored": 1}}
        if n_asked == 1:
            route.fulfill(json={"name": "other", "config": {}, "created_at": "2026-01-02T03:00:00Z", **running})
        else:
            route.fulfill(status=404, json={"error": {"kind": "not_found", "message": "there is no run"}})

    page.clock.install()
    follow_changes(page)
    page.route("**/api/runs/other", gone)
    growing.visit(page, "#/run/on/curves?with=other&filter=alone")
    expect(page.get_by_role("heading", name="Curves of 2 runs")).to_be_visible()
    page.clock.fast_forward(10_000)
    wait_until(lambda: n_asked > 1 or page.wait_for_timeout(50), "another request for its report")
    for _ in range(3):
        with page.expect_response("**/api/live") as answered:
            page.clock.fast_forward(10_000)
        answered.value.finished()
    assert n_asked == 2
    errors.clear()  # the answer of 404


@pytest.mark.full
def test_a_metric_opens_over_its_step_metric_until_another_x_is_chosen(uneven: Site, page: Page) -> None:
    visit(uneven, page, "#/run/uneven/curves")
    score = panel(page, "eval/score")
    expect(score.locator(".curve-notes")).to_have_text("1 of 4 labels logs this · x: epoch")
    axis = page.get_by_label("x axis")
    expect(axis.locator("option:checked")).to_have_text("x: as defined")
    score.locator(".curve-box").press("ArrowRight")
    expect(score.locator(".curve-where")).to_have_text("epoch 0, step 0")
    axis.select_option("=step")  # the metric
    expect(score.locator(".curve-notes")).to_have_text("1 of 4 labels logs this")
    score.locator(".curve-box").press("ArrowLeft")
    expect(score.locator(".curve-where")).to_have_text("step 2500, step 250")
    page.reload()
    expect(axis).to_have_value("=step")
    axis.select_option("step")
    expect(score.locator(".curve-notes")).to_have_text("1 of 4 labels logs this")
    expect(page).to_have_url(re.compile("x=step$"))


@pytest.mark.full
def test_one_bound_of_steps_is_enough(uneven: Site, page: Page) -> None:
    visit(uneven, page, "#/run/uneven/curves?filter=loss")
    expect(panel(page, "train/loss").locator("canvas")).to_be_visible()
    first, last = page.get_by_label("first step"), page.get_by_label("last step")
    first.fill("250")
    first.press("Enter")
    expect(last).to_have_value("299")
    assert "first=250&last=299" in page.url
    first.fill("")
    last.fill("99")
    last.press("Enter")
    expect(first).to_have_value("0")


@pytest.mark.full
def test_a_part_after_the_newest_step_shows_values_as_they_come(growing: Site, page: Page) -> None:
    def reach(route: Route) -> None:
        """Answer as if step 210 was logged since then."""
        [curve] = route.fetch().json()
        line = {"label": "rank0", "rank": 0, "gaps": [], "mean": [5.5], "min": None, "max": None}
        route.fulfill(json=[curve | {"step": [210], "ts": [1_767_323_000_000], "lines": [line]}])

    follow_changes(page)
    page.route("**/curves?*width=*", reach)
    visit(growing, page, "#/run/on/curves?filter=alone&first=200&last=300")
    expect(panel(page, "alone")).to_contain_text("rank05.5")


@pytest.mark.full
def test_curves_that_failed_are_asked_for_again_with_the_next_change(
    growing: Site, page: Page, errors: list[str]
) -> None:
    page.route("**/api/live", lambda route: None)
    refuse(page, "**/curves?*", "the collector has ended", "unreachable")
    visit(growing, page, "#/run/on/curves?filter=alone")
    expect(panel(page, "alone")).to_contain_text("the collector has ended")
    page.unroute("**/curves?*")
    page.unroute("**/api/live")
    follow_changes(page)
    # The page is seen again: it listens for changes anew.
    page.evaluate(
        """() => {
            let isHidden = true;
            Object.defineProperty(document, "hidden", { get: () => isHidden });
            document.dispatchEvent(new Event("visibilitychange"));
            isHidden = false;
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    expect(panel(page, "alone").locator(".curve-line")).to_contain_text("99")
    errors.clear()  # the failure


@pytest.mark.full
def test_curves_that_failed_are_asked_for_again_without_a_change(growing: Site, page: Page, errors: list[str]) -> None:
    page.route("**/api/live", lambda route: None)
    refuse(page, "**/curves?*", "too many queries", times=2)
    visit(growing, page, "#/run/on/curves?filter=alone")
    expect(panel(page, "alone").locator(".curve-line")).to_contain_text("99")
    errors.clear()  # the failures


@pytest.mark.full
def test_a_new_metric_keeps_the_panels_the_focus_and_joins_the_choice_of_x(growing: Site, page: Page) -> None:
    has_logged = False

    def report(route: Route) -> None:
        found = route.fetch().json()
        route.fulfill(json=found | {"keys": [*found["keys"], *([{"key": "later"}] if has_logged else [])]})

    follow_changes(page)
    page.route("**/api/runs/on", report)
    visit(growing, page, "#/run/on/curves?open=m")
    panels = page.locator(".curve-group", has_text="m 70").locator(".panel.curve")
    expect(panels).to_have_count(60)
    page.get_by_role("button", name="Show more (60 of 70)").click()
    expect(panels).to_have_count(70)
    chart = panel(page, "m/03").locator(".curve-box")
    chart.scroll_into_view_if_needed()
    expect(chart.locator("canvas")).to_be_visible()
    chart.focus()
    has_logged = True
    expect(panel(page, "later")).to_be_attached()
    expect(panels).to_have_count(70)
    expect(chart).to_be_focused()
    expect(page.get_by_label("x axis").locator("option", has_text="later")).to_be_attached()


@pytest.mark.full
def test_the_group_of_metrics_without_a_slash_stays_closed(growing: Site, page: Page) -> None:
    visit(growing, page, "#/run/on/curves")
    group = page.locator(".curve-group", has=page.get_by_role("heading", name="metrics"))
    group.locator("summary").click()
    expect(page).to_have_url(re.compile("closed="))
    page.reload()
    expect(group.locator("summary")).to_be_visible()
    expect(group).not_to_have_attribute("open", "")


def fill_still(database: duckdb.DuckDBPyConnection) -> None:
    """Runs whose `loss` has one step: `still` has not ended, `many` has 3,000 values; `other` has steps."""
    build = RunBuilder(database)
    build.position()
    ended = {"state": "finished", "ended_s": 3600}
    for run_id, columns in (("still", {}), ("many", ended), ("other", ended)):
        build.run(run_id)
        build.ranks(run_id, node="node", produced=9000, **columns)
    build.received(0, 999, at=245)
    value = "exp(-step / 60) + sin(step * step) / 20"
    for run_id, key, step, n in (
        ("still", "train_loss", 0, 200),
        ("still", "test_loss", 0, 1),
        ("many", "train_loss", 5, 3_000),
        ("other", "train_loss", "step", 100),
    ):
        build.metrics({key: value}, steps=n, step=step, where=f"run_id = '{run_id}'")


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Not one of `site_of`, which keeps databases open: a test changes this one."""
    root = tmp_path_factory.mktemp("still")
    with hand_written(root) as database:
        fill_still(database)
    with Site(root).running() as site:
        yield site


def test_a_metric_whose_steps_are_all_equal_is_drawn_over_time_and_says_so(still: Site, page: Page) -> None:
    visit(still, page, "#/run/still/curves")
    loss = panel(page, "train_loss")
    expect(loss.locator(".curve-notes")).to_have_text("x: time (all steps are 0)")
    expect(panel(page, "test_loss").locator(".curve-notes")).to_have_text("")
    loss.locator(".curve-box").focus()
    page.keyboard.press("ArrowRight")
    expect(loss.locator(".curve-where")).to_contain_text("0 s, step 0")
    page.keyboard.press("ArrowRight")
    expect(loss.locator(".curve-where")).to_contain_text("1 s, step 0")
    assert steps_of(page, "train_loss", "rank0") == [0] * 200
    page.keyboard.press("Tab")
    visit(still, page, "#/run/many/curves")
    expect(loss.locator(".curve-notes")).to_have_text("each point covers 8.4 s · x: time (all steps are 5)")
    visit(still, page, "#/run/other/curves?with=still")
    expect(loss.locator(".curve-notes")).to_have_text("x: time (all steps of still are 0)")


def test_a_part_of_the_time_is_shown_in_its_panel_alone(still: Site, page: Page) -> None:
    visit(still, page, "#/run/still/curves")
    loss = panel(page, "train_loss")
    expect(loss.locator("canvas")).to_be_visible()
    loss.locator(".curve-box").focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    expect(loss.locator(".curve-where")).to_contain_text("50 s, step 0")
    assert "first=" not in page.url, "there is no part of the steps"
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowRight")
    expect(loss.locator(".curve-where")).to_have_text(re.compile("^1 s, step 0"))


def test_a_metric_that_gets_a_second_step_while_it_is_followed_is_drawn_by_steps(still: Site, page: Page) -> None:
    follow_changes(page)
    visit(still, page, "#/run/still/curves")
    expect(panel(page, "train_loss").locator(".curve-notes")).to_have_text("x: time (all steps are 0)")
    change(
        still,
        "build.metrics({'train_loss': 1}, steps=range(1, 5), seq='1000 + step', at='600 + step', "
        "where=\"run_id = 'still'\")",
    )
    expect(panel(page, "train_loss").locator(".curve-notes")).to_have_text("")
    assert steps_of(page, "train_loss", "rank0") == [0, 1, 2, 3, 4]
