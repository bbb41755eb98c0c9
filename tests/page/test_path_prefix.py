"""The page below the path prefix of a reverse proxy: sign-in, all tabs, changes, downloads and live updates."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from chiplog.query.client import connect
from tests.support.collector_log import whole
from tests.support.kept_log import finished, kept_log
from tests.support.page_site import Site
from tests.support.prefix_proxy import behind_prefix


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose collector takes changes."""
    logs = [whole(finished(1, "run-1", n_steps=50))]
    with kept_log(tmp_path_factory.mktemp("prefix"), logs) as place, Site(place.root).running() as site:
        yield site


@pytest.fixture(scope="module")
def base(site: Site) -> Iterator[str]:
    with behind_prefix(site.server.port) as base:
        yield base


def sign_in(page: Page, site: Site, base: str) -> None:
    page.goto(base + "?" + site.server.new_address().partition("?")[2])


def test_the_page_works_below_a_prefix(site: Site, base: str, page: Page) -> None:
    outside: list[str] = []
    page.on("request", lambda request: None if request.url.startswith((base, "blob:")) else outside.append(request.url))
    sign_in(page, site, base)
    assert page.url.startswith(base) and "token" not in page.url
    page.get_by_role("link", name="run-1").click()
    expect(page.locator(".tab-curves canvas").first).to_be_visible()
    for tab in ("Ranks", "Console", "Events", "Media", "Files", "System"):
        page.get_by_role("navigation", name="Parts of the run").get_by_role("link", name=tab).click()
        expect(page.locator(f".tab-{tab.lower()}:not(:empty)")).to_be_visible()
    page.get_by_role("link", name="SQL").click()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("gridcell", name="run-1")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    assert Path(download.value.path()).read_text().startswith("run_id,")
    assert outside == []


def test_a_change_passes_and_the_open_page_follows_the_database(site: Site, base: str, page: Page) -> None:
    sign_in(page, site, base)
    expect(page.get_by_role("link", name="run-1")).to_be_visible()
    with connect(dir=str(site.root)) as client:
        client.edit_run("run-1", name="changed outside")
    expect(page.get_by_role("link", name="changed outside")).to_be_visible()
    page.get_by_label("Select changed outside").check()
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("dialog").get_by_label("Name").fill("changed here")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("link", name="changed here")).to_be_visible()


def test_without_a_session_there_is_the_sign_in_page_with_its_style(base: str, page: Page, errors: list[str]) -> None:
    page.goto(base)
    expect(page.get_by_text("Open the address that chiplog ui prints")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).display") == "grid"
    errors.clear()  # its status is 401
