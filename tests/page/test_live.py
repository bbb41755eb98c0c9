"""A training beside the page: each open view shows what it logs, without a reload."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from chiplog_schemas.paths import paths_for_root
from tests.support.command_line import environment
from tests.support.node import end_daemons
from tests.support.page_site import Site
from tests.support.recorded import fill_three_runs
from tests.support.waiting import WAIT_S

MARKUP = "<img src=x onerror=alert(1)>"
# Logs a step for each number that it reads. Its names are full of markup, as far as the SDK lets them in.
TRAINING = f"""
import sys
import chiplog

markup = "{MARKUP}"
words = {{"name": markup, "group": markup, "tags": [markup], "notes": markup, "config": {{markup: markup}}}}
run = chiplog.init(markup, run_id=sys.argv[1], **words)
print("begun", file=sys.__stderr__, flush=True)
for line in sys.stdin:
    with run.step(), run.phase("data"):
        run.log({{"train/loss": float(line), f"train/{{markup}}": 1.0}})
    if float(line) == 404.25:
        run.alert(f"high loss of {{line.strip()}}", markup)
    print("\\033[31mprinted\\033[0m", line.strip(), markup, flush=True)
run.finish()
"""


@dataclass
class Training:
    """A rank that logs when it is asked to."""

    process: "subprocess.Popen[str]"

    def log(self, value: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{value}\n")
        self.process.stdin.flush()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("live")
    yield root
    end_daemons(paths_for_root(root))


@contextmanager
def begun(root: Path, run_id: str) -> Iterator[Training]:
    command = [sys.executable, "-c", TRAINING, run_id]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(root, PYTHONWARNINGS=""), text=True, **streams) as process:
        assert process.stderr is not None and process.stdin is not None
        for line in process.stderr:
            if line == "begun\n":
                break
        yield Training(process)
        process.stdin.close()
        process.wait(WAIT_S)


@pytest.fixture(scope="module")
def training(root: Path) -> Iterator[Training]:
    with begun(root, "live") as training:
        yield training


@pytest.fixture(scope="module")
def site(root: Path, training: Training) -> Iterator[Site]:
    training.log(1.5)
    with Site(root).running() as site:
        yield site


@pytest.mark.full
def test_each_view_shows_a_new_value_without_a_reload(site: Site, training: Training, page: Page) -> None:
    site.visit(page, "#/run/live/curves")
    panel = page.locator(".panel").filter(has=page.get_by_role("heading", name="train/loss"))
    expect(panel).to_contain_text("1.5")
    page.evaluate("window.isTheSame = true")
    training.log(202.25)
    expect(panel).to_contain_text("202.25")
    expect(page.get_by_role("heading", name=MARKUP).first).to_be_visible()
    tabs = page.get_by_role("navigation", name="Parts of the run")

    tabs.get_by_role("link", name="Ranks").click()
    labels = page.get_by_role("region", name="Labels")
    expect(labels.get_by_role("row").nth(1).get_by_role("cell").nth(2)).to_have_text("1")  # the step
    lists = [page.get_by_label(name, exact=True) for name in ("Phase", "Order of labels")]
    for one in lists:
        expect(one.locator("option").nth(1)).to_be_attached()
        one.evaluate("list => { list.options[0].isTheSame = true; }")
    lists[0].focus()
    training.log(303.25)
    expect(labels.get_by_role("row").nth(1).get_by_role("cell").nth(2)).to_have_text("2")
    expect(page.get_by_label("Last step")).to_have_value("2")
    expect(page.get_by_role("region", name="Phases over time")).to_contain_text("steps 0 to 2")
    for one in lists:
        assert one.evaluate("list => list.options[0].isTheSame"), "an open list stays open"

    tabs.get_by_role("link", name="Console").click()
    console = page.locator(".tab-console")
    expect(console).to_contain_text("printed 303.25")
    training.log(404.25)
    expect(console).to_contain_text(f"printed 404.25 {MARKUP}")

    tabs.get_by_role("link", name="Events").click()
    alerts = page.get_by_role("region", name="Alerts").locator("tbody tr")
    events = page.get_by_role("region", name="All events").locator("tbody tr").filter(has_text="high loss of 404.25")
    expect(events).to_have_count(1)
    training.log(404.25)
    expect(events).to_have_count(2)
    expect(alerts.get_by_role("cell").nth(2)).to_have_text("2")

    page.evaluate("location.hash = '#/runs?summary=train/loss'")
    row = page.get_by_role("grid").get_by_role("row", name=MARKUP)
    expect(row).to_contain_text("404.25")
    training.log(505.25)
    expect(row).to_contain_text("505.25")
    assert page.evaluate("window.isTheSame"), "the document was not loaded again"
    assert page.locator("img").count() == 0


@pytest.mark.full
def test_more_windows_than_a_browser_has_connections_all_load(site: Site, page: Page) -> None:
    # A browser opens six connections to a server, and each window that is seen holds one.
    site.visit(page, "#/run/live/curves")
    expect(page.locator(".uplot canvas").first).to_be_visible()
    windows = [page.context.new_page() for _ in range(7)]
    for window in windows:
        window.add_init_script("Object.defineProperty(document, 'hidden', {get: () => window.isHidden ?? true})")
        window.goto(site.base + "#/run/live/curves")
        expect(window.locator(".uplot canvas").first).to_be_visible()
    for window in windows[1:]:
        window.close()


def test_a_window_that_is_seen_again_shows_what_it_missed(site: Site, training: Training, page: Page) -> None:
    page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => window.isHidden ?? false})")
    site.visit(page, "#/run/live/curves")
    panel = page.locator(".panel").filter(has=page.get_by_role("heading", name="train/loss"))
    expect(panel.locator(".uplot canvas")).to_be_visible()
    show = "isHidden => { window.isHidden = isHidden; document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(show, True)
    training.log(606.25)
    page.evaluate(show, False)
    expect(panel).to_contain_text("606.25")


@pytest.mark.full
def test_a_run_is_opened_once_it_is_stored_and_left_once_it_is_deleted(
    root: Path, site: Site, page: Page, errors: list[str]
) -> None:
    site.visit(page, "#/run/later/curves")
    expect(page.get_by_role("heading", name="No such run yet")).to_be_visible()
    with begun(root, "later") as training:
        expect(page.get_by_role("heading", name="No metrics yet")).to_be_visible()
        training.log(202.25)
        expect(page.locator(".curve-groups")).to_contain_text("202.25")
    expect(page.locator(".chip.finished")).to_be_visible()
    page.evaluate("fetch('api/runs/later', { method: 'DELETE' })")
    expect(page.get_by_role("heading", name="This run was deleted")).to_be_visible()
    errors.clear()  # answers of 404


@pytest.mark.full
def test_a_page_follows_again_after_a_proxy_has_refused_the_stream(
    site_of: Callable[..., Site], page: Page, errors: list[str]
) -> None:
    page.route("**/api/live", lambda route: route.fulfill(status=502, body="Bad Gateway"))
    site = site_of(fill_three_runs)
    site.visit(page, "#/runs")
    notice = page.locator("#notice")
    expect(notice).to_have_text("chiplog ui does not answer; is it still running?")
    page.unroute_all()
    expect(notice).to_be_hidden()
    errors.clear()  # answers of 502


@pytest.mark.full
def test_a_browser_that_is_signed_out_is_told_so_and_follows_after_it_has_signed_in(
    site_of: Callable[..., Site], page: Page, errors: list[str]
) -> None:
    page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => window.isHidden ?? false})")
    site = site_of(fill_three_runs)
    site.visit(page, "#/runs")
    expect(page.get_by_role("grid").get_by_role("link").first).to_be_visible()
    page.context.clear_cookies()
    return_to = "for (window.isHidden of [true, false]) document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate(return_to)
    notice = page.locator("#notice")
    expect(notice).to_have_text("This browser is signed out; open the address that chiplog ui prints.")
    page.context.new_page().goto(site.server.new_address())
    page.evaluate(return_to)
    expect(notice).to_be_hidden()
    errors.clear()  # answers of 401
