"""A GPU driver that hangs: its device is reported stale, and host, other GPUs and the delivery of events continue.

The library in place of NVIDIA's hangs a call for as long as a file requests, at most 45 s.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chiplog_schemas.process.file_lock import lock_holder_pid
from tests.support.node import Node
from tests.support.oracle import ORACLE, compare
from tests.support.rounds import Rounds
from tests.support.safeguard import proves
from tests.support.tools import needs
from tests.support.waiting import wait_until

GPUS = [f"GPU-00000000-0000-0000-0000-00000000000{index}" for index in range(2)]
HOST = ""
SOURCE = Path(__file__).parents[1] / "support" / "fake_nvml" / "nvml.c"
PROGRESS_MIN = 5  # samples, and steps, that must arrive while the driver hangs
WAIT_S = 25.0  # generous, and shorter than the library hangs
SOAK = bool(os.environ.get("CHIPLOG_SOAK_MINUTES"))
TEST = "test_a_driver_that_hangs_stalls_neither_host_statistics_nor_delivery_and_comes_back"


pytestmark = needs("gcc")  # for the replacement library for NVML


class Watched:
    """A node with a driver that hangs on demand."""

    def __init__(self, node: Node, control: Path) -> None:
        self.node = node
        self.control = control

    def samples(self, device: str) -> int:
        """Return how many samples of a device SQL has."""
        query = "SELECT count(DISTINCT ts) AS n FROM system_samples WHERE device = ?"
        return int(self.node.sql(query, [device])[0]["n"])

    def steps(self) -> int:
        return int(self.node.sql("SELECT count(DISTINCT step) AS n FROM metrics")[0]["n"])

    def stale(self) -> list[str]:
        rows = self.node.sql("SELECT body->>'device' AS device FROM events WHERE kind = 'device_stale' ORDER BY ts")
        return [row["device"] for row in rows]

    def until_more(self, device: str, what: str) -> None:
        before = self.samples(device)
        wait_until(
            lambda: self.samples(device) >= before + PROGRESS_MIN, f"samples of {device or 'host'} {what}", WAIT_S
        )


@pytest.fixture
def watched(bare_node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    subprocess.run(
        ["gcc", "-O1", "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(SOURCE)], check=True
    )
    control = tmp_path / "control"
    control.write_text("")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("FAKE_NVML_CONTROL", str(control))
    bare_node.start_collector()
    bare_node.agent = bare_node._start("chiplog_agent", "--sample-interval-s", "0.1")
    watched = Watched(bare_node, control)
    bare_node.until("SELECT count(DISTINCT device) AS n FROM system_samples", lambda rows: rows[0]["n"] >= 3)
    return watched


@proves(
    "sampler-never-waits-for-gpu",
    "no thread waits for the thread of a GPU",
    new="...\nwhile any(worker.event.is_set() for worker in self._gpus._workers):\n    time.sleep(0.01)",
)
@proves("stale-device-reported", "a device that does not answer is reported stale", new="late.clear()")
@pytest.mark.promise(9)
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_driver_that_hangs_stalls_neither_host_statistics_nor_delivery_and_comes_back(
    watched: Watched, rounds: Rounds, tmp_path: Path
) -> None:
    assert watched.node.agent is not None
    oracle = tmp_path / "oracle"
    command = [sys.executable, "-P", ORACLE, str(oracle), "--pause-s", "0.01", "--events", "1000000"]
    rank = subprocess.Popen(command, env=os.environ | {"CHIPLOG_DIR": str(watched.node.root)})
    try:
        watched.node.until("SELECT count(*) AS n FROM metrics", lambda rows: rows[0]["n"] > 0)
        for seed in rounds(1):
            hanging = seed % 2
            begun, said = time.monotonic(), len(watched.stale())
            watched.control.write_text(f"hang{hanging}")
            wait_until(lambda: len(watched.stale()) > said, "a report of a stale device", WAIT_S)  # noqa: B023  in this round
            assert watched.stale()[-1] == GPUS[hanging], seed
            of_hanging, steps = watched.samples(GPUS[hanging]), watched.steps()
            watched.until_more(HOST, "while a GPU hangs")
            watched.until_more(GPUS[1 - hanging], "while the other GPU hangs")
            wait_until(lambda: watched.steps() >= steps + PROGRESS_MIN, "steps while a GPU hangs", WAIT_S)  # noqa: B023
            if SOAK:
                time.sleep(max(0.0, begun + random.Random(seed).uniform(5, 44) - time.monotonic()))
            assert watched.samples(GPUS[hanging]) == of_hanging, seed
            watched.control.write_text("")
            watched.until_more(GPUS[hanging], "after it hung")
            assert len(watched.stale()) == said + 1, seed
            back = "SELECT body->>'device' AS device FROM events WHERE kind = 'gpu.back' ORDER BY ts"
            found = watched.node.until(back, lambda rows: len(rows) == said + 1)  # noqa: B023
            assert found[-1]["device"] == GPUS[hanging], seed
            assert lock_holder_pid(watched.node.place.agent / "lock") == watched.node.agent.pid
            rounds.count("seconds of hanging", int(time.monotonic() - begun))
    finally:
        rank.kill()
        rank.wait()
    watched.node.until(
        "SELECT l.state, c.pending FROM labels l JOIN completeness c USING (run_id, label, attempt)",
        lambda rows: [(row["state"], row["pending"]) for row in rows] == [("crashed", 0)],
    )
    verdict = compare(oracle, watched.node.sql("SELECT step, value FROM metrics WHERE key = 'value'"))
    assert verdict.ok and len(verdict.extra) <= 1 and verdict.expected > PROGRESS_MIN, verdict


@pytest.mark.full
def test_a_lost_gpu_is_an_error_event_of_its_node_and_so_is_its_return(watched: Watched) -> None:
    query = """SELECT kind, level, body->>'device' AS device FROM events
        WHERE kind IN ('gpu.lost', 'gpu.back') ORDER BY ts"""
    watched.control.write_text("lost1")
    found = watched.node.until(query, lambda rows: len(rows) == 1)
    assert found == [{"kind": "gpu.lost", "level": "error", "device": GPUS[1]}]
    watched.control.write_text("")
    found = watched.node.until(query, lambda rows: len(rows) == 2)
    assert found[1] == {"kind": "gpu.back", "level": "info", "device": GPUS[1]}
    watched.until_more(GPUS[1], "after its return")


@pytest.mark.full
def test_an_xid_is_an_event_of_its_node_with_code_and_advice(watched: Watched) -> None:
    watched.control.write_text("xids=1:79,1:4711")
    query = """SELECT level, body->>'device' AS device, CAST(body->>'code' AS INTEGER) AS code, body->>'pci' AS pci,
        body->>'severity' AS severity, body->>'advice' <> '' AS advised
        FROM events WHERE kind = 'gpu.xid' ORDER BY seq"""
    found = watched.node.until(query, lambda rows: len(rows) == 2)
    common = {"device": GPUS[1], "pci": "00000000:11:00.0", "advised": True}
    assert found == [
        common | {"level": "error", "code": 79, "severity": "error"},
        common | {"level": "warning", "code": 4711, "severity": "warning"},
    ]
