"""Runs beside each other."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.collector_log import START_US, Rank, whole
from tests.support.compared_runs import fill_compared_runs
from tests.support.curved_runs import fill_curved_runs
from tests.support.kept_log import finished, kept_log
from tests.support.page_site import Site
from tests.support.plotted_runs import fill_plotted_runs


@pytest.fixture(scope="module")
def two(site_of: Callable[..., Site]) -> Site:
    return site_of(fill_compared_runs)


def test_what_differs_is_beside_each_other(two: Site, page: Page) -> None:
    two.visit(page, "#/compare?run=run-1&run=run-2")
    config = page.get_by_role("region", name="Config")
    expect(config.get_by_role("row", name="lr 0.1 0.2")).to_be_visible()
    expect(config.get_by_text("model")).to_have_count(0)
    expect(page.get_by_role("region", name="Summary").get_by_role("row")).to_have_text(
        [re.compile("^Keyrun-1<b>second</b>$"), re.compile("^loss32 -33 %$")]
    )
    phases = page.get_by_role("region", name="Seconds per step and phase, mean label")
    expect(phases.get_by_role("row", name="data 0.1 s 0.4 s")).to_be_visible()
    shares = page.get_by_role("region", name="Share of each phase in the step")
    expect(shares.get_by_text("No run has a phase and the length of its steps.")).to_be_visible()
    page.get_by_label("Also equal values").check()
    expect(config.get_by_role("row", name="model gpt2 gpt2")).to_be_visible()
    expect(page).to_have_url(re.compile("all=1"))
    expect(config.get_by_role("link", name="<b>second</b>")).to_have_attribute("href", "#/run/run-2")
    overlay = page.get_by_role("link", name="Overlay their curves")
    expect(overlay).to_have_attribute("href", "#/run/run-1/curves?with=run-2")


def test_whole_runs_have_final_and_best_values_and_means_of_machines(site_of: Callable[..., Site], page: Page) -> None:
    site_of(fill_plotted_runs).visit(page, "#/compare?run=gpt-a&run=gpt-b&run=gpt-64")
    final = page.get_by_role("region", name="Final values of metrics")
    expect(final.get_by_role("row", name="loss 0.0025 0.01 +300 % 0.0325 ×13")).to_be_visible()
    expect(final.get_by_role("row", name="nan nan – –")).to_be_visible()
    best = page.get_by_role("region", name="Best values of metrics")
    expect(best.get_by_role("row", name="acc highest 0.999 0.499 -50 % 0.999")).to_be_visible()
    machines = page.get_by_role("region", name="Machines")
    expect(machines.get_by_role("row", name="GPU utilization 50 % 90 % +80 % –")).to_be_visible()
    expect(machines.get_by_role("row", name="GPU memory used 20 GiB 20 GiB –")).to_be_visible()
    same = page.get_by_role("region", name="Metrics at the same step")
    expect(same.get_by_text("acc")).to_have_count(0)  # the mean of 64 labels is rounded another way


@pytest.mark.full
def test_a_run_that_goes_on_has_a_duration(site: Site, page: Page) -> None:
    site.visit(page, "#/compare?run=gpt-20260102-7f3a91&run=vit-20260104-0042")
    durations = page.get_by_role("region", name="Runs").get_by_role("row", name="Duration").get_by_role("cell")
    expect(durations).to_have_text([re.compile(r"^2 h 6 min$"), re.compile(r"^\d+ d"), ""])


def test_the_filter_takes_words(site_of: Callable[..., Site], page: Page) -> None:
    site_of(fill_curved_runs).visit(page, "#/compare?run=band&run=other&filter=loss+train")
    metrics = page.get_by_role("region", name="Metrics at the same step")
    expect(metrics.get_by_role("row", name="train/loss")).to_be_visible()


@pytest.mark.full
def test_one_run_is_too_few(two: Site, page: Page) -> None:
    two.visit(page, "#/compare?run=run-1")
    expect(page.get_by_role("heading", name="1 run selected")).to_be_visible()
    page.get_by_role("link", name="All runs").click()
    expect(page.get_by_label("Select run-1")).to_be_checked()


def test_a_run_that_is_not_there_is_named(two: Site, page: Page, errors: list[str]) -> None:
    two.visit(page, "#/compare?run=run-1&run=gone")
    expect(page.get_by_text("there is no run 'gone'")).to_be_visible()
    errors.clear()  # its status is 404


def test_metrics_are_compared_at_a_chosen_step(site_of: Callable[..., Site], page: Page) -> None:
    site_of(fill_curved_runs).visit(page, "#/compare?run=band&run=other")
    metrics = page.get_by_role("region", name="Metrics at the same step")
    expect(metrics.get_by_role("row", name="train/loss step 999 1.146 1.001")).to_be_visible()
    page.get_by_label("Step of the metrics").fill("500")
    page.get_by_label("Step of the metrics").press("Enter")
    expect(metrics.get_by_role("row", name="train/loss step 500")).to_be_visible()
    assert "step=500" in page.url


@pytest.mark.full
def test_a_comparison_follows_a_run_that_goes_on(tmp_path: Path, page: Page) -> None:
    running = Rank(2, rank=0, label="rank0", primary=True, run_id="run-2", start_us=START_US)
    running.log(1, loss=1.0)
    logs = [whole(finished(1, "run-1")), whole(running)]
    with kept_log(tmp_path, logs) as place, Site(place.root).running() as site:
        site.visit(page, "#/compare?run=run-1&run=run-2")
        expect(page.get_by_role("region", name="Runs").get_by_role("link", name="run-2")).to_be_visible()
        rename = "ask('runs/run-2', {}, { method: 'PATCH', body: { name: 'the new name' } })"
        page.evaluate(f"async () => (await import('./static/js/net/api.js')).{rename}")
        expect(page.get_by_role("region", name="Runs").get_by_role("link", name="the new name")).to_be_visible()
        page.goto("about:blank")
