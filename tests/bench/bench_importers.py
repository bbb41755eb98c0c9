"""Import 1,000,000 values of an event file into SQL, beside the time that TensorBoard's own loader takes to read them.

Both run with the libraries of `make integrations`. Each value is compared with the loader's: key, step, time, number.
"""

import hashlib
import json
import os
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from tensorboardX import SummaryWriter

from chiplog_client.client import connect
from chiplog_schemas.limits import MIB
from tests.bench.figure import Figure, Node
from tests.integrations.environment import prepare
from tests.integrations.matrix import PYTHON

KEYS, STEPS = 10, 100_000
ROW = struct.Struct("<64sqqd")  # key, step, microseconds, number
# `process_time` is beside the wall time: both share the cores with the daemons, or with other work.
READER = f"""
import hashlib, json, struct, sys, time
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray
begun, cpu = time.perf_counter(), time.process_time()
for _ in EventFileLoader(sys.argv[1]).Load():
    pass
wall_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
row, digest, n = struct.Struct({ROW.format!r}), hashlib.sha256(), 0
for event in EventFileLoader(sys.argv[1]).Load():
    for value in event.summary.value:
        number = make_ndarray(value.tensor).item()
        digest.update(row.pack(value.tag.encode(), event.step, round(event.wall_time * 1e6), number))
        n += 1
print(json.dumps([wall_s, cpu_s, n, digest.hexdigest()]))
"""


def measure() -> list[Figure]:
    python = os.environ.get(PYTHON) or prepare()
    with tempfile.TemporaryDirectory() as directory:
        path = _write(Path(directory, "run"))
        printed = subprocess.run([python, "-c", READER, str(path)], check=True, stdout=subprocess.PIPE).stdout
        wall_s, cpu_s, n_values, digest = json.loads(printed)
        root = Path(directory, "chiplog")
        with Node(root, agent=False):
            begun = time.perf_counter()
            command = [python, "-m", "chiplog_cli", "import", str(path), "--dir", str(root)]
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            assert status == 0, f"chiplog import ended with {status}"
            with connect(dir=root, start=False) as client:
                while client.sql("SELECT count(*) AS n FROM metrics").rows()[0]["n"] < n_values:
                    time.sleep(0.1)
            import_s = time.perf_counter() - begun
            assert _digest(root) == digest, "SQL differs from what TensorBoard's loader reads"
    own_cpu_s = usage.ru_utime + usage.ru_stime
    beside = f"import {import_s:,.1f} s, of it {own_cpu_s:,.1f} CPU; EventFileLoader {wall_s:,.1f} s, {cpu_s:,.1f} CPU"
    return [
        Figure(
            f"{n_values:,} values of an event file in SQL, all as TensorBoard's loader reads them; rate, of its own",
            wall_s / import_s,
            "",
            at_least=0.5,
            yardstick=beside,
        ),
        Figure("peak memory of the import", usage.ru_maxrss * 1024 / MIB, "MiB", at_most=500),
    ]


def _write(directory: Path) -> Path:
    with SummaryWriter(str(directory), max_queue=10_000, flush_secs=600) as writer:
        for step in range(STEPS):
            for key in range(KEYS):
                writer.add_scalar(f"train/metric_{key}", step * 0.1 + key, step, walltime=1.7e9 + step / 4)
    [path] = directory.iterdir()
    return path


def _digest(root: Path) -> str:
    """Return the digest of all values in SQL, in the order in which they were logged."""
    digest = hashlib.sha256()
    with connect(dir=root, start=False) as client:
        query = (
            "SELECT key, step, epoch_us(ts) AS us, value FROM metrics WHERE step BETWEEN $first AND $last ORDER BY seq"
        )
        for first in range(0, STEPS, STEPS // 10):
            for row in client.sql(query, {"first": first, "last": first + STEPS // 10 - 1}).rows():
                digest.update(ROW.pack(row["key"].encode(), row["step"], row["us"], row["value"]))
    return digest.hexdigest()
