"""The page in headless Chromium: 4 runs of 8 ranks, 10 metrics and 2,000 steps, and the data of bench_store.

From opening the signed-in page, with an empty cache, until the first curve is drawn, and until all panels of the first
screen are; bytes on the wire, as compressed; the heap after a collection; bytes while nothing changes; a zoom; the
frames while a chart is moved. See bench_store.py for `CHIPLOG_BENCH_ROOT`, and bench_live_page.py for runs that go on.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from chiplog_page.server.access import Access
from chiplog_page.server.source import Source
from chiplog_page.server.static_files import STATIC, compressed
from chiplog_page.web_server import PageServer
from chiplog_schemas.paths import paths_for_root
from tests.bench.bench_store import LOG_ID, store, write_log
from tests.bench.figure import Figure, Node, percentile
from tests.bench.large_store import BEGUN_US, Writer, write_large_run

CHROMIUM = "/usr/bin/chromium"
REPEATS = 5
IDLE_S = 10.0
SETTLED_S = 0.5  # without a new byte the first screen is complete
DRAWN = ".uplot canvas"
SIZE: Any = {"width": 1440, "height": 900}
WIDE: Any = {"width": 2560, "height": 1440}  # shows 15 panels
# Name, labels, metrics.
RUNS = [(f"run-{number}", 8, 10) for number in range(4)]  # as the peers were measured with
PANNED = ("run-pan", 16, 15)  # 2,000 steps in buckets of 8: 60,000 points on a wide screen
# When the frame with the first curve has been drawn, in ms since the navigation: a question from outside of the page
# waits for the page's main thread.
FIRST_CURVE = f"""
new MutationObserver((changes, observer) => {{
  if (!document.querySelector("{DRAWN}")) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => (window.firstCurveMs = performance.now())));
}}).observe(document, {{ childList: true, subtree: true }});
"""
ZOOM = """
async () => {
  const seen = [...document.querySelectorAll(".panel.curve")]
    .filter((panel) => panel.querySelector("canvas") && panel.getBoundingClientRect().top < innerHeight);
  const texts = () => seen.map((panel) => panel.querySelector(".curve-notes").textContent);
  const [first, last] = ["first step", "last step"].map((name) => document.querySelector(`[aria-label="${name}"]`));
  const before = texts();
  const begun = performance.now();
  [first.value, last.value] = [800, 999];
  last.dispatchEvent(new Event("change"));
  while (texts().some((text, at) => text === before[at])) await new Promise(requestAnimationFrame);
  return performance.now() - begun;
}
"""
# All values of the lines in the page's own answers.
POINTS = """
async () => {
  let n = 0;
  for (const { name } of performance.getEntriesByType("resource").filter(({ name }) => /\\/curves\\?/.test(name))) {
    const curves = await (await fetch(name)).json();
    for (const { mean } of curves.flatMap(({ lines }) => lines ?? [])) n += mean.filter((one) => one !== null).length;
  }
  return n;
}
"""
MOVE = """
async () => {
  const over = document.querySelector(".u-over");
  const { left, top, width } = over.getBoundingClientRect();
  const at = (share) => ({ clientX: left + share * width, clientY: top + 40, bubbles: true, shiftKey: true });
  over.dispatchEvent(new MouseEvent("mousedown", at(0.5)));
  const frames = [];
  const begun = performance.now();
  let before = begun;
  while (before < begun + 2000) {
    document.dispatchEvent(new MouseEvent("mousemove", at(0.5 + 0.3 * Math.sin((before - begun) / 300))));
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - before);
    before = now;
  }
  document.dispatchEvent(new MouseEvent("mouseup", at(0.5)));
  return frames.slice(1);
}
"""


def write_small_store(root: Path, runs: list[tuple[str, int, int]]) -> None:
    """Write runs of 2,000 steps."""
    place = paths_for_root(root)
    write_log(place)
    writer = Writer(place.index, LOG_ID)
    for number, (run, labels, keys) in enumerate(runs):
        write_large_run(writer, run, BEGUN_US + number * 1_000_000_000, labels=labels, keys=keys, n_steps=2_000)
    writer.database.checkpoint()
    writer.database.close()


@contextmanager
def served(root: Path) -> Iterator[PageServer]:
    """Serve a directory."""
    server = PageServer(Source(dir=str(root)), Access(), port=0)
    server.start()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """One page in a browser context of its own, and the bytes that it received."""

    def __init__(self, browser: Browser, server: PageServer) -> None:
        self.context = browser.new_context(viewport=SIZE)
        self.context.add_init_script(FIRST_CURVE)
        self.page: Page = self.context.new_page()
        self.page.goto(server.new_address())
        self.origin = f"http://127.0.0.1:{server.port}/"
        self.n_bytes = 0
        self.last_at = time.perf_counter()
        self.wire = self.context.new_cdp_session(self.page)
        self.wire.send("Network.enable")
        self.wire.send("Network.setCacheDisabled", {"cacheDisabled": True})
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
        self.page.wait_for_function("window.firstCurveMs")
        first = float(self.page.evaluate("window.firstCurveMs")) / 1e3
        while time.perf_counter() - self.last_at < SETTLED_S:
            self.page.wait_for_timeout(50)
        return first, self.last_at - begun

    def first_paint_s(self) -> float:
        return float(self.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")) / 1e3

    def zoom_s(self) -> float:
        """Zoom to a tenth of the steps; return the seconds until all panels on the screen have finer buckets."""
        return float(self.page.evaluate(ZOOM)) / 1e3

    def frames_s(self) -> list[float]:
        """Move all charts by one for two seconds; return the seconds between frames."""
        return [frame / 1e3 for frame in self.page.evaluate(MOVE)]

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


def code_bytes() -> int:
    """Return the size of all JavaScript and CSS, each file compressed as the server does."""
    files = [path for path in Path(STATIC).rglob("*") if path.suffix in (".js", ".css")]
    return sum(len(compressed(str(path), path.stat().st_mtime_ns)) for path in files)


def small(browser: Browser) -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        write_small_store(Path(directory), [*RUNS, PANNED])
        with Node(Path(directory), agent=False), served(Path(directory)) as server:
            time.sleep(6.0)  # the collector's parser of queries has warmed up
            firsts, alls, visit = visits(browser, server, "#/run/run-1/curves")
            n_bytes = visit.n_bytes
            visit.page.wait_for_timeout(1000 * IDLE_S)
            idle = visit.n_bytes - n_bytes
            heap = visit.heap_bytes()
            zoom = visit.zoom_s()
            visit.close()
            wide = Visit(browser, server)
            wide.page.set_viewport_size(WIDE)
            wide.open(f"#/run/{PANNED[0]}/curves")
            n_points = int(wide.page.evaluate(POINTS))
            frames = wide.frames_s()
            wide.close()
    spread = f"{min(firsts):.2f} to {max(firsts):.2f} s of {REPEATS} visits"
    moved = f"{len(frames)} frames of {n_points:,} points, median {1e3 * statistics.median(frames):.0f} ms"
    return [
        Figure("first curve of a run of 8 ranks", statistics.median(firsts), "s", at_most=0.8, yardstick=spread),
        Figure("its first screen", statistics.median(alls), "s", at_most=1.2),
        Figure("bytes on the wire", n_bytes / 1e6, "MB", at_most=1.0, yardstick="compressed, nothing cached"),
        Figure("heap", heap / 1e6, "MB", at_most=60),
        Figure(f"bytes in {IDLE_S:.0f} s without changes", idle, "B", at_most=0),
        Figure("a zoom of six panels", 1e3 * zoom, "ms", at_most=300),
        Figure("a frame while charts move, p95", 1e3 * percentile(frames, 0.95), "ms", at_most=33, yardstick=moved),
        Figure("JavaScript and CSS", code_bytes() / 1e3, "kB", at_most=150, yardstick="compressed as it is sent"),
    ]


def large(browser: Browser) -> list[Figure]:
    with store() as (root, _), Node(root, agent=False), served(root) as server:
        time.sleep(6.0)
        firsts, alls, visit = visits(browser, server, "#/run/large-1/curves")
        paint = visit.first_paint_s()
        zoom = visit.zoom_s()
        visit.close()
    spread = f"{min(firsts):.2f} to {max(firsts):.2f} s of {REPEATS} visits"
    return [
        Figure("64 million points: first paint", paint, "s", at_most=1.0),
        Figure("first curve of 50 metrics × 64 labels", statistics.median(firsts), "s", at_most=2.0, yardstick=spread),
        Figure("its first screen", statistics.median(alls), "s", at_most=2.0),
        Figure("a zoom of six panels of it", 1e3 * zoom, "ms", at_most=300),
    ]


def measure() -> list[Figure]:
    with chromium() as browser:
        return small(browser) + large(browser)
