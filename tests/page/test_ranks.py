"""Ranks of a run in the browser: the sentence, the heat map, the phases of a step, the table of labels."""

import itertools
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.page_site import Site, box_of, drag, first_of, hold, let_go
from tests.support.slow_ranks import fill_rank_outside

# Whether the heat map has a pixel that is far from the background: (row, column) shares of the picture.
STRONGEST = """() => {
    const canvas = document.querySelector("canvas.heat");
    const context = canvas.getContext("2d");
    const ratio = devicePixelRatio, left = 84 * ratio, bottom = 18 * ratio;
    const width = canvas.width - left, height = canvas.height - bottom;
    const { data } = context.getImageData(left, 0, width, height);
    const found = [];
    for (let at = 0; at < data.length; at += 4) {
        if (data[at] < 140 && data[at + 1] < 60 && data[at + 2] < 60) found.push(at / 4);
    }
    return found.map((at) => [Math.floor(at / width) / height, (at % width) / width]);
}"""


def test_the_sentence_is_above_all_tabs_and_leads_to_its_proof(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/files")
    verdict = page.get_by_role("region", name="Who was slow")
    expect(verdict).to_contain_text("rank5 cost 60 s between steps 400 and 599")
    verdict.get_by_role("link", name="60 s").click()
    expect(page.get_by_label("First step")).to_have_value("350")
    expect(page.get_by_role("region", name="Who was slow")).to_have_count(1)


@pytest.mark.full
def test_the_sentence_links_to_its_proof(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/ranks")
    verdict = page.get_by_role("region", name="Who was slow")
    expect(verdict).to_contain_text(
        "rank5 cost 60 s between steps 400 and 599: its data phase took 4 times as long as the median; "
        "7 other labels waited in backward."
    )
    verdict.get_by_role("link", name="7 other labels waited in backward").click()
    expect(page.get_by_role("heading", name="Phases of step 499")).to_be_visible()
    expect(page.get_by_label("Phase", exact=True)).to_have_value("data")  # in backward the median waits, too
    expect(page.get_by_text("data 0.4 s (median 0.1 s)")).to_be_visible()
    assert "phase=data" in page.url and "first=350" in page.url and "label=rank5" in page.url
    for words, panel in (
        ("rank5", "Phases of a step"),
        ("60 s", "Excess over the median"),
        ("data phase", "Phases over time"),
    ):
        verdict.get_by_role("link", name=words).press("Enter")
        expect(page.get_by_role("region", name=panel)).to_be_focused()
        expect(page.get_by_role("region", name=panel)).to_be_in_viewport()
    expect(page.get_by_role("region", name="Phases over time")).to_contain_text("steps 350 to 649")
    page.reload()
    expect(page.get_by_role("region", name="Phases over time")).to_be_focused()
    page.get_by_role("combobox", name="labels", exact=True).select_option("primary")
    expect(page.get_by_role("img", name="Heat map of 1 label")).to_be_visible()
    verdict.get_by_role("link", name="60 s").click()  # the label that was slow is not chosen
    expect(page.get_by_role("img", name="Heat map of 8 labels")).to_be_visible()
    expect(page.get_by_role("region", name="Excess over the median")).to_be_focused()


@pytest.mark.full
def test_time_outside_of_phases_is_in_the_sentence_the_heat_map_the_timeline_and_the_step(
    site_of: Callable[..., Site], page: Page
) -> None:
    site_of(fill_rank_outside).visit(page, "#/run/apart/ranks")
    verdict = page.get_by_role("region", name="Who was slow")
    expect(verdict).to_contain_text("rank0 cost 10 s between steps 59 and 60: it spent 10 s outside of all phases; ")
    expect(page.get_by_label("Phase", exact=True).locator("option:checked")).to_have_text("outside of phases")
    heat = page.get_by_role("img", name="Heat map of 4 labels by step, phase outside")
    lanes = page.get_by_role("region", name="Phases over time")
    expect(lanes).to_contain_text("steps 50 to 70")
    # The timeline with rank0 marked replaces the one before, and with it what the keys have reached.
    with page.expect_response(lambda answer: "/timeline?" in answer.url and "mark=rank0" in answer.url):
        verdict.get_by_role("link", name="rank0").first.click()
    expect(page.get_by_text(": outside of phases 10 s (median")).to_be_visible()
    expect(page.get_by_title("rank0 outside of phases: 10 s, median")).to_be_visible()
    expect(heat).to_be_visible()
    picture = lanes.get_by_role("img", name="Phases of 4 labels over time")
    for _ in range(11):
        picture.press("Shift+ArrowRight")
    expect(
        lanes.get_by_text("rank0, step 60: in no phase 10 s of 11 s; the slowest: 10 s longer outside of phases")
    ).to_be_visible()


@pytest.mark.full
def test_a_late_answer_does_not_replace_what_was_chosen_after_it(runs: Site, page: Page) -> None:
    late = hold(page, "**/heat?phase=data*")
    runs.visit(page, "#/run/slow/ranks?phase=forward")
    phase = page.get_by_label("Phase", exact=True)
    expect(phase).to_have_value("forward")
    phase.select_option("data")
    first = first_of(late, page)
    phase.select_option("backward")
    expect(page).to_have_url(re.compile("phase=backward"))
    let_go(page, first)
    expect(phase).to_have_value("backward")


def test_one_slow_rank_of_1024_in_one_step_is_a_mark_on_the_screen(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/wide/ranks?phase=forward")
    expect(page.get_by_text("4 labels in a row: the largest is shown")).to_be_visible()
    places = page.evaluate(STRONGEST)
    assert places, "the mark is drawn"
    for row, column in places:
        assert abs(row - 777 / 1024) < 0.01 and 17 / 24 - 0.01 <= column <= 18 / 24 + 0.01


@pytest.mark.full
def test_single_slow_steps_stay_on_the_screen_when_the_window_shrinks(runs: Site, page: Page) -> None:
    """Each of 24 ranks is slow in one step of 600: after narrowing there is one pixel for several steps."""
    runs.visit(page, "#/run/even/console")  # has no other picture
    page.evaluate(
        """async () => {
            const { HeatMap } = await import("./static/js/charts/heat_map.js");
            const map = new HeatMap({ onChoose() {}, onRange() {} });
            const [n_rows, n_columns] = [24, 600];
            const excess = new Array(n_rows * n_columns).fill(0);
            for (let row = 0; row < n_rows; row++) excess[row * n_columns + 25 * row + (row % 7)] = 5;
            const labels = Array.from({ length: n_rows }, (_, at) => `rank${at}`);
            const lists = { labels, excess, label: null, step: null, typical_s: new Array(n_columns).fill(1) };
            document.querySelector("main").replaceChildren(map.element);
            map.element.style.width = "684px";
            map.draw({ ...lists, n_rows, n_columns, start: 0, width: 1, per_row: 1, last_step: 599 }, null);
        }"""
    )
    for width in (684, 324, 184):
        page.evaluate("width => { document.querySelector('.heat-box').style.width = `${width}px`; }", width)
        page.wait_for_function("width => document.querySelector('canvas.heat').width === width", arg=width)
        assert {int(row * 24) for row, _ in page.evaluate(STRONGEST)} == set(range(24)), width
    # The pointer finds the slow step among those of its pixel.
    box = box_of(page.get_by_role("img"))
    [column] = [column for row, column in page.evaluate(STRONGEST) if int(row * 24) == 13][:1]
    page.mouse.move(box["x"] + 84 + column * 100 + 0.5, box["y"] + (13.5 / 24) * (box["height"] - 18))
    expect(page.get_by_text("rank13, step 331: 5 s more than the median of 1 s")).to_be_visible()


@pytest.mark.full
def test_the_timeline_shows_a_range_of_steps_and_its_phases_are_reached_by_keys(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/ranks")
    lanes = page.get_by_role("region", name="Phases over time")
    expect(lanes).to_contain_text("steps 390 to 410, from 2026-01-02 03:06:30 UTC")
    page.get_by_label("First step").fill("399")
    page.get_by_label("First step").press("Enter")
    page.get_by_label("Last step").fill("400")
    page.get_by_label("Last step").press("Enter")
    expect(lanes).to_contain_text("steps 399 to 400")
    picture = lanes.get_by_role("img", name="Phases of 8 labels over time")
    picture.press("ArrowRight")
    expect(lanes.get_by_text("rank0, step 399: data 0.1 s of 1 s")).to_be_visible()
    for _ in range(5):
        picture.press("ArrowDown")
    picture.press("Shift+ArrowRight")
    expect(lanes.get_by_text("rank5, step 400: data 0.4 s of 1 s; the slowest: 0.3 s more work")).to_be_visible()
    picture.press("Enter")
    expect(page.get_by_role("heading", name="Phases of step 400")).to_be_visible()
    assert "first=399" in page.url and "last=400" in page.url and "step=400" in page.url


@pytest.mark.full
def test_an_hour_without_a_step_is_cut_short_on_the_timeline(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/even/ranks")
    found = page.evaluate(
        """async () => {
            const { timeScale } = await import("./static/js/charts/time_scale.js");
            const bars = [[0, 10], [11, 4], [3600, 5]].map(([begun, seconds]) => ({ begun, seconds }));
            const scale = timeScale(bars);
            const places = [0, 10.5, 15, 3600, 3605].map((seconds) => scale.toLength(seconds));
            return [places, places.map((at) => scale.toSeconds(at))];
        }"""
    )
    assert found[0] == pytest.approx([0, 10.5, 15, 15.95, 20.95])  # 5 % of the 19 s with bars
    assert found[1] == pytest.approx([0, 10.5, 15, 3600, 3605])


@pytest.mark.full
def test_a_drag_over_the_heat_map_chooses_the_steps_and_the_slowest_of_many_labels_come_first(
    runs: Site, page: Page
) -> None:
    runs.visit(page, "#/run/wide/ranks?phase=forward")
    lanes = page.get_by_role("region", name="Phases over time")
    expect(lanes).to_contain_text("64 of 1,024 labels")
    box = box_of(page.get_by_role("img", name="Heat map of 1,024 labels by step"))
    drag(page, (box["x"] + 10, box["y"] + 50), (box["x"] + 60, box["y"] + 60))
    assert "first=" not in page.url, "the names of the rows are no steps"
    step = (box["width"] - 84) / 24
    drag(page, (box["x"] + 84 + 16.5 * step, box["y"] + 50), (box["x"] + 84 + 18.5 * step, box["y"] + 60))
    expect(lanes).to_contain_text("steps 16 to 18")
    lanes.get_by_role("img").press("ArrowDown")
    expect(lanes.get_by_text("rank777, step 16: data")).to_be_visible()
    page.get_by_role("button", name="All steps").click()
    expect(page.get_by_label("Last step")).to_have_value("23")


@pytest.mark.full
def test_a_cell_is_reached_by_keys_and_opens_the_step_and_the_console(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/even/ranks")
    expect(page.get_by_text("No rank was slow.")).to_be_visible()
    heat = page.get_by_role("img", name="Heat map of 4 labels by step")
    expect(heat).to_be_visible()
    heat.press("ArrowUp")
    expect(page.get_by_text("rank0, step 99: not above the median of 1 s")).to_be_visible()
    heat.press("Enter")
    expect(page.get_by_role("heading", name="Phases of step 99")).to_be_visible()
    page.get_by_role("button", name="Step before").press("Enter")
    expect(page.get_by_role("heading", name="Phases of step 98")).to_be_visible()
    expect(page.get_by_role("button", name="Step before")).to_be_focused()
    page.get_by_role("link", name="Its console at that time").click()
    expect(page.get_by_label("labels", exact=True)).to_have_value("=rank0")
    assert "at=2026-01-02T03" in page.url


def test_the_labels_are_sorted_and_the_order_is_in_the_address(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/ranks?sort=label&order=down")
    labels = page.get_by_role("region", name="Labels").get_by_role("rowheader")
    expect(labels.first).to_have_text("rank7")
    page.get_by_role("button", name="Label").click()
    expect(labels.first).to_have_text("rank0")
    assert "sort=label" in page.url and "order" not in page.url


@pytest.mark.full
def test_only_the_chosen_labels_have_rows(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/ranks?labels=primary&step=499")
    labels = page.get_by_role("region", name="Labels", exact=True).locator("tbody th")
    expect(labels).to_have_text(["rank0"])
    expect(page.get_by_role("img", name="Heat map of 1 label")).to_be_visible()
    expect(page.get_by_role("img", name="Phases of 1 label")).to_be_visible()
    expect(page.get_by_text("the median is that of all labels")).to_be_visible()
    expect(page.locator(".phase-row")).to_have_count(1)
    page.get_by_role("combobox", name="labels", exact=True).select_option("failed")
    expect(labels).to_have_text(["rank2", "rank6"])
    exits = page.get_by_role("region", name="Labels", exact=True).locator("tbody td:nth-child(3)")
    expect(exits).to_have_text(["exit 1", "signal 15"])
    expect(page.get_by_role("img", name="Heat map of 2 labels")).to_be_visible()
    expect(page.get_by_role("img", name="Phases of 2 labels")).to_be_visible()
    expect(page.locator(".phase-row")).to_have_count(2)


@pytest.mark.full
def test_labels_that_are_chosen_before_the_report_has_come_wait_for_it(runs: Site, page: Page) -> None:
    """The outline of a run does not say which labels failed."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    reports = hold(page, "**/api/runs/slow")
    runs.visit(page, "#/run/slow/ranks?labels=primary&step=499")
    expect(page.locator(".phase-row")).to_have_count(1)
    asked.clear()
    page.get_by_role("combobox", name="labels", exact=True).select_option("failed")
    expect(page).to_have_url(re.compile("labels=failed"))
    assert not [url for url in asked if "/step" in url or "/heat" in url or "/timeline" in url]
    first = first_of(reports, page)
    page.route("**/api/runs/slow", lambda route: route.continue_())
    first.continue_()
    expect(page.locator(".phase-row")).to_have_count(2)
    expect(page.get_by_role("img", name="Heat map of 2 labels")).to_be_visible()


@pytest.mark.full
def test_a_run_that_ends_before_its_phases_are_shown_is_asked_for_again(runs: Site, page: Page) -> None:
    outline = lambda route: route.fulfill(json=route.fetch().json() | {"n_running": 1})  # noqa: E731
    page.route("**/api/runs/even/outline", outline)
    held = hold(page, "**/even/heat?*", times=1)
    runs.visit(page, "#/run/even/ranks")
    expect(page.get_by_text("all 40 events stored")).to_be_visible()
    first = first_of(held, page)
    with page.expect_request("**/even/ranks"):
        first.continue_()


@pytest.mark.full
def test_a_list_of_too_many_labels_says_how_many_it_has(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/even/ranks")
    options = page.evaluate(
        """async () => {
            const { labelsSelect } = await import("./static/js/text/labels.js");
            const labels = Array.from({ length: 2000 }, (_, at) => ({ label: `rank${at}`, is_newest: true }));
            return [...labelsSelect({ labels, n_labels: 2000 }).options].map((one) => [one.text, one.disabled]);
        }"""
    )
    assert options[-2:] == [["rank1023", False], ["the first 1,024 of 2,000 labels", True]]


@pytest.mark.full
@pytest.mark.parametrize("tab", ["ranks", "system", "media"])
def test_a_finished_run_asks_for_nothing_when_another_one_changes(runs: Site, page: Page, tab: str) -> None:
    page.clock.install()
    page.add_init_script(
        "window.n_changes = 0; window.EventSource = class extends EventSource { constructor(url) { super(url);"
        "window.stream = this; this.addEventListener('change', () => { window.n_changes += 1; }); } }"
    )
    asked: list[str] = []
    open_requests: set[str] = set()
    page.on("request", lambda request: (asked.append(request.url), open_requests.add(request.url)))
    for ended in ("requestfinished", "requestfailed"):
        page.on(ended, lambda request: open_requests.discard(request.url))

    def pass_time() -> None:
        page.clock.fast_forward(20_000)
        page.evaluate("fetch('api/runs').then((answer) => answer.text())")
        while any("/runs/even" in url for url in open_requests):
            page.wait_for_timeout(20)

    runs.visit(page, f"#/run/even/{tab}")
    expect(page.get_by_text("all 40 events stored")).to_be_visible()
    while tab != "ranks" and not any(url.endswith("/even/verdict") for url in asked):  # it comes after all others
        page.wait_for_timeout(20)
    while not page.evaluate("window.n_changes"):  # the stream begins with a change
        page.wait_for_timeout(20)
    for _ in range(2):
        pass_time()
    asked.clear()
    page.evaluate("stream.dispatchEvent(new MessageEvent('change', { data: '{\"position\": 1, \"n_deleted\": 0}' }))")
    while not any(url.endswith("/runs/even") for url in asked):  # the report of the run, the last one's pause over
        pass_time()
    for _ in range(2):
        pass_time()
    assert [url for url in asked if "/even/" in url] == []


def test_the_row_of_the_slow_label_has_its_name_among_many(runs: Site, page: Page) -> None:
    runs.visit(page, "#/runs")
    rows = "{ labels: Array.from({ length: 1024 }, (_, n) => `rank${n}`), n_rows: 256, per_row: 4 }"
    names = f"async () => (await import('./static/js/charts/heat_map.js')).rowNames({rows}, 512, 'rank777')"
    found = page.evaluate(names)
    assert [row["name"] for row in found if row["isSlow"]] == ["rank777"]
    assert len(found) > 30
    assert all(one["y"] + 14 <= next_one["y"] for one, next_one in itertools.pairwise(found))
