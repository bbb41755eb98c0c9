"""Pages that are open while ranks log: how soon a curve has a value, the page's memory, and what pages cost the ranks.

Pages are compared twice: with their browsers on this machine, which need more of it than all of chiplog, and without:
then a process sends what the pages send, as if their browsers were elsewhere.

`CHIPLOG_BENCH_LIVE_S` is how long the page stays open for its memory, 600 s if not set; `CHIPLOG_BENCH_PAIRS` is the
number of pairs, 10 if not set.
"""

import itertools
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil
from playwright.sync_api import Browser

import chiplog
from chiplog_page.web_server import PageServer
from tests.bench.bench_page import DRAWN, Visit, chromium, served
from tests.bench.bench_readers import visible
from tests.bench.figure import Figure, Node, fresh_node, percentile, start_python

PAGES = 8
PAIRS = int(os.environ.get("CHIPLOG_BENCH_PAIRS", "10"))
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
    return start_python(RANK, node.environ, run, number, seconds, per_second)


def renderer_bytes() -> int:
    """Return the private memory of the largest renderer process of this benchmark: heap, DOM and canvases."""
    sizes = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if "--type=renderer" in process.cmdline():
                sizes.append(process.memory_full_info().uss)
    return max(sizes)


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
    memory = renderer_bytes()
    visit.close()
    rank.wait()
    seen = f"{len(ages)} values, {len(changes)} changes, median {statistics.median(ages):.2f} s"
    return [
        Figure("a curve has a logged value, p95", percentile(ages, 0.95), "s", at_most=1.0, yardstick=seen),
        Figure(f"heap after {LIVE_S:.0f} s live", heap / 1e6, "MB", at_most=300),
        Figure("memory of its renderer process", memory / 1e6, "MB", at_most=300, yardstick="resident, not shared"),
    ]


def wait_for_values(node: Node, run: str) -> None:
    with chiplog.connect(dir=node.place.root) as client:
        while not client.sql("SELECT 1 FROM keys WHERE run_id = $run LIMIT 1", {"run": run}).rows():
            time.sleep(0.2)


# Sends what open pages send: for each of them a stream of changes and, after a change, the request for new buckets.
PAGES_ELSEWHERE = """
import http.client, sys, threading, time
port, cookie, *paths = sys.argv[1:]

def follow(path):
    def connect():
        return http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
    stream, requests = connect(), connect()
    stream.request("GET", "/api/live", headers={"Cookie": cookie})
    for line in stream.getresponse():
        if line.startswith(b"data: "):
            begun = time.monotonic()
            requests.request("GET", path, headers={"Cookie": cookie, "Accept-Encoding": "gzip"})
            requests.getresponse().read()
            time.sleep(max(0.5, 4 * (time.monotonic() - begun)))

for path in paths:
    threading.Thread(target=follow, args=(path,), daemon=True).start()
sys.stdin.read()
"""
LIVE_REQUEST = "performance.getEntriesByType('resource').find(({name}) => /curves.*first=/.test(name))?.name"


@dataclass
class Ingest:
    """What ranks see: p99 of log() in µs, and p99 of the seconds from log() until SQL has a value."""

    log_us: float
    visible_s: float

    def over(self, before: "Ingest") -> "Ingest":
        return Ingest(self.log_us / before.log_us, self.visible_s / before.visible_s)


def ingest(node: Node, run: str) -> Ingest:
    """Measure two ranks that call log() 100 times a second, and a third one whose values a client waits for."""
    ranks = [start_rank(node, run, number, PAIR_S, 100) for number in range(2)]
    latencies = visible(node.place.root, run, PAIR_S)
    return Ingest(
        max(float(rank.communicate()[0].splitlines()[-1]) / 1e3 for rank in ranks),
        percentile(latencies, 0.99),
    )


def open_pages(browser: Browser, server: PageServer, run: str) -> list[Visit]:
    visits = [Visit(browser, server) for _ in range(PAGES)]
    for visit in visits:
        visit.page.goto(f"{visit.origin}#/run/{run}/curves")
    for visit in visits:
        visit.page.wait_for_selector(DRAWN)
    return visits


def live_path(visit: Visit) -> str:
    """Wait for the first live request of a page, and return its path."""
    while not (found := visit.page.evaluate(LIVE_REQUEST)):
        visit.page.wait_for_timeout(100)
    return "/" + str(found).removeprefix(visit.origin)


@contextmanager
def pages_elsewhere(browser: Browser, server: PageServer, run: str) -> Iterator[None]:
    """Open pages, note their live requests and the cookie of one, close them, and repeat the requests."""
    visits = open_pages(browser, server, run)
    paths = [live_path(visit) for visit in visits]
    cookies = visits[0].context.cookies()
    cookie = "; ".join(f"{one.get('name')}={one.get('value')}" for one in cookies)
    for visit in visits:
        visit.close()
    command = [sys.executable, "-P", "-c", PAGES_ELSEWHERE, str(server.port), cookie, *paths]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as pages:
        try:
            yield
        finally:
            pages.terminate()


@contextmanager
def pages_here(browser: Browser, server: PageServer, run: str) -> Iterator[None]:
    visits = open_pages(browser, server, run)
    try:
        yield
    finally:
        for visit in visits:
            visit.close()


def beside(browser: Browser, server: PageServer, node: Node) -> list[Figure]:
    """Compare ranks alone with ranks beside open pages of their run, in pairs."""
    figures = []
    for where, pages in (("elsewhere", pages_elsewhere), ("here", pages_here)):
        alone, watched = [], []
        for number in range(PAIRS):
            alone.append(ingest(node, f"alone-{where}-{number}"))
            run = f"watched-{where}-{number}"
            first = start_rank(node, run, 9, PAIR_S + 20, 10)  # a run to open
            wait_for_values(node, run)
            with pages(browser, server, run):
                watched.append(ingest(node, run))
            first.wait()
        ratios = [after.over(before) for before, after in zip(alone, watched, strict=True)]
        figures += [
            ratio_figure(f"log(), {PAGES} browsers {where}", [ratio.log_us for ratio in ratios],
                         [one.log_us for one in alone], [one.log_us for one in watched], "µs"),
            ratio_figure(f"log() to SQL, {PAGES} browsers {where}", [ratio.visible_s for ratio in ratios],
                         [1e3 * one.visible_s for one in alone], [1e3 * one.visible_s for one in watched], "ms"),
        ]  # fmt: skip
    return figures


def upper_end(ratios: list[float]) -> float:
    """Return the upper end of the 95 % interval of the median ratio, by 10,000 resamples of the pairs."""
    draw = random.Random(1)
    return percentile([statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(10_000)], 0.975)


def ratio_figure(name: str, ratios: list[float], alone: list[float], watched: list[float], unit: str) -> Figure:
    """Return the upper end of the ratio over the pairs."""
    medians = f"median {statistics.median(alone):.0f} {unit} alone, {statistics.median(watched):.0f} beside them"
    spread = f"{medians}; ratio: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
    yardstick = f"upper end of 95 %; {spread} in {len(ratios)} pairs"
    return Figure(f"p99 of {name}", upper_end(ratios), "times", at_most=1.25, yardstick=yardstick)


def measure() -> list[Figure]:
    with fresh_node() as node, served(node.place.root) as server, chromium() as browser:
        return follow(browser, server, node) + beside(browser, server, node)
