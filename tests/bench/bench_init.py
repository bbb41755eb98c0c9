"""`init()` in 64 processes at once: from the barrier that releases them until the last one has returned.

Each process is started as torchrun would start it, imports, and waits; the end of a pipe releases all of them. Cold: no
daemon runs, and they race to start one agent and one collector. The yardstick does as much and opens a plain file.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import chiplog
from tests.bench.bench_rank import down
from tests.bench.figure import Figure, Node

PROCESSES = 64

PROCESS = """
import json, os, sys, time
what, ready, released, ended = sys.argv[1], *map(int, sys.argv[2:])
if what != "with import":
    import chiplog
os.write(ready, b".")
os.read(released, 1)  # the end of the file
awake = time.monotonic()
if what == "bare":
    with open(os.path.join(os.environ["CHIPLOG_DIR"], f"bare{os.environ['RANK']}"), "w") as file:
        file.write("x")
else:
    import chiplog
    run = chiplog.init(project="bench")
returned = time.monotonic()
if what != "bare":
    run.log({"x": 1.0})
print(json.dumps([awake, returned]), flush=True)
os.read(ended, 1)
if what != "bare":
    run.finish()
"""


def race(what: str, environ: dict[str, str]) -> tuple[list[float], list[float]]:
    """Return the seconds from the release until each process had returned, and those inside of the call itself."""
    ready, released, ended = os.pipe(), os.pipe(), os.pipe()
    code = [sys.executable, "-P", "-c", PROCESS, what, *map(str, (ready[1], released[0], ended[0]))]
    launch = {
        "WORLD_SIZE": str(PROCESSES),
        "LOCAL_WORLD_SIZE": str(PROCESSES),
        "TORCHELASTIC_RUN_ID": str(uuid.uuid4()),
    }
    processes = [
        subprocess.Popen(
            code,
            env=environ | launch | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            pass_fds=(ready[1], released[0], ended[0]),
        )
        for rank in range(PROCESSES)
    ]
    waiting = PROCESSES
    while waiting:
        waiting -= len(os.read(ready[0], waiting))
    time.sleep(0.5)  # all of them sit in their read
    begun = time.monotonic()
    os.close(released[1])
    times: list[list[float]] = []
    for process in processes:
        assert process.stdout is not None
        times.append(json.loads(process.stdout.readline()))
    os.close(ended[1])
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    for descriptor in (*ready, released[0], ended[0]):
        os.close(descriptor)
    return [returned - begun for _, returned in times], [returned - awake for awake, returned in times]


def runs_in_sql(root: Path) -> list[dict[str, Any]]:
    """Return the runs, once all labels of the last one have ended."""
    deadline = time.monotonic() + 60
    while True:
        with chiplog.connect(dir=root) as client:
            rows = client.sql("SELECT run_id, state, n_labels FROM runs ORDER BY created_at").rows()
            open_labels = client.sql("SELECT count(*) AS n FROM labels WHERE state = 'running'").rows()[0]["n"]
        if (rows and not open_labels and rows[-1]["n_labels"] == PROCESSES) or time.monotonic() > deadline:
            return rows
        time.sleep(0.2)


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as root:
        node = Node(Path(root), agent=False, collector=False)
        try:
            cold = race("init", node.environ)
            cold_runs = runs_in_sql(Path(root))
            warm = race("init", node.environ)
            imported = race("with import", node.environ)
            all_runs = runs_in_sql(Path(root))
            bare = race("bare", node.environ)
        finally:
            down(node)
    beside = f"bare file: slowest {max(bare[0]) * 1e3:.0f} ms"

    def figure(name: str, times: tuple[list[float], list[float]], target: float | None) -> Figure:
        inside = (
            f"median {statistics.median(times[0]):.2f}; one call: median {statistics.median(times[1]) * 1e3:.0f} ms"
        )
        return Figure(f"{PROCESSES} × {name}", max(times[0]), "s", at_most=target, yardstick=f"{inside}; {beside}")

    n_labels = [row["n_labels"] for row in all_runs]
    return [
        figure("init() at once, no daemon runs: the last returned after", cold, 4),
        figure("init() at once, agent and collector run", warm, 4),
        figure("import chiplog and init() at once, agent and collector run", imported, None),
        Figure(
            "runs in SQL of the first launch", len(cold_runs), "", 1, yardstick=f"{cold_runs[0]['n_labels']} labels"
        ),
        Figure("runs in SQL of all three launches", len(all_runs), "", 3, yardstick=f"labels: {n_labels}"),
    ]
