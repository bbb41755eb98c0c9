"""From log() to visible in SQL, at eight ranks, twenty steps a second, twenty metrics; a client asks every 50 ms."""

import datetime
import time

import chiplog
from tests.bench.bench_ranks import RANK, RANKS
from tests.bench.figure import Figure, fresh_node, percentile, start_python

SECONDS = 25  # of the thirty for which the ranks log
WARM_UP_S = 10.0
PAUSE_S = 0.05
EPOCH = datetime.datetime(1970, 1, 1)


def measure() -> list[Figure]:
    assert "range(600)" in RANK
    latencies: list[float] = []
    queries: list[float] = []
    with fresh_node() as node:
        ranks = [start_python(RANK, node.environ, rank) for rank in range(RANKS)]
        newest: dict[str, float] = {}
        with chiplog.connect(dir=node.place.root) as client:
            begun = time.monotonic()
            deadline = begun + SECONDS
            while time.monotonic() < deadline:
                before = time.time()
                rows = client.sql(
                    "SELECT label, ts FROM metrics WHERE key = 'train/metric_0' AND step >= "
                    "(SELECT max(step) - 40 FROM metrics WHERE key = 'train/metric_0')"
                ).tuples()
                seen_at = time.time()
                queries.append(seen_at - before)
                for label, ts in rows:
                    logged = (ts - EPOCH).total_seconds()
                    if label in newest and logged > newest[label] and time.monotonic() > begun + WARM_UP_S:
                        latencies.append(seen_at - logged)
                for label, ts in rows:
                    newest[label] = max(newest.get(label, 0.0), (ts - EPOCH).total_seconds())
                time.sleep(PAUSE_S)
        for process in ranks:
            process.communicate()
    beside = f"{len(latencies)} events; of it the query itself p50 {percentile(queries, 0.5) * 1e3:.0f} ms"
    return [
        Figure("log() to visible in SQL, p50", percentile(latencies, 0.5) * 1e3, "ms", at_most=150, yardstick=beside),
        Figure("log() to visible in SQL, p99", percentile(latencies, 0.99) * 1e3, "ms", at_most=400, yardstick=beside),
    ]
