"""Pages that are open while ranks log: how soon a curve has a value, the page's memory, and what pages cost the ranks.

`CHIPLOG_BENCH_LIVE_S` is how long the page stays open for its memory, 600 s if not set.
"""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

import chiplog
from chiplog.page.access import Access
from chiplog.page.server import PageServer
from chiplog.page.source import Source
from tests.bench.bench_page import CHROMIUM, DRAWN, Visit
from tests.bench.figure import Figure, Node, percentile

PAGES = 8
PAIRS = 10
PAIR_S = 8.0
LATENCY_S = 30.0
LIVE_S = float(os.environ.get("CHIPLOG_BENCH_LIVE_S", "600"))

# One value is the seconds since the start, so the page shows which call it has. 20 calls a second.
RANK = """
import sys, time, chiplog
run = chiplog.init(project="bench", run_id=sys.argv[1], label=f"rank{sys.argv[2]}", primary=sys.argv[2] == "0")
took, step, begun = [], 0, time.time()
print(begun, flush=True)
while (now := time.time()) < begun + float(sys.argv[3]):
    data = {f"train/metric_{i}": 0.1 * i for i in range(10)} | {"clock": now - begun}
    before = time.perf_counter_ns()
    run.log(data, step=step)
    took.append(time.perf_counter_ns() - before)
    step += 1
    time.sleep(max(0.0, begun + step / float(sys.argv[4]) - time.time()))
run.finish()
took.sort()
print(took[len(took) * 99 // 100])
"""
# Times at which the legend of the clock's panel has changed, in seconds since 1970, each with what it shows.
WATCH = """
() => {
  window.changes = [];
  const value = () => Number(document.querySelector('[data-key="clock"] .curve-line b')?.textContent);
  const look = () => {
    const now = value();
    if (Number.isFinite(now) && now !== window.changes.at(-1)?.[1]) {
      window.changes.push([(performance.timeOrigin + performance.now()) / 1000, now]);
    }
    requestAnimationFrame(look);
  };
  look();
}
"""


def start_rank(node: Node, run: str, number: int, seconds: float, per_second: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-P", "-c", RANK, run, str(number), str(seconds), str(per_second)]
    return subprocess.Popen(command, env=node.environ, stdout=subprocess.PIPE, text=True)


def follow(browser: Browser, server: PageServer, node: Node) -> list[Figure]:
    """Watch a run while it logs: the age of each value when its curve shows it, and the heap at the end."""
    run = "followed"
    rank = start_rank(node, run, 0, max(LIVE_S, LATENCY_S) + 20, 20)
    assert rank.stdout is not None
    begun = float(rank.stdout.readline())
    time.sleep(8.0)
    visit = Visit(browser, server)
    visit.open(f"#/run/{run}/curves")
    visit.page.evaluate(WATCH)
    visit.page.wait_for_timeout(1000 * LATENCY_S)
    changes: list[list[float]] = visit.page.evaluate("window.changes")
    ages: list[float] = []
    for (_, before), (at, shown) in itertools.pairwise(changes):
        # All calls after the last shown value came into sight now: 20 a second.
        calls = max(1, round((shown - before) * 20))
        ages += [at - begun - (shown - number / 20) for number in range(calls)]
    visit.page.evaluate("window.changes = null")
    visit.page.wait_for_timeout(1000 * max(0.0, LIVE_S - LATENCY_S))
    heap = visit.heap_bytes()
    visit.close()
    rank.wait()
    seen = f"{len(ages)} values, {len(changes)} changes, median {statistics.median(ages):.2f} s"
    return [
        Figure("a curve has a logged value, p95", percentile(ages, 0.95), "s", at_most=1.0, yardstick=seen),
        Figure(f"heap after {LIVE_S:.0f} s live", heap / 1e6, "MB", at_most=300),
    ]


def wait_for_values(node: Node, run: str) -> None:
    with chiplog.connect(dir=node.place.root) as client:
        while not client.sql("SELECT 1 FROM keys WHERE run_id = $run LIMIT 1", {"run": run}).rows():
            time.sleep(0.2)


def p99_us(node: Node, run: str) -> float:
    """Return the p99 of log() of two ranks, 100 calls a second each."""
    ranks = [start_rank(node, run, number, PAIR_S, 100) for number in range(2)]
    return max(float(rank.communicate()[0].splitlines()[-1]) / 1e3 for rank in ranks)


def beside(browser: Browser, server: PageServer, node: Node) -> list[Figure]:
    """Compare ranks alone with ranks beside open pages of their run, in pairs."""
    alone, watched = [], []
    for number in range(PAIRS):
        alone.append(p99_us(node, f"alone-{number}"))
        run = f"watched-{number}"
        first = start_rank(node, run, 9, PAIR_S + 12, 10)  # a run to open
        wait_for_values(node, run)
        open_pages = [Visit(browser, server) for _ in range(PAGES)]
        for visit in open_pages:
            visit.page.goto(f"{visit.origin}#/run/{run}/curves")
        for visit in open_pages:
            visit.page.wait_for_selector(DRAWN)
        watched.append(p99_us(node, run))
        for visit in open_pages:
            visit.close()
        first.wait()
    ratios = [after / before for before, after in zip(alone, watched, strict=True)]
    medians = f"median {statistics.median(alone):.0f} µs alone, {statistics.median(watched):.0f} beside {PAGES} pages"
    return [
        Figure(f"p99 of log() beside {PAGES} pages, median of {PAIRS}", statistics.median(ratios), "times",
               at_most=1.25, yardstick=medians),
        Figure("and the largest of them", max(ratios), "times", at_most=1.25),
    ]  # fmt: skip


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        node = Node(Path(directory))
        server = PageServer(Source(dir=directory), Access(), port=0)
        server.start()
        try:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            figures = follow(browser, server, node) + beside(browser, server, node)
            browser.close()
        finally:
            server.close()
            node.stop()
    return figures
