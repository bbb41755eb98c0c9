"""Merge the pieces of one run of 64 million points in a store on this disk: CPU, memory and bytes.

`CHIPLOG_BENCH_PIECES` sets how many pieces of 2 million points there are; `CHIPLOG_BENCH_SERIES` in how many series.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.figure import Figure

PIECES = int(os.environ.get("CHIPLOG_BENCH_PIECES", "32"))
SERIES = int(os.environ.get("CHIPLOG_BENCH_SERIES", "3200"))
PIECE_ROWS = 2_000_000
GB = 1e9
# In processes of their own: each has its own peak of memory.
_WRITE = """
import sys
from pathlib import Path
import duckdb
from chiplog_collector.store.delta_store import Addition, DeltaStore
from chiplog_collector.store.parquet_files import write_rows
url, directory, pieces, series, rows = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
store, path = DeltaStore(url, "cd" * 16), directory / "piece.parquet"
steps = rows // series
with duckdb.connect() as engine:
    engine.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
    for piece in range(pieces):
        write_rows(engine.sql(f'''SELECT '{"cd" * 16}' AS log, {piece}::BIGINT AS number, 'run' AS run_id,
            lpad((i // {steps} % 64)::VARCHAR, 32, '0') AS producer, 'rank' || i // {steps} % 64 AS label,
            0 AS attempt, (i // {steps} % 64)::INTEGER AS rank, 'key' || i // {steps} // 64 AS key,
            i % {steps} + {piece} * {steps} AS step, i % {steps} + {piece} * {steps} AS seq,
            make_timestamptz(1790000000000000 + (i % {steps} + {piece} * {steps}) * 50000) AS ts,
            random()::FLOAT::DOUBLE AS value FROM range({steps} * {series}) t(i)
            ORDER BY run_id, key, producer, step, seq'''), path)
        store.publish(Addition("metrics", path, "2026-11-28", piece - 1, piece))
"""
_COMPACT = """
import sys
from pathlib import Path
from chiplog_collector.store.compaction import compact
from chiplog_collector.store.delta_store import DeltaStore
from chiplog_collector.store.published_tables import ORDERS
done = compact(DeltaStore(sys.argv[1], "cd" * 16), "metrics", ORDERS["metrics"], Path(sys.argv[2]) / "s", pieces_min=2)
print(done.n_files, done.n_rows)
"""


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        given = [f"file://{directory}/lake", directory]
        counts = [str(PIECES), str(SERIES), str(PIECE_ROWS)]
        subprocess.run([sys.executable, "-c", _WRITE, *given, *counts], check=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", _PEAK, sys.executable, "-c", _COMPACT, *given]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        n_files, n_rows, peak_kib = map(int, out[-3:])
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        files = list((Path(directory) / "lake" / "metrics").rglob("compacted-*.parquet"))
        n_bytes = sum(path.stat().st_size for path in files)
        return [
            Figure("peak memory of a merge of 64 M rows", peak_kib * 1024 / GB, "GB", at_most=1.5),
            Figure("CPU of it", cpu_s, "s", yardstick=f"{n_rows:,} rows, {n_files} files"),
            Figure("bytes of a point after it", n_bytes / n_rows, "B", at_most=5),
        ]


# Runs a command and prints, after its output, the peak of its memory in KiB.
_PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
