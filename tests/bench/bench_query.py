"""Queries of 1.6 million points, while nothing is recorded: the first one, one row, and twenty thousand values."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import duckdb

import chiplog
from chiplog_schemas.query.query_messages import disable_faulty_optimizers
from tests.bench.figure import Figure, Node, python, start_python

RANKS = 4
STEPS = 20_000
KEYS = 20
CLIENTS = 7
COLLECTORS = 3
REPEATS = 40
DELIVERED_S = 120.0
IDLE_S = 6.0  # the collector's parser of queries has warmed up

RANK = """
import sys, time, chiplog
rank = int(sys.argv[1])
run = chiplog.init(project="bench", run_id="queries", label=f"rank{rank}", primary=rank == 0)
for step in range(20_000):
    run.log({f"train/metric_{i}": 0.1 * step + i for i in range(20)}, step=step)
    if step % 200 == 0:
        time.sleep(0.02)
run.finish()
"""
assert f"range({STEPS:_})" in RANK and f"range({KEYS})" in RANK

# Times, in seconds, of a client's first query with its connection, and of later ones.
CLIENT = """
import statistics, sys, time, chiplog
begun = time.perf_counter()
client = chiplog.connect(dir=sys.argv[1])
client.sql("SELECT 1 AS a").rows()
took = [time.perf_counter() - begun]
for _ in range(20):
    begun = time.perf_counter()
    client.sql("SELECT 1 AS a").rows()
    took.append(time.perf_counter() - begun)
print((took[0], statistics.median(took[1:])))
"""

ONE_ROW = "SELECT * FROM metrics WHERE run_id = 'queries' AND label = 'rank1' AND key = 'train/metric_7' AND step = ?"
VALUES = "SELECT step, ts, value FROM metrics WHERE run_id = 'queries' AND label = 'rank1' AND key = 'train/metric_7'"


def record(root: Path) -> None:
    """Record the points and wait until the database has them all."""
    node = Node(root)
    for rank in [start_python(RANK, node.environ, number) for number in range(RANKS)]:
        rank.communicate()
    deadline = time.monotonic() + DELIVERED_S
    with chiplog.connect(dir=root) as client:
        while client.sql("SELECT count(*) FROM metrics").tuples() != [(RANKS * STEPS * KEYS,)]:
            if time.monotonic() > deadline:
                raise TimeoutError("the points did not reach the database")
            time.sleep(0.2)
    node.stop()


def milliseconds(ask: Callable[[], Any], convert: Callable[[Any], object]) -> float:
    begun = time.perf_counter()
    convert(ask())
    return 1e3 * (time.perf_counter() - begun)


def first_queries(root: Path, clients: int) -> list[tuple[float, float]]:
    """(first query, a later empty one), in milliseconds, of clients of a collector that was idle."""
    node = Node(root, agent=False)
    time.sleep(IDLE_S)
    found = [python(CLIENT, node.environ, str(root)) for _ in range(clients)]
    node.stop()
    return [(1e3 * first, 1e3 * later) for first, later in found]


def paired(root: Path) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """(one row, the same from plain DuckDB) and (values as rows, as Arrow), in milliseconds, in turns."""
    with tempfile.TemporaryDirectory() as copies:
        copy = Path(copies) / "index.duckdb"
        shutil.copy(root / "collector" / "index.duckdb", copy)
        plain = duckdb.connect(str(copy), read_only=True)
        disable_faulty_optimizers(plain)
        node = Node(root, agent=False)
        one, values = [], []
        rows, arrow, fetchall = map(methodcaller, ("rows", "arrow", "fetchall"))
        with chiplog.connect(dir=root) as client:
            for number in range(REPEATS):
                step = [number * STEPS // REPEATS]
                row = milliseconds(partial(client.sql, ONE_ROW, step), rows)
                one.append((row, milliseconds(partial(plain.execute, ONE_ROW, step), fetchall)))
                many = milliseconds(partial(client.sql, VALUES), rows)
                values.append((many, milliseconds(partial(client.sql, VALUES), arrow)))
        node.stop()
        plain.close()
    return one, values


def medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(first for first, _ in pairs), statistics.median(second for _, second in pairs)


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        record(root)
        of_collector, empty = medians([first_queries(root, 1)[0] for _ in range(COLLECTORS)])
        of_client, later = medians(first_queries(root, CLIENTS)[1:])
        one, values = paired(root)
    ours, plain = medians(one)
    rows, arrow = medians(values)
    return [
        Figure(
            "first query of a collector, connection included",
            of_collector,
            "ms",
            yardstick=f"an empty query later: {empty:.1f} ms",
        ),
        Figure(
            "first query of a client, connection included",
            of_client,
            "ms",
            at_most=60,
            yardstick=f"an empty query later: {later:.1f} ms",
        ),
        Figure(
            "one row of metrics by run, label, key, step, index idle",
            ours,
            "ms",
            at_most=12,
            yardstick=f"plain DuckDB, same file and view: {plain:.1f} ms",
        ),
        Figure(
            f"{STEPS:,} values as rows()",
            rows,
            "ms",
            at_most=70,
            yardstick=f"as Arrow: {arrow:.1f} ms",
        ),
    ]
