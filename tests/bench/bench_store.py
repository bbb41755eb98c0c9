"""64 million points and 10,000 small runs: how fast the index writes them, and the queries of queries.sql.

`CHIPLOG_BENCH_LARGE_RUNS` sets how many runs of 16 million points there are, `CHIPLOG_BENCH_ROOT` keeps the data.
"""

import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb

import chiplog
from chiplog_collector.receiver.commit import CommitBuilder
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from chiplog_schemas.query.query_messages import disable_faulty_optimizers
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.bench.bench_collector import bare_rate
from tests.bench.figure import Figure, Node
from tests.bench.large_store import write_store

LARGE_RUNS = int(os.environ.get("CHIPLOG_BENCH_LARGE_RUNS", "4"))
SMALL_RUNS = 10_000
REPEATS = 50
IDLE_S = 6.0  # the collector's parser of queries has warmed up
LOG_ID = bytes(16)
_TEXTS = re.compile(r"^-- ([^\n]+): (\d+)\n([^;]+);\n-- by hand\n([^;]+);", re.M)


def queries() -> list[tuple[str, float, str, str]]:
    """Return (name, goal in ms, text, text by hand) of each query."""
    text = (Path(__file__).parent / "queries.sql").read_text()
    return [(name, float(goal), sql, by_hand) for name, goal, sql, by_hand in _TEXTS.findall(text)]


def write_log(place: Paths) -> None:
    """Write a log of one record: the index accepts no file of another log."""
    ensure_private_dir(place.collector)
    log = SegmentLog(place.collector / "log", LOG_ID)
    receipt = CommitBuilder({}).receipt_record(0)
    log.append(receipt.kind, receipt.payload)
    log.commit()
    log.close()


@contextlib.contextmanager
def store() -> Iterator[tuple[Path, float | None]]:
    """Yield a data directory with the database, and the rate at which it was written; None if it was there."""
    kept = os.environ.get("CHIPLOG_BENCH_ROOT")
    with contextlib.nullcontext(kept) if kept else tempfile.TemporaryDirectory() as directory:
        place = paths_for_root(Path(directory))
        if place.index.exists():
            yield place.root, None
            return
        write_log(place)
        yield place.root, write_store(place.index, LOG_ID, LARGE_RUNS, SMALL_RUNS)


def p50(ask: Callable[[], Any]) -> float:
    """Return the median time of a warm query, in milliseconds."""
    took = []
    for _ in range(REPEATS + 1):
        begun = time.perf_counter()
        ask()
        took.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(took[1:])


def bytes_per_point(path: Path) -> float:
    with duckdb.connect(str(path), read_only=True) as connection:
        (rows,) = connection.execute("SELECT count(*) FROM base.metric_facts").fetchall()[0]
        blocks = connection.execute(
            "SELECT count(DISTINCT block_id) FROM (FROM pragma_storage_info('base.metrics') "
            "UNION ALL FROM pragma_storage_info('base.metrics_recent')) WHERE block_id >= 0"
        ).fetchall()
    return float(blocks[0][0] * 262_144 / rows)


def measure() -> list[Figure]:
    figures = []
    with store() as (root, rate), tempfile.TemporaryDirectory() as copies:
        if rate is not None:
            bare = bare_rate(Path(copies))
            yardstick = f"a bare sorted insert: {bare / 1e6:.2f} M, ratio {rate / bare:.2f}"
            figures.append(
                Figure("points/s with rollups and sorting", rate / 1e6, "M", at_least=0.8, yardstick=yardstick)
            )
        place = paths_for_root(root)
        copy = Path(copies) / "index.duckdb"
        shutil.copy(place.index, copy)
        figures.append(Figure("bytes of a point in its table", bytes_per_point(copy), "B", at_most=10))
        plain = duckdb.connect(str(copy), read_only=True)
        disable_faulty_optimizers(plain)
        node = Node(root, agent=False)
        time.sleep(IDLE_S)
        with chiplog.connect(dir=root) as client:
            for name, goal, sql, by_hand in queries():
                ours = p50(lambda sql=sql: client.sql(sql).arrow())
                hand = p50(lambda by_hand=by_hand: plain.execute(by_hand).fetchall())
                figures.append(Figure(name, ours, "ms", at_most=goal, yardstick=f"by hand {hand:.1f} ms"))
        show = [sys.executable, "-m", "chiplog_cli", "show", "large-1"]
        took = p50_of_command(show, node)
        figures.append(Figure("chiplog show of a run", took, "ms", at_most=600))
        node.stop()
        plain.close()
    return figures


def p50_of_command(command: list[str], node: Node, repeats: int = 7) -> float:
    took = []
    for _ in range(repeats):
        begun = time.perf_counter()
        subprocess.run(command, env=node.environ, check=True, stdout=subprocess.DEVNULL)
        took.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(took)
