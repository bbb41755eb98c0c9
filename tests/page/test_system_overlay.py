"""A system metric over the curves of a run, in the browser."""

import pytest
from playwright.sync_api import Page, expect

from tests.support.page_site import Site


def test_a_system_metric_is_added_on_a_second_axis(sampled: Site, page: Page) -> None:
    sampled.visit(page, "#/run/sampled/curves")
    panel = page.locator('[data-key="loss"]')
    expect(panel).to_contain_text("all 2 labels")
    chooser = page.get_by_label("system metric")
    chooser.focus()
    expect(chooser.locator("option")).to_have_count(4)
    chooser.select_option("hw.gpu.utilization")
    expect(panel).to_contain_text("GPU utilization, %, median of 2, right axis70")
    assert "system=hw.gpu.utilization" in page.url
    page.get_by_label("labels", exact=True).select_option("=rank1")
    expect(panel).to_contain_text("GPU utilization, %, right axis50")
    page.get_by_label("x axis").select_option("time")
    expect(panel).to_contain_text("right axis50")
    chooser.select_option("")
    expect(panel).not_to_contain_text("right axis")


@pytest.mark.full
def test_the_page_says_why_a_system_metric_is_not_drawn(sampled: Site, page: Page) -> None:
    sampled.visit(page, "#/run/sampled/curves?system=hw.nothing")
    expect(page.get_by_text("has no sample in these steps")).to_be_visible()
    page.get_by_label("x axis").select_option("=loss")
    expect(page.get_by_text("is drawn over steps and times only")).to_be_visible()


@pytest.mark.full
def test_a_metric_that_is_sampled_later_is_in_the_list_when_it_is_opened_again(sampled: Site, page: Page) -> None:
    page.route("**/sampled/system", lambda route: route.fulfill(json={"names": [], "marks": []}), times=1)
    sampled.visit(page, "#/run/sampled/curves")
    chooser = page.get_by_label("system metric")
    chooser.focus()
    expect(chooser).to_have_text("no system metric was sampled")
    chooser.blur()
    chooser.focus()
    expect(chooser.locator("option")).to_have_count(4)
