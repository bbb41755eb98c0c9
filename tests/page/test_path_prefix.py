"""The page behind Jupyter's proxy, below a path: sign-in, all tabs, changes, downloads, live updates, notebooks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import chiplog
from chiplog_client.client import connect
from chiplog_page import notebook
from tests.support.collector_log import whole
from tests.support.jupyter_proxy import PREFIX
from tests.support.kept_log import finished, kept_log
from tests.support.page_site import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose collector takes changes, and which knows that it is behind a proxy."""
    logs = [whole(finished(1, "run-1", n_steps=50))]
    proxy = f"{PREFIX}proxy"
    with kept_log(tmp_path_factory.mktemp("prefix"), logs) as place, Site(place.root, proxy=proxy).running() as site:
        yield site


@pytest.fixture(scope="module")
def hub(jupyter: str) -> str:
    """The proxy by a host name that the page has not been given."""
    return jupyter.replace("127.0.0.1", "hub.localhost")


@pytest.fixture(scope="module")
def base(site: Site, hub: str) -> str:
    return f"{hub}{PREFIX}proxy/{site.server.port}/"


def sign_in(page: Page, site: Site, hub: str) -> None:
    page.goto(hub + site.server.new_address())


def test_the_page_works_below_a_prefix(site: Site, hub: str, base: str, page: Page) -> None:
    outside: list[str] = []
    page.on("request", lambda request: None if request.url.startswith((base, "blob:")) else outside.append(request.url))
    sign_in(page, site, hub)
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


def test_a_change_passes_and_the_open_page_follows_the_database(site: Site, hub: str, page: Page) -> None:
    sign_in(page, site, hub)
    expect(page.get_by_role("link", name="run-1")).to_be_visible()
    with connect(dir=str(site.root)) as client:
        client.edit_run("run-1", name="changed outside")
    expect(page.get_by_role("link", name="changed outside")).to_be_visible()
    page.get_by_label("Select changed outside").check()
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("dialog").get_by_label("Name").fill("changed here")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("link", name="changed here")).to_be_visible()
    with connect(dir=str(site.root)) as client:
        client.edit_run("run-1", name="run-1")  # as the other tests have it, in any order


def test_without_a_session_there_is_the_sign_in_page_with_its_style(base: str, page: Page, errors: list[str]) -> None:
    page.goto(base)
    expect(page.get_by_text("Open the address that chiplog ui prints")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).display") == "grid"
    errors.clear()  # its status is 401


def test_the_frame_of_a_notebook_in_a_hub_is_below_the_path_of_its_proxy(
    site: Site, hub: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", PREFIX)
    monkeypatch.setattr(notebook, "_servers", {})
    shown = chiplog.ui("run-1", dir=site.root)
    try:
        page.route(f"{hub}/notebook", lambda route: route.fulfill(body=shown._repr_html_(), content_type="text/html"))
        page.goto(f"{hub}/notebook")
        expect(page.frame_locator("iframe").locator(".tab-curves canvas").first).to_be_visible()
        with page.context.expect_page() as opened:
            page.get_by_role("link", name="Open the page of chiplog in a tab").click()
        expect(opened.value.locator(".tab-curves canvas").first).to_be_visible()
    finally:
        page.context.close()  # its pages follow the server
        shown._server.close()
