"""Logged media in the browser: images, sound, video, tables, HTML, downloads."""

import base64
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from chiplog.media.overlays import read_masks
from chiplog_schemas.paths import paths_for_root
from tests.support.hand_written import hand_written
from tests.support.logged_media import LOST, N_ROWS, digest_of, fill_logged_media, store_logged_media
from tests.support.page_site import Site
from tests.support.run_builder import RunBuilder
from tests.support.served_database import changing, served_database


@pytest.fixture(scope="module")
def media(site_of: Callable[..., Site]) -> Site:
    site = site_of(fill_logged_media)
    store_logged_media(site.root)
    return site


def panel_of(page: Page, key: str) -> Locator:
    return page.get_by_role("region", name=key, exact=True)


def test_images_follow_the_step_with_boxes_and_masks_that_can_be_hidden(media: Site, page: Page) -> None:
    media.visit(page, "#/run/logged/media?filter=scene")
    panel = panel_of(page, "scene")
    expect(panel.get_by_role("img")).to_have_count(2)
    expect(panel).to_contain_text("rank 1 at 200 <b>")
    image = panel.get_by_role("img", name="scene at step 200, rank0")
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 60
    expect(panel.locator("svg rect")).to_have_count(4)
    assert panel.locator("svg").first.locator("rect").evaluate_all(
        "all => all.map(one => ['x', 'y', 'width', 'height'].map(name => Math.round(one.getAttribute(name))))"
    ) == [[20, 10, 20, 20], [6, 4, 12, 16]], "pixels, and fractions around a middle"
    expect(panel.locator("svg text").first).to_have_text("cat")
    canvas = panel.locator("canvas").first
    expect(canvas).to_have_attribute("width", "60")
    alphas = "canvas => [[30, 20], [1, 1]].map(([x, y]) => canvas.getContext('2d').getImageData(x, y, 1, 1).data[3])"
    assert canvas.evaluate(alphas) == [255, 0]
    width = image.evaluate("image => image.clientWidth")
    panel.get_by_role("button", name="enlarge").first.click()
    assert image.evaluate("image => image.clientWidth") > 3 * width
    panel.get_by_role("checkbox", name="boxes predictions").uncheck()
    expect(panel.locator("svg rect")).to_have_count(0)
    page.get_by_role("button", name="Step before").click()
    expect(panel).to_contain_text("rank 0 at 100 <b>")
    panel.get_by_role("checkbox", name="mask truth").uncheck()
    expect(panel.locator("canvas, svg")).to_have_count(0)
    page.get_by_label("labels").select_option("=rank1")
    expect(panel.get_by_role("img")).to_have_count(1)


@pytest.mark.full
def test_each_class_of_a_mask_of_16_bits_has_its_colour(media: Site, page: Page) -> None:
    """The page reads the PNG as Pillow writes it, with the filters of the format, and masks of 8 bits."""
    rows, columns = np.mgrid[0:300, 0:70]
    noise = np.random.default_rng(1).integers(0, 65_536, (300, 70))
    smooth = (columns + rows) * 150 + noise % 120
    parts = [columns * 900, rows * 7, 300, noise, smooth]
    ids = np.select([rows < end for end in (50, 100, 150, 200, 250)], parts, columns ^ rows)
    wide, narrow = (read_masks({"m": ids % n_classes})[0][1].data for n_classes in (65_536, 256))
    media.visit(page, "#/run/logged/media?filter=scene")
    for data, n_classes in ((wide, 65_536), (narrow, 256)):
        found = page.evaluate(
            """async (data) => {
                const { readIds } = await import("./static/js/views/run/logged_media.js");
                const { width, height, ids } = await readIds(Uint8Array.from(atob(data), (one) => one.charCodeAt(0)));
                return [width, height, [...ids]];
            }""",
            base64.b64encode(data).decode(),
        )
        assert found == [70, 300, (ids % n_classes).ravel().tolist()]


def test_a_table_is_sorted_filtered_and_shows_the_images_in_its_cells(media: Site, page: Page) -> None:
    media.visit(page, "#/run/logged/media?filter=predictions")
    panel = panel_of(page, "predictions")
    rows = panel.locator("tbody tr")
    expect(panel).to_contain_text(f"50 of {N_ROWS:,} rows, 4 columns")
    assert rows.nth(2).get_by_role("img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 60
    heads = panel.get_by_role("columnheader")
    heads.nth(1).get_by_role("button").click()
    expect(heads.nth(1)).to_have_attribute("aria-sort", "ascending")
    heads.nth(1).get_by_role("button").click()
    expect(rows.first.locator("td").nth(1)).to_have_text("14.2857")
    expect(heads.nth(1).get_by_role("button")).to_be_focused()
    panel.get_by_role("searchbox", name="Filter rows of predictions").fill("row 149")
    expect(panel).to_contain_text(f"11 rows of {N_ROWS:,}")
    expect(rows.first.locator("td").nth(2)).to_contain_text("<i>")
    panel.get_by_role("searchbox").fill("")
    panel.get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(1_000)
    page.get_by_role("button", name="Step before").click()
    expect(panel).to_contain_text("3 rows, 4 columns")
    expect(heads.nth(1)).to_have_attribute("aria-sort", "descending")


@pytest.mark.full
def test_sound_plays_from_any_place_and_goes_on_while_nothing_new_is_shown(media: Site, page: Page) -> None:
    media.visit(page, "#/run/logged/media?filter=tone")
    audio = panel_of(page, "tone").locator("audio")
    expect(audio).to_have_count(1)
    assert audio.evaluate(
        """async (audio) => {
            audio.muted = true;
            if (!audio.readyState) await new Promise((done) => audio.addEventListener("loadedmetadata", done));
            const sought = new Promise((done) => audio.addEventListener("seeked", done));
            audio.currentTime = 0.5;
            await sought;
            await audio.play();
            audio.pause();
            return [audio.duration, audio.currentTime >= 0.5];
        }"""
    ) == [1, True]
    audio.evaluate("audio => (audio.isKept = true)")
    with page.expect_response("**/logged?*step=250*"):
        page.get_by_label("Step as a number").fill("250")
        page.get_by_label("Step as a number").press("Enter")
    page.wait_for_timeout(300)
    assert audio.evaluate("audio => audio.isKept")


@pytest.mark.full
@pytest.mark.parametrize("form", ["mp4", "webm"])
def test_a_film_plays_from_any_place_and_shows_its_pixels(media: Site, page: Page, form: str) -> None:
    media.visit(page, f"#/run/logged/media?filter={form}")
    video = panel_of(page, form).locator("video")
    expect(video).to_have_count(1)
    found = video.evaluate(
        """async (video) => {
            video.muted = true;
            const until = (name) => new Promise((done, fail) => {
                video.addEventListener(name, done);
                video.addEventListener("error", () => fail(video.error));
            });
            if (!video.readyState) await until("loadedmetadata");
            const sought = until("seeked");
            video.currentTime = 0.5;
            await sought;
            await video.play();
            video.pause();
            const canvas = Object.assign(document.createElement("canvas"), { width: 60, height: 40 });
            const context = canvas.getContext("2d");
            context.drawImage(video, 0, 0);
            return [video.videoWidth, video.videoHeight, video.duration, [...context.getImageData(30, 20, 1, 1).data]];
        }"""
    )
    width, height, duration, (red, green, blue, _) = found
    assert (width, height, round(duration, 1)) == (60, 40, 1.0)
    assert abs(red - 205) < 20 and abs(green - 200) < 20 and blue < 20, "as it was logged, up to the loss of the codec"


@pytest.mark.full
def test_html_is_shown_without_scripts_and_without_network(media: Site, page: Page, errors: list[str]) -> None:
    media.visit(page, "#/run/logged/media?filter=report")
    panel = panel_of(page, "report")
    said = panel.frame_locator("iframe").locator("#said")
    expect(said).to_have_text("no script")
    assert said.evaluate("element => getComputedStyle(element).color") == "rgb(255, 0, 0)"
    assert all("Content Security Policy" in error or "Blocked script" in error for error in errors), errors
    assert errors, "the image of another host, and the script, are blocked"
    errors.clear()


@pytest.mark.full
def test_other_media_are_shown_or_offered_for_download(media: Site, page: Page) -> None:
    media.visit(page, "#/run/logged/media?filter=/digits|film|lost|cloud/")
    digits = panel_of(page, "digits")
    expect(digits.locator("figcaption")).to_contain_text([f"digit {n}" for n in range(5)])
    expect(panel_of(page, "film").get_by_role("img")).to_have_count(1)
    expect(panel_of(page, LOST)).to_contain_text("Its content has not arrived yet.")
    cloud = panel_of(page, "cloud")
    expect(cloud).to_contain_text("No viewer for pts.json; download it.")
    link = cloud.get_by_role("link", name="Download cloud-200.pts.json")
    expect(link).to_have_attribute("href", f"api/runs/logged/contents/{digest_of('cloud')}")
    with page.expect_download() as download:
        link.click()
    assert download.value.suggested_filename == "cloud-200.pts.json"
    media.visit(page, "#/run/other/media")
    expect(page.get_by_text("chiplog.Image(pixels")).to_be_visible()


@pytest.mark.full
def test_a_content_that_arrives_after_the_end_of_the_run_is_shown(page: Page, tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_logged_media(database)
        RunBuilder(database).position()
        database.execute(f"DELETE FROM base.stored WHERE sha256 = '{digest_of('film')}'")
    store_logged_media(tmp_path)
    with served_database(paths_for_root(tmp_path)) as database, Site(tmp_path).running() as site:
        site.visit(page, "#/run/logged/media?filter=film")
        film = panel_of(page, "film")
        expect(film).to_contain_text("Its content has not arrived yet.")
        with changing(database) as build:
            [(size,)] = database.execute("SELECT bytes FROM media WHERE sha256 = $1", [digest_of("film")]).fetchall()
            build.store(digest_of("film"), size)
        expect(film.get_by_role("img")).to_have_count(1)
