"""Saved files in the browser: previews that run nothing, and downloads."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.page_run import FILES, MARKUP, fill_page_run, store_files
from tests.support.page_site import Site


@pytest.fixture(scope="module")
def runs(site_of: Callable[..., Site]) -> Site:
    site = site_of(fill_page_run)
    store_files(site.root)
    return site


def test_an_image_is_previewed_and_the_choice_is_in_the_address(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/files")
    page.get_by_role("button", name="plots/red.png").click()
    image = page.get_by_role("img", name="plots/red.png")
    expect(image).to_be_visible()
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    assert "file=plots%2Fred.png" in page.url


def test_svg_and_long_texts_are_shown_as_text(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/files?file=page.svg")
    preview = page.get_by_role("region", name="Preview")
    expect(preview.locator("pre")).to_have_text(FILES["page.svg"].decode())
    page.get_by_role("button", name=f"{MARKUP}.txt", exact=True).click()
    expect(preview).to_contain_text("The first 256.0 KiB of 312.5 KiB.")
    assert len(preview.locator("pre").text_content() or "") == 256 << 10


def test_a_file_is_downloaded_and_one_that_has_not_arrived_is_not(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/files")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download page.svg").click()
    assert download.value.suggested_filename == "page.svg"
    assert download.value.path().read_bytes() == FILES["page.svg"]
    expect(page.get_by_role("row", name="model.bin")).to_contain_text("has not arrived")


def test_a_run_without_files_says_how_to_save_one(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/even/files")
    expect(page.get_by_text("No file was saved.")).to_be_visible()
