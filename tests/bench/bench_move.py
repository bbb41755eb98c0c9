"""Export and import a run of 16 million points: seconds, and the peak memory of each command.

The import ends when the collector has everything on stable storage; `applied` is when SQL has all of it.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

from chiplog_client.client import connect
from chiplog_schemas.limits import MIB
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from tests.bench.bench_store import LOG_ID
from tests.bench.figure import Figure, Node
from tests.bench.large_store import write_store
from tests.support.run_builder import RunBuilder

RUN = "large-0"


def timed(*arguments: str) -> tuple[float, float]:
    """Run a command of chiplog; return its seconds, and its peak memory in MiB."""
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "chiplog_cli", *arguments], stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, f"chiplog {arguments[0]} ended with {status}"
    return time.perf_counter() - begun, usage.ru_maxrss * 1024 / MIB


def write_run(root: Path) -> int:
    """Write a database with one large run; return its points."""
    place = paths_for_root(root)
    ensure_private_dir(place.collector)
    write_store(place.index, LOG_ID, 1, 0)
    with duckdb.connect(str(place.index)) as database:
        # The identities, whose seqs the store leaves out.
        identity = "max(last_seq) + 1, max(last_seq) + 1, max(seen_at)"
        RunBuilder(database).select("intervals", f"SELECT producer, {identity} FROM base.intervals GROUP BY producer")
        [(n_points,)] = database.execute(f"SELECT count(*) FROM metrics WHERE run_id = '{RUN}'").fetchall()
    return int(n_points)


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory, "source"), Path(directory, "target")
        n_points = write_run(source)
        export_s, export_mib = timed("export", RUN, "-o", directory, "--dir", str(source))
        size = sum(path.stat().st_size for path in Path(directory, RUN).rglob("*"))
        with Node(target, agent=False):
            begun = time.perf_counter()
            import_s, import_mib = timed("import", str(Path(directory, RUN)), "--dir", str(target))
            with connect(dir=target, start=False) as client:
                counted = f"SELECT count(*) AS n FROM metrics WHERE run_id = '{RUN}'"
                while client.sql(counted).rows()[0]["n"] < n_points:
                    time.sleep(5)  # each query demands a flush
            applied_s = time.perf_counter() - begun
    return [
        Figure(
            f"export of {n_points / 1e6:.0f} million points", export_s, "s", yardstick=f"{size / MIB:.0f} MiB written"
        ),
        Figure("its peak memory", export_mib, "MiB"),
        Figure("import of it", import_s, "s", yardstick=f"applied after {applied_s:.0f} s"),
        Figure("its peak memory", import_mib, "MiB"),
    ]
