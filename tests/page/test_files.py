"""Saved files in the browser: previews that run nothing, and downloads."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from chiplog_schemas.paths import paths_for_root
from tests.support.command_line import environment
from tests.support.node import end_daemons
from tests.support.page_run import FILES, MARKUP
from tests.support.page_site import Site

TRAINING = """
import sys, chiplog
run = chiplog.init("live", run_id="live")
for line in sys.stdin:
    run.save(line.strip(), "notes.txt")
    print("saved", file=sys.__stdout__, flush=True)
"""


@pytest.mark.full
def test_an_image_is_previewed_and_the_choice_is_in_the_address(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/files")
    page.get_by_role("button", name="plots/red.png").click()
    image = page.get_by_role("img", name="plots/red.png")
    expect(image).to_be_visible()
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    assert "file=plots%2Fred.png" in page.url


@pytest.mark.full
def test_svg_and_long_texts_are_shown_as_text(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/files?file=page.svg")
    preview = page.get_by_role("region", name="Preview")
    expect(preview.locator("pre")).to_have_text(FILES["page.svg"].decode())
    page.get_by_role("button", name=f"{MARKUP}.txt", exact=True).click()
    expect(preview).to_contain_text("The first 256.0 KiB of 312.5 KiB.")
    assert len(preview.locator("pre").text_content() or "") == 256 << 10


@pytest.mark.full
def test_tables_have_rows_and_json_is_indented(media: Site, page: Page) -> None:
    media.visit(page, "#/run/media/files?file=predictions.csv")
    preview = page.get_by_role("region", name="Preview")
    expect(preview).to_contain_text("200 of 300 rows, 3 columns.")
    expect(preview.get_by_role("row")).to_have_count(201)
    expect(preview.get_by_role("row").nth(1)).to_contain_text('a, "b" 0')
    preview.get_by_role("button", name="As saved").click()
    expect(preview.locator("pre")).to_contain_text('0,"a, ""b"" 0",0.000')
    page.get_by_role("button", name="settings.json").click()
    expect(preview.locator("pre")).to_contain_text('  "lr": 0.1,')
    page.get_by_label("Filter paths").fill("SAMPLES 03")
    expect(page.get_by_role("region", name="List of files").get_by_role("row")).to_have_count(2)
    assert "filter=SAMPLES" in page.url


@pytest.mark.full
def test_only_the_start_of_a_large_file_is_sent(runs: Site, page: Page) -> None:
    with page.expect_response(lambda response: "/files/" in response.url) as response:
        runs.visit(page, f"#/run/slow/files?file={quote(MARKUP + '.txt')}")
    assert len(response.value.body()) == 256 << 10


def test_a_file_is_downloaded_and_one_that_has_not_arrived_is_not(runs: Site, page: Page) -> None:
    runs.visit(page, "#/run/slow/files")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download page.svg").click()
    assert download.value.suggested_filename == "page.svg"
    assert download.value.path().read_bytes() == FILES["page.svg"]
    expect(page.get_by_role("row", name="model.bin")).to_contain_text("has not arrived")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "root"
    yield root
    end_daemons(paths_for_root(root))


@pytest.mark.full
def test_a_file_appears_once_it_is_saved_and_its_preview_follows(root: Path, tmp_path: Path, page: Page) -> None:
    source = tmp_path / "source.txt"
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", TRAINING], env=environment(root), text=True, **streams) as process:

        def save(text: str) -> None:
            assert process.stdin is not None and process.stdout is not None
            source.write_text(text)
            process.stdin.write(f"{source}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "saved\n"

        save("the first text")
        with Site(root).running() as site:
            site.visit(page, "#/run/live/files")
            page.get_by_role("button", name="notes.txt").click()
            preview = page.get_by_role("region", name="Preview").locator("pre")
            expect(preview).to_have_text("the first text")
            save("the second text")
            expect(preview).to_have_text("the second text")
            page.goto("about:blank")
