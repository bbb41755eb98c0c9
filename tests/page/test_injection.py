"""Markup in every word that a run may choose: each view shows it as text, and nothing of it runs.

Invariant: no dialog, no element or handler from a run, no request to another host, no violation of the policy.
"""

from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.marks import everyday
from tests.support.page_site import Site, box_of, opened_page
from tests.support.whole_run import MARKUP, fill_marked_runs, marked, run_id_of, store_whole_files

RUN, OTHER = (run_id_of(marked, number) for number in (1, 2))
ADDRESS = f"#/run/{quote(RUN, safe='')}"
# What the page itself never makes: elements that load or run, and attributes that run.
FOREIGN = """() => [...document.querySelectorAll("*")].filter((element) =>
    element.matches("iframe, object, embed, base, style, meta[http-equiv], svg[onload]")
    || element.matches("script:not([src^='static/'])")
    || element.matches("img:not([src^='blob:'])")
    || [...element.attributes].some(({ name }) => name.startsWith("on"))
    || ["href", "src", "action", "formaction", "xlink:href"].some((name) =>
        /^\\s*(javascript|data|vbscript):/i.test(element.getAttribute(name) ?? ""))
).map((element) => element.outerHTML.slice(0, 200))"""
WORD = MARKUP[: MARKUP.index(">") + 1]  # the part that each view shows


@pytest.fixture(scope="module")
def site(site_of: Callable[..., Site]) -> Site:
    site = site_of(fill_marked_runs)
    store_whole_files(site.root, marked)
    return site


@pytest.fixture(scope="module")
def found() -> list[str]:
    """Return what happened that must not happen."""
    return []


@pytest.fixture(scope="module")
def shared(browser: Browser, site: Site, found: list[str]) -> Iterator[Page]:
    """One page for all views: the browser loads its files once."""

    def on_request(url: str) -> None:
        if not url.startswith((site.base, f"blob:{site.base}", "about:", "data:image/")):
            found.append(f"request {url}")

    with opened_page(browser, found) as page:
        page.on("dialog", lambda dialog: (found.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda popup: found.append(f"window {popup.url}"))
        page.on("download", lambda download: found.append(f"download {download.url}"))
        page.on("request", lambda request: on_request(request.url))
        page.goto(site.server.new_address())
        yield page


def open_and_check(page: Page, site: Site, found: list[str], address: str, *places: str) -> None:
    """Open a view; each place is a selector of an element that shows the markup."""
    found.clear()
    page.goto("about:blank")
    page.goto(site.base + address)
    for place in places:
        expect(page.locator(place).filter(has_text=WORD).first).to_be_visible()
    check(page, found)


def check(page: Page, found: list[str]) -> None:
    page.evaluate("new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")
    assert page.evaluate(FOREIGN) == []
    assert [each for each in found if "the server responded with a status of 40" not in each] == []


def test_the_table_of_runs_and_its_dialogs_show_markup_as_text(site: Site, shared: Page, found: list[str]) -> None:
    key = quote(marked("lr"))
    open_and_check(
        shared, site, found, f"#/runs?group=project&config={key}&run={quote(RUN)}", ".rows .row a", ".heading"
    )
    for name in ("Edit", "Delete", "Columns…"):
        shared.get_by_role("button", name=name, exact=True).click()
        expect(shared.get_by_role("dialog")).to_be_visible()
        check(shared, found)
        shared.keyboard.press("Escape")
        expect(shared.get_by_role("dialog")).to_have_count(0)
    shared.get_by_role("searchbox", name="Filter runs").fill("size<<img/src=x/onerror=alert(1)>")
    expect(shared.locator("#filter-error")).to_contain_text("<img")
    check(shared, found)


def test_the_header_and_the_details_show_markup_as_text(site: Site, shared: Page, found: list[str]) -> None:
    open_and_check(
        shared, site, found, ADDRESS, "h1", ".run-header .facts", ".run-header .chip", ".run-failure, .verdict"
    )
    shared.locator(".run-details > summary").click()
    for title in ("Config", "Summary", "Environment", "Packages", "Notes"):
        panel = shared.locator(".run-details .panel").filter(has=shared.get_by_role("heading", name=title, exact=True))
        if title == "Packages":
            panel.get_by_role("button", name="Show all").click()
        expect(panel).to_contain_text(WORD)
    check(shared, found)


@pytest.mark.parametrize(
    ("tab", "places"),
    [
        ("curves", [".curve-groups h3", ".curve-groups"]),
        pytest.param(
            f"curves?with={quote(OTHER, safe='')}&x={quote('=' + marked('lr'))}",
            [".overlaid", "[aria-label='x axis']"],
            marks=pytest.mark.full,
        ),
        pytest.param("ranks", ["[aria-label='Who was slow']", "[aria-label='Labels']"], marks=pytest.mark.full),
        ("console", [".tab-console"]),
        pytest.param("events", [".tab-events"], marks=pytest.mark.full),
        pytest.param("media", [".tab-media"], marks=pytest.mark.full),
        pytest.param("files", [".tab-files"], marks=pytest.mark.full),
        pytest.param("system", [".tab-system"], marks=pytest.mark.full),
    ],
    ids=["curves", "overlaid", "ranks", "console", "events", "media", "files", "system"],
)
def test_each_tab_of_a_run_shows_markup_as_text(
    site: Site, shared: Page, found: list[str], tab: str, places: list[str]
) -> None:
    open_and_check(shared, site, found, f"{ADDRESS}/{tab}", *places)
    for picture in shared.locator("#content canvas").all()[:2]:  # what the pointer reads is drawn, too
        picture.scroll_into_view_if_needed()
        box = box_of(picture)
        shared.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
    check(shared, found)


@pytest.mark.parametrize(
    "name",
    everyday(1, ["drawing.svg", "page.html", "notes.txt", "scores.csv", "settings.json", "worst.table.json"]),
)
def test_each_preview_of_a_file_shows_markup_as_text(site: Site, shared: Page, found: list[str], name: str) -> None:
    stem, _, ending = name.partition(".")
    address = f"{ADDRESS}/files?file={quote(marked(stem) + '.' + ending)}"
    open_and_check(shared, site, found, address, "[aria-label='Preview']")
    content = shared.get_by_role("region", name="Preview").locator("pre, table").first
    expect(content).to_contain_text("onload='alert(6)'" if ending == "svg" else WORD[:4])
    check(shared, found)


def test_a_query_and_its_result_show_markup_as_text(site: Site, shared: Page, found: list[str]) -> None:
    query = quote(f"SELECT run_id AS \"{WORD}\", 1 AS n, notes FROM runs UNION ALL SELECT '', 2, ''")
    open_and_check(shared, site, found, f"#/sql?q={query}", ".table .head", ".table .rows")
    button = shared.get_by_role("button", name="Saved queries")
    button.click()
    menu = shared.locator(".menu")
    expect(menu).to_contain_text(marked("all runs").replace("\u202e", "[U+202E]").replace("\u202c", "[U+202C]"))
    check(shared, found)
    shared.keyboard.press("Escape")
    expect(menu).to_be_hidden()
    expect(button).to_be_focused()
    open_and_check(shared, site, found, f"#/sql?q={quote(MARKUP)}", "pre.error")


@pytest.mark.full
def test_a_comparison_shows_markup_as_text(site: Site, shared: Page, found: list[str]) -> None:
    address = f"#/compare?all=1&run={quote(RUN)}&run={quote(OTHER)}"
    open_and_check(shared, site, found, address, "[aria-label='Config']", "[aria-label^='Summary']", "thead")


@pytest.mark.full
def test_a_direction_override_does_not_turn_the_text_after_it(site: Site, shared: Page, found: list[str]) -> None:
    open_and_check(shared, site, found, ADDRESS, "h1")
    assert "\u202e" not in shared.locator("#content").inner_text()
    expect(shared.locator("h1")).to_contain_text("[U+202E]gnp")


def test_each_control_of_direction_is_visible(shared: Page) -> None:
    controls = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    text = "async text => (await import('./static/js/dom.js')).h('p', {}, text).textContent"
    shown = shared.evaluate(text, "".join(map(chr, controls)))
    assert shown == "".join(f"[U+{control:X}]" for control in controls)


@pytest.mark.parametrize(
    "address",
    [f"#/{quote(MARKUP, safe='')}", f"#/run/{quote(WORD, safe='')}", "#/%ff"],
    ids=["view", "run", "malformed"],
)
def test_markup_in_the_address_is_text(site: Site, shared: Page, found: list[str], address: str) -> None:
    found.clear()
    site.visit(shared, address)
    expect(shared.get_by_role("heading", level=1)).to_be_visible()
    check(shared, found)
