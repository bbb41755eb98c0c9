"""Fixtures of the page: a browser for all tests of a worker, servers on databases that tests fill, and a page."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import duckdb
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.curved_runs import fill_curved_runs
from tests.support.hand_written import hand_written, kept_open
from tests.support.jupyter_proxy import jupyter_server
from tests.support.media_run import fill_media_run, store_media_files
from tests.support.page_run import fill_page_run, store_files
from tests.support.page_site import Site, opened_page, running_browser
from tests.support.recorded import fill_three_runs
from tests.support.sampled_run import fill_sampled_run
from tests.support.waiting import WAIT_MS

Fill = Callable[[duckdb.DuckDBPyConnection], None]


def pytest_itemcollected(item: pytest.Item) -> None:
    # Two workers have a browser: about half of the time each.
    item.add_marker(pytest.mark.xdist_group("page-1" if item.path.stem < "test_run" else "page-2"))


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The chromium of the system. It ends with these tests, and with it the event loop that it runs in this thread."""
    expect.set_options(timeout=WAIT_MS)
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="package")
def site_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Fill], Site]]:
    """Return what serves the database that a function fills; the same function gets the same server.

    The servers end with these tests: each wakes ten times in a second.
    """
    sites: dict[Fill, Site] = {}
    with ExitStack() as stack:

        def get(fill: Fill) -> Site:
            if fill not in sites:
                root = tmp_path_factory.mktemp("page")
                with hand_written(root) as database:
                    fill(database)
                stack.enter_context(kept_open(root))
                sites[fill] = stack.enter_context(Site(root).running())
            return sites[fill]

        yield get


@pytest.fixture(scope="package")
def site(site_of: Callable[[Fill], Site]) -> Site:
    """Three runs of four ranks: finished, crashed and running."""
    return site_of(fill_three_runs)


@pytest.fixture(scope="package")
def curved(site_of: Callable[[Fill], Site]) -> Site:
    """Runs with curves: of four ranks, of many, long ones, and one without a metric."""
    return site_of(fill_curved_runs)


@pytest.fixture(scope="package")
def runs(site_of: Callable[[Fill], Site]) -> Site:
    """Runs with a slow rank, printed lines, failures, events and saved files."""
    site = site_of(fill_page_run)
    store_files(site.root)
    return site


@pytest.fixture(scope="package")
def media(site_of: Callable[[Fill], Site]) -> Site:
    """Runs with histograms, texts, images and tables."""
    site = site_of(fill_media_run)
    store_media_files(site.root)
    return site


@pytest.fixture(scope="package")
def sampled(site_of: Callable[[Fill], Site]) -> Site:
    """Runs with samples of their machines."""
    return site_of(fill_sampled_run)


@pytest.fixture(scope="package")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Jupyter's server, below which `PREFIX + "proxy/<port>/"` is a port of this machine."""
    with jupyter_server(tmp_path_factory.mktemp("jupyter")) as address:
        yield address


@pytest.fixture
def errors() -> list[str]:
    """What the console of `page` reported as an error. A test that provokes one clears the list."""
    return []


@pytest.fixture
def page(browser: Browser, errors: list[str]) -> Iterator[Page]:
    """An empty page of 1,280 pixels; the test fails at its end if the console has an error."""
    with opened_page(browser, errors) as page:
        yield page
    assert errors == []
