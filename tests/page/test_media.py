"""Histograms, texts, images and tables of a run in the browser."""

import pytest
from playwright.sync_api import Page, expect

from tests.support.media_run import MARKUP, SPIKE
from tests.support.page_site import Site, box_of, drag


@pytest.mark.full
def test_a_cell_of_a_histogram_is_read_by_pointer_and_by_keys(media: Site, page: Page) -> None:
    media.visit(page, "#/run/media/media")
    panel = page.get_by_role("region", name="weights")
    expect(panel).to_contain_text("1,000 histograms · sum of 2 labels")
    picture = panel.get_by_role("img")
    box = box_of(picture)
    # The values of a single step are at the top of the picture.
    x = 66 + SPIKE / 500 * (box["width"] - 66)
    page.mouse.move(box["x"] + x, box["y"] + 3)
    expect(panel).to_contain_text(f"step {SPIKE}")
    picture.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Step as a number")).not_to_have_value("499")
    assert "step=37" in page.url


def test_a_count_in_a_single_step_stays_on_the_screen_when_the_window_shrinks(media: Site, page: Page) -> None:
    media.visit(page, "#/run/plain/media")
    page.evaluate(
        """async () => {
            const { HistogramMap } = await import("./static/js/charts/histogram_map.js");
            const map = new HistogramMap({ onStep() {}, onZoom() {} });
            const [n_rows, n_columns] = [20, 500];
            const counts = new Array(n_rows * n_columns).fill(0);
            for (let row = 0; row < n_rows; row++) counts[row * n_columns + 25 * row + (row % 7)] = 5;
            const edges = Array.from({ length: n_rows + 1 }, (_, at) => at);
            const step = Array.from({ length: n_columns }, (_, at) => at);
            document.querySelector("main").replaceChildren(map.element);
            map.element.style.width = "166px";
            const data = { n: 500, edges, step, n_steps: step.map(() => 1), width: 1, counts, at: null, largest: 5 };
            map.draw(data, { isLog: false, step: null });
        }"""
    )
    rows = page.evaluate(
        """() => {
            const canvas = document.querySelector("canvas");
            const { width, height } = canvas;
            const { data } = canvas.getContext("2d").getImageData(66, 0, width - 66, height - 18);
            const found = new Set();
            for (let at = 0; at < data.length; at += 4) {
                const row = Math.floor((at / 4 / (width - 66)) / (height - 18) * 20);
                if (data[at] < 140 && data[at + 1] < 60 && data[at + 2] < 60) found.add(row);
            }
            return [width, [...found]];
        }"""
    )
    assert rows == [166, list(range(20))]
    box = box_of(page.get_by_role("img"))
    page.mouse.move(box["x"] + 66 + (25 * 7) // 5 + 0.5, box["y"] + (12.5 / 20) * (box["height"] - 18))
    expect(page.get_by_text("step 175: 5 values between 7 and 8")).to_be_visible()


@pytest.mark.full
def test_dragging_zooms_into_steps_and_values(media: Site, page: Page) -> None:
    media.visit(page, "#/run/media/media?filter=weights&labels=primary")
    panel = page.get_by_role("region", name="weights")
    expect(panel).to_contain_text("500 histograms")
    box = box_of(panel.get_by_role("img"))
    drag(page, (box["x"] + 100, box["y"] + 60), (box["x"] + 200, box["y"] + 120))
    expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
    expect(panel).not_to_contain_text("500 histograms")
    assert "first=" in page.url and "range=" in page.url
    page.reload()
    page.get_by_role("button", name="Reset zoom").click()
    expect(panel).to_contain_text("500 histograms")


def test_texts_and_images_follow_the_step(media: Site, page: Page) -> None:
    media.visit(page, "#/run/media/media?filter=samp")
    texts = page.get_by_role("group", name="Texts of sample")
    expect(texts).to_contain_text(f"{MARKUP} at 400")
    expect(page.get_by_role("img", name="samples/step_0400.png")).to_be_visible()
    page.get_by_role("button", name="Step before").click()
    expect(texts).to_contain_text(f"{MARKUP} at 300")
    image = page.get_by_role("img", name="samples/step_0300.png")
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 32
    page.get_by_label("Step as a number").fill("150")
    page.get_by_label("Step as a number").press("Enter")
    expect(texts).to_contain_text(f"{MARKUP} at 100")
    assert "step=150" in page.url


@pytest.mark.full
def test_a_search_marks_its_words_in_all_steps(media: Site, page: Page) -> None:
    media.visit(page, "#/run/media/media")
    page.get_by_role("searchbox", name="Search texts").fill("ONERROR")
    panel = page.get_by_role("region", name="sample", exact=True)
    expect(panel).to_contain_text("5 texts with “ONERROR”")
    expect(panel.locator("mark").first).to_have_text("onerror")
    page.get_by_role("button", name="step 200").click()
    assert "step=200" in page.url


@pytest.mark.full
def test_the_colours_change_without_a_request_and_two_inputs_at_once_both_count(media: Site, page: Page) -> None:
    media.visit(page, "#/run/media/media")
    panel = page.get_by_role("region", name="weights")
    expect(panel).to_contain_text("1,000 histograms")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    legend = panel.locator(".heat-legend").inner_text()
    page.get_by_role("checkbox", name="log colours").check()
    expect(panel.locator(".heat-legend")).not_to_have_text(legend)
    assert not [url for url in asked if "/histograms" in url]
    page.evaluate(
        """() => {
            for (const [name, text] of [["Filter names", "sample"], ["Search texts", "at 300"]]) {
                const input = document.querySelector(`input[aria-label="${name}"]`);
                input.value = text;
                input.dispatchEvent(new Event("input"));
            }
        }"""
    )
    expect(page.get_by_role("region", name="sample", exact=True)).to_contain_text("1 text with “at 300”")
    expect(panel).to_have_count(0)


@pytest.mark.full
def test_what_is_no_image_is_not_shown_as_one_and_tables_are_text(media: Site, page: Page) -> None:
    media.visit(page, "#/run/media/media")
    expect(page.get_by_role("region", name="pages/evil.png")).to_contain_text("This file is not a PNG, JPEG")
    expect(page.get_by_role("region", name="scores.tsv")).to_contain_text(MARKUP)
    expect(page.get_by_role("region", name="predictions.csv")).to_contain_text("20 of 300 rows, 3 columns.")
    expect(page.get_by_role("region", name="worst.table.json").get_by_role("columnheader")).to_have_text(["id", "loss"])
