"""The page in headless Chromium: 4 runs of 8 ranks, 10 metrics and 2,000 steps, and the data of bench_store.

From opening the signed-in page until the first curve is drawn, and until all panels of the first screen are; bytes on
the wire, as compressed; the heap after a collection; bytes while nothing changes. See bench_store.py for
`CHIPLOG_BENCH_ROOT`.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from chiplog.page.access import Access
from chiplog.page.server import PageServer
from chiplog.page.source import Source
from chiplog_collector.receiver.commit import CommitBuilder
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.bench.bench_store import LOG_ID, store
from tests.bench.figure import Figure, Node
from tests.bench.large_store import BEGUN_US, Writer, write_large_run

CHROMIUM = "/usr/bin/chromium"
REPEATS = 5
IDLE_S = 10.0
SETTLED_S = 0.5  # without a new byte the first screen is complete
DRAWN = ".uplot canvas"
SIZE: Any = {"width": 1440, "height": 900}


def write_small_store(root: Path) -> None:
    """Four runs as the peers were measured with."""
    place = paths_for_root(root)
    ensure_private_dir(place.collector)
    log = SegmentLog(place.collector / "log", LOG_ID)
    receipt = CommitBuilder({}).receipt_record(0)
    log.append(receipt.kind, receipt.payload)
    log.commit()
    log.close()
    writer = Writer(place.index, LOG_ID)
    for number in range(4):
        write_large_run(writer, f"run-{number}", BEGUN_US + number * 1_000_000_000, labels=8, keys=10, n_steps=2_000)
    writer.database.checkpoint()
    writer.database.close()


@contextmanager
def page_of(root: Path) -> Iterator[PageServer]:
    """Serve a directory whose collector runs."""
    node = Node(root, agent=False)
    server = PageServer(Source(dir=str(root)), Access(), port=0)
    server.start()
    try:
        yield server
    finally:
        server.close()
        node.stop()


class Visit:
    """One page in a browser context of its own, and the bytes that it received."""

    def __init__(self, browser: Browser, server: PageServer) -> None:
        self.context = browser.new_context(viewport=SIZE)
        self.page: Page = self.context.new_page()
        self.page.goto(server.new_address())
        self.origin = f"http://127.0.0.1:{server.port}/"
        self.n_bytes = 0
        self.last_at = time.perf_counter()
        self.wire = self.context.new_cdp_session(self.page)
        self.wire.send("Network.enable")
        self.wire.on("Network.dataReceived", self._on_data)

    def _on_data(self, event: dict[str, Any]) -> None:
        self.n_bytes += event["encodedDataLength"]
        self.last_at = time.perf_counter()

    def open(self, fragment: str) -> tuple[float, float]:
        """Open a view; return the seconds until the first curve, and until nothing more comes."""
        self.page.goto("about:blank")
        self.n_bytes = 0
        begun = self.last_at = time.perf_counter()
        self.page.goto(self.origin + fragment, wait_until="commit")
        self.page.wait_for_selector(DRAWN)
        first = time.perf_counter() - begun
        while time.perf_counter() - self.last_at < SETTLED_S:
            self.page.wait_for_timeout(50)
        return first, self.last_at - begun

    def heap_bytes(self) -> float:
        self.wire.send("HeapProfiler.collectGarbage")
        return float(self.wire.send("Runtime.getHeapUsage")["usedSize"])

    def close(self) -> None:
        self.context.close()


def visits(browser: Browser, server: PageServer, fragment: str) -> tuple[list[float], list[float], Visit]:
    """Open a view several times, each in a new context; return both times of each, and the last visit."""
    firsts, alls = [], []
    for number in range(REPEATS):
        visit = Visit(browser, server)
        first, whole = visit.open(fragment)
        firsts.append(first)
        alls.append(whole)
        if number < REPEATS - 1:
            visit.close()
    return firsts, alls, visit


def measure() -> list[Figure]:
    figures: list[Figure] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with tempfile.TemporaryDirectory() as directory:
            write_small_store(Path(directory))
            with page_of(Path(directory)) as server:
                time.sleep(6.0)  # the collector's parser of queries has warmed up
                firsts, alls, visit = visits(browser, server, "#/run/run-1/curves")
                n_bytes = visit.n_bytes
                before = visit.n_bytes
                visit.page.wait_for_timeout(1000 * IDLE_S)
                idle = visit.n_bytes - before
                heap = visit.heap_bytes()
                visit.close()
        spread = f"{min(firsts):.2f} to {max(firsts):.2f} s of {REPEATS} visits"
        figures += [
            Figure("first curve of a run of 8 ranks", statistics.median(firsts), "s", at_most=0.8, yardstick=spread),
            Figure("its first screen", statistics.median(alls), "s", at_most=1.2),
            Figure("bytes on the wire", n_bytes / 1e6, "MB", at_most=1.0, yardstick="compressed, nothing cached"),
            Figure("heap", heap / 1e6, "MB", at_most=60),
            Figure(f"bytes in {IDLE_S:.0f} s without changes", idle, "B", at_most=0),
        ]
        with store() as (root, _), page_of(root) as server:
            time.sleep(6.0)
            firsts, alls, visit = visits(browser, server, "#/run/large-1/curves")
            visit.close()
            figures += [
                Figure("first curve of 50 metrics × 64 labels", statistics.median(firsts), "s", at_most=2.0),
                Figure("its first screen", statistics.median(alls), "s", at_most=2.0),
            ]
        browser.close()
    return figures
