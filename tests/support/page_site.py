"""The page of `chiplog ui`, served in this process on a database that a test filled."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, FloatRect, Locator, Page, Route, sync_playwright

from chiplog_page.server.access import Access
from chiplog_page.server.source import Source
from chiplog_page.web_server import PageServer
from tests.support.tools import require
from tests.support.waiting import WAIT_MS, wait_until

CHROMIUM = "chromium"
HEADLESS_SHELL = "chromium-headless-shell"  # the same pages with half of the CPU time


class Site:
    """A server of the page.

    Args:
        root: The CHIPLOG_DIR that it shows.
        may_start: Whether it may start daemons for waiting journals.
        url: The address of a collector, which it then asks, and not the files of the directory.
        proxy: Path of the proxy that is before it.
    """

    def __init__(
        self, root: Path, *, may_start: bool = False, url: str | None = None, proxy: str | None = None
    ) -> None:
        self.root = root
        source = Source(url, None if url else str(root), may_start=may_start)
        self.server = PageServer(source, Access(), port=0, proxy=proxy)
        self.base = f"http://127.0.0.1:{self.server.port}/"
        self._signed_in: set[Page] = set()

    def visit(self, page: Page, fragment: str = "") -> None:
        """Load the page anew with a fragment such as `#/runs?filter=a`, signed in."""
        if page in self._signed_in:
            page.goto("about:blank")
        else:  # by a request that shares the cookies: to show the first view would cost as much as most tests
            assert page.context.request.get(self.server.new_address()).ok
            self._signed_in.add(page)
        page.goto(self.base + fragment)

    @contextmanager
    def running(self) -> Iterator["Site"]:
        """Serve until the end of the block."""
        self.server.start()
        try:
            yield self
        finally:
            self.server.close()


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Run the browser of the system: a Chromium without windows, or one that need not show them."""
    path = shutil.which(HEADLESS_SHELL)
    if path is None:
        require(CHROMIUM)  # first: Playwright's driver needs libraries that come with it
    # The sandbox refuses to run as root; /dev/shm of a container is too small for it.
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path or shutil.which(CHROMIUM), args=arguments)
        yield browser
        browser.close()


@contextmanager
def opened_page(browser: Browser, errors: list[str]) -> Iterator[Page]:
    """Open an empty page of 1,280 pixels in a context of its own; its errors are appended to a list."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    page = context.new_page()
    watch(page, errors)
    yield page
    context.close()


def hold(page: Page, pattern: str, **options: Any) -> list[Route]:
    """Return the list of the requests that match a pattern: none of them is answered by itself."""
    held: list[Route] = []
    page.route(pattern, lambda route: held.append(route), **options)
    return held


def first_of(held: list[Route], page: Page) -> Route:
    """Return the first request that a route holds, once there is one."""
    wait_until(lambda: held or page.wait_for_timeout(50), "a request that is held")
    return held[0]


def let_go(page: Page, route: Route) -> None:
    """Let a request that was held be answered, and wait until the page has handled the answer."""
    with page.expect_response(route.request.url) as answered:
        route.continue_()
    answered.value.finished()
    page.evaluate("new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")


def refuse(page: Page, pattern: str, message: str, kind: str = "busy", status: int = 503, **options: Any) -> None:
    """Answer the requests that match a pattern with an error."""
    error = {"error": {"kind": kind, "message": message}}
    page.route(pattern, lambda route: route.fulfill(status=status, json=error), **options)


def box_of(element: Locator) -> FloatRect:
    """Return where an element is on the screen."""
    box = element.bounding_box()
    assert box is not None
    return box


def drag(page: Page, first: tuple[float, float], last: tuple[float, float]) -> None:
    """Drag the mouse from one place of the screen to another."""
    page.mouse.move(*first)
    page.mouse.down()
    page.mouse.move(*last, steps=3)
    page.mouse.up()


def watch(page: Page, errors: list[str]) -> None:
    """Append a page's errors to a list: exceptions, console errors, violations of the policy.

    Chromium also reports each answer that is an error; a test of one clears the list.
    """

    def on_message(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(f"{message.text} ({message.location['url']})")

    page.on("pageerror", lambda error: errors.append(f"exception: {error}"))
    page.on("console", on_message)
    page.set_default_timeout(WAIT_MS)
