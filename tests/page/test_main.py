"""The frame of the page: header, themes, the sign-in page, states without data."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.support.page_site import Site, watch


def test_the_page_loads_without_an_error(site: Site, page: Page) -> None:
    site.visit(page)
    expect(page.get_by_role("link", name="first try")).to_be_visible()
    expect(page.get_by_role("link", name="Runs")).to_have_attribute("aria-current", "page")
    assert page.title() == "Runs · chiplog"


def test_the_theme_is_kept(site: Site, page: Page) -> None:
    site.visit(page)
    before = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.get_by_role("button", name="Dark or light").click()
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != before


@pytest.mark.full
def test_times_are_in_utc_or_in_the_zone_of_the_browser(site: Site, browser: Browser, errors: list[str]) -> None:
    context = browser.new_context(timezone_id="Asia/Kolkata")
    page = context.new_page()
    watch(page, errors)
    site.visit(page, "#/run/gpt-20260102-7f3a91/console")
    expect(page.locator(".facts")).to_contain_text("2026-01-02 03:04:05 UTC")
    page.get_by_role("button", name="Times in UTC").press("Enter")
    expect(page.locator(".facts")).to_contain_text("2026-01-02 08:34:05 UTC+5:30")
    expect(page.get_by_role("button", name="Times in UTC+5:30")).to_be_focused()
    page.reload()
    expect(page.locator(".line .time").first).to_have_text("08:34:05.000")
    context.close()
    assert errors == []


@pytest.mark.full
def test_the_link_to_the_content_leaves_the_view_as_it_is(site: Site, page: Page) -> None:
    site.visit(page, "#/runs?filter=whole")
    page.get_by_role("link", name="Skip to the content").press("Enter")
    expect(page.locator("#content")).to_be_focused()
    expect(page.get_by_role("grid", name="Runs")).to_be_visible()
    assert page.url.endswith("#/runs?filter=whole")


@pytest.mark.full
def test_a_dialog_closes_with_its_view(site: Site, page: Page) -> None:
    site.visit(page, "#/sql")
    page.evaluate("location.hash = '#/runs'")
    page.get_by_role("button", name="Columns").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("textbox", name="SQL query")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.full
def test_axes_end_at_steps_that_no_number_can_follow(site: Site, page: Page) -> None:
    site.visit(page, "#/runs")
    ticks = "async () => (await import('./static/js/charts/canvas.js')).ticksOf(1.7e18, 1.7e18 + 1000, 1).length"
    assert 0 < page.evaluate(ticks) <= 1000


def test_without_a_session_the_page_says_how_to_open_it(site: Site, page: Page, errors: list[str]) -> None:
    page.goto(site.base)
    expect(page.get_by_text("Open the address that chiplog ui prints")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).display") == "grid"  # it has the style sheet
    errors.clear()  # its status is 401


def test_an_unknown_view_links_to_the_runs(site: Site, page: Page) -> None:
    site.visit(page, "#/constructor")
    expect(page.get_by_role("heading", name="There is no view constructor")).to_be_visible()
    page.get_by_role("link", name="All runs").click()
    expect(page.get_by_role("link", name="first try")).to_be_visible()


def test_an_empty_directory_shows_the_lines_to_run(tmp_path: Path, page: Page, errors: list[str]) -> None:
    with Site(tmp_path).running() as site:
        site.visit(page)
        expect(page.get_by_role("heading", name="No run yet")).to_be_visible()
        expect(page.locator("pre")).to_contain_text("run = chiplog.init(")
    errors.clear()  # answers of 404


def test_a_view_that_is_ready_late_does_not_replace_the_one_that_was_opened_after_it(site: Site, page: Page) -> None:
    held: list[Route] = []
    page.route("**/api/runs", lambda route: held.append(route))
    page.route("**/api/runs?*", lambda route: held.append(route))
    site.visit(page, "#/runs")
    page.evaluate("location.hash = '#/sql'")
    expect(page.get_by_label("SQL query")).to_be_visible()
    for route in held:
        route.continue_()
    with page.expect_response("**/api/words"):
        page.evaluate("fetch('api/words')")  # after the answers that were held
    expect(page.get_by_label("Filter runs")).to_have_count(0)
    expect(page.get_by_label("SQL query")).to_be_visible()


def test_a_view_that_is_closed_while_it_starts_asks_and_follows_nothing(site: Site, page: Page) -> None:
    """What it begins after its end: a request, a timer, a listener, a change of the database."""
    site.visit(page, "#/sql")
    begun = page.evaluate(
        """async () => {
            const { View } = await import("./static/js/views/view.js");
            const view = new View();
            const begun = [];
            const isNewest = view.begin("answer");
            view.close();
            view.atEnd(() => begun.push("end"));
            view.later("control", 0, () => begun.push("timer"));
            view.listen(window, "resize", () => begun.push("listener"));
            view.follow(() => begun.push("change")).changed();
            const asked = await view.ask("info").catch(({ name }) => name);
            view.fail(new Error("a notice"));
            dispatchEvent(new Event("resize"));
            await new Promise((then) => setTimeout(then, 100));
            return [...begun, asked, isNewest(), document.getElementById("notice").textContent];
        }"""
    )
    assert begun == ["end", "AbortError", False, ""]


def test_an_older_request_of_a_view_knows_that_another_one_for_the_same_has_begun(site: Site, page: Page) -> None:
    site.visit(page, "#/sql")
    found = page.evaluate(
        """async () => {
            const { View } = await import("./static/js/views/view.js");
            const view = new View();
            const [first, other, second] = ["lines", "table", "lines"].map((what) => view.begin(what));
            return [first(), other(), second()];
        }"""
    )
    assert found == [False, True, True]
