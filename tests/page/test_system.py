"""Samples of the machines of a run in the browser."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.page_site import Site
from tests.support.sampled_run import fill_sampled_run


@pytest.fixture(scope="module")
def sampled(site_of: Callable[..., Site]) -> Site:
    return site_of(fill_sampled_run)


def test_devices_have_curves_and_marks(sampled: Site, page: Page) -> None:
    sampled.visit(page, "#/run/sampled/system")
    panel = page.get_by_role("region", name="hw.gpu.utilization")
    expect(panel.locator("canvas")).to_be_visible()
    expect(panel).to_contain_text("rank1")
    expect(page.get_by_role("region", name="system.network.receive")).to_contain_text("per second")
    page.get_by_text("2 marks: throttling and events of GPUs").click()
    expect(page.get_by_text("GPU-1-1 is lost: fell off the bus (XID 79)")).to_be_visible()


def test_a_time_in_the_address_is_shown_and_left(sampled: Site, page: Page) -> None:
    sampled.visit(page, "#/run/sampled/system?first=1767322860000000&last=1767322920000000")
    expect(page.get_by_text("2026-01-02 03:01:00 UTC to 2026-01-02 03:02:00 UTC")).to_be_visible()
    page.get_by_role("button", name="All times").click()
    expect(page.get_by_text("2026-01-02 03:00:00 UTC to")).to_be_visible()
    assert "first" not in page.url


def test_a_run_without_samples_says_why(sampled: Site, page: Page) -> None:
    sampled.visit(page, "#/run/unsampled/system")
    expect(page.get_by_text("No sample of a GPU, a host or a process belongs to this run.")).to_be_visible()
