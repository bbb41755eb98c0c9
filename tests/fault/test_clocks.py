"""Clocks may be wrong: whatever the wall clock of a process shows, order and completeness are those of (producer, seq).

Real processes under a library (clock.c) that makes the wall clock of each one wrong by a different amount, and steps it
while they run. Monotonic clocks do not change, as when a user sets the clock or a machine slept.
"""

import itertools
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog.identity.identity import ProcessFacts, resolve_identity
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import START_US, VIEWS, Rank, whole
from tests.support.index import Index
from tests.support.node import Node
from tests.support.oracle import compare
from tests.support.rounds import Rounds
from tests.support.safeguard import proves
from tests.support.tools import require
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.xdist_group("clocks")  # one worker: what its fixture does is costly

SOURCE = Path(__file__).with_name("clock.c")
HOUR_US = 3_600_000_000
RANK, AGENT, SAMPLER = "tests.fault.rank_of_clocks", "chiplog_agent", "chiplog_agent.stats"
RECEIVER, INDEX = "chiplog_collector", "chiplog_collector.index"
WHO = (RANK, AGENT, SAMPLER, RECEIVER, INDEX)


class Clocks:
    """The wall clocks of all processes of a test; `set` sets the error of each one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self._pages: dict[str, mmap.mmap] = {}
        for name in WHO:
            with open(directory / name, "w+b") as file:
                file.write(bytes(8))
                file.flush()
                self._pages[name] = mmap.mmap(file.fileno(), 8)

    def set(self, name: str, offset_us: int) -> None:
        struct.pack_into("<q", self._pages[name], 0, offset_us)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("gcc")
    output = tmp_path_factory.mktemp("clock") / "clock.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(output), str(SOURCE), "-ldl"], check=True)
    return output


@pytest.fixture
def clocks(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """Wrong clocks for every process that the test starts; its own is right."""
    clocks = Clocks(tmp_path / "clocks")
    monkeypatch.setenv("CHIPLOG_TEST_CLOCKS", str(clocks.directory))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    return clocks


_started: list["subprocess.Popen[bytes]"] = []


@pytest.fixture(autouse=True)
def no_rank_stays() -> Iterator[None]:
    """End the ranks of a test that failed: they would log forever, and start daemons to do so."""
    yield
    while _started:
        rank = _started.pop()
        rank.kill()
        rank.wait()


class Trial:
    """A node under wrong clocks, and a rank that logs all the while."""

    def __init__(self, node: Node, clocks: Clocks, directory: Path, label: str) -> None:
        self.node = node
        self.clocks = clocks
        self.label = label
        self.file = directory / f"{label}.oracle"
        root = Path(__file__).parents[2]
        self.rank = subprocess.Popen([sys.executable, "-m", RANK, str(self.file), label], cwd=root)
        _started.append(self.rank)
        self.until_more()

    def stored(self) -> int:
        rows = self.node.try_sql(f"SELECT stored FROM completeness WHERE label = '{self.label}'")
        return int(rows[0]["stored"]) if rows else 0

    def until_more(self) -> None:
        """Wait until what is logged now is stored: nothing stands still for an hour."""
        before = len(self.file.read_text().splitlines()) if self.file.exists() else 0
        wait_until(lambda: self.stored() > before + 20, "new events in SQL")

    def finish(self) -> None:
        self.rank.send_signal(signal.SIGTERM)
        assert self.rank.wait(WAIT_S) == 0
        self._until_complete("finished")

    def kill(self) -> None:
        """Kill the rank when the agent's clock was just set back by two days: it must still find what is left."""
        self.clocks.set(AGENT, -48 * HOUR_US)
        time.sleep(0.1)
        self.rank.kill()
        self.rank.wait()
        self._until_complete("crashed")

    def _until_complete(self, state: str) -> None:
        self.node.until(
            f"SELECT 1 FROM labels JOIN completeness USING (run_id, label, attempt) WHERE label = '{self.label}' "
            f"AND state = '{state}' AND pending = 0 AND lost = 0 AND produced = stored"
        )

    def check(self) -> None:
        """Compare with the oracle, and check everything that depends on times."""
        sql, where = self.node.sql, f"WHERE label = '{self.label}'"
        rows = sql(f"SELECT seq, step, ts, value FROM metrics {where} AND key = 'value' ORDER BY seq")
        verdict = compare(self.file, rows)
        assert verdict.ok, verdict
        assert len(verdict.extra) <= 1, verdict  # logged, and killed before it was written down
        assert [row["step"] for row in rows] == list(range(len(rows))), "seq does not order as the rank logged"
        [last] = sql(f"SELECT value::DOUBLE AS value FROM summary {where} AND key = 'value'")
        assert last["value"] == rows[-1]["value"]
        [phase] = sql(f"SELECT min(seconds) AS least, max(seconds) AS most, count(*) AS n FROM phases {where}")
        assert 0 <= phase["n"] - len(rows) <= 1, "each log() call comes with its phase"
        assert 0 <= phase["least"] <= phase["most"] < 60, phase
        lines = sql(f"SELECT line FROM console {where} ORDER BY line_no")
        printed = [f"step {step}" for step in range(0, len(rows) + 1, 100)]
        assert len(lines) >= len(printed) - 2
        assert [row["line"] for row in lines] == printed[: len(lines)]
        [sample] = sql("SELECT min(value) AS least, count(*) AS n FROM system_samples WHERE name LIKE '%utilization%'")
        assert sample["n"] > 0
        assert sample["least"] >= 0, "a share of time is negative"


def each_view(node: Node) -> dict[str, list[dict[str, Any]]]:
    """Return rows of every view."""
    with chiplog.connect(dir=node.root) as client:
        return {view: client.sql(f"SELECT * FROM {view} LIMIT 1000").rows() for view in VIEWS}


def jumps(rows: list[dict[str, Any]]) -> int:
    """Return how often the time of one row is half an hour and more away from that of the row before."""
    times = [row["ts"].timestamp() for row in rows]
    return sum(abs(b - a) > 1800 for a, b in itertools.pairwise(times))


@proves("receiver-monotonic-clock", "the receiver's loop runs on the monotonic clock", value="time.time()")
@proves(
    "phase-monotonic-clock",
    "phases are measured by a clock that is never set",
    new="import time as t; timing.add(self._name, t.time() + now - t.monotonic() - began)",
    environment={"CHIPLOG_NATIVE": "0"},
)
@pytest.mark.promise(10)
@pytest.mark.soak
def test_order_and_completeness_are_untouched_by_clocks_that_jump(
    bare_node: Node, clocks: Clocks, tmp_path: Path, rounds: Rounds
) -> None:
    """Invariant: clocks ahead, behind, set back and forward, each process separately: no row is affected."""
    for who, hours in zip(WHO, (1, -1, 2, -2, 3), strict=True):
        clocks.set(who, hours * HOUR_US)
    node = bare_node
    node.start_collector()
    with open(node.root / "chiplog_agent.log", "ab") as log:
        command = [sys.executable, "-P", "-m", AGENT, "--dir", str(node.root), "--sample-interval-s", "0.2"]
        node.agent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    wait_until(lambda: node.try_sql("SELECT 1"), "a collector that answers")
    for seed in rounds(1):
        chooser = random.Random(seed)
        trial = Trial(node, clocks, tmp_path, f"rank{seed}")
        for who in chooser.sample(WHO, len(WHO)):
            for hours in chooser.sample((1, -1, 0, -24 * 365), 2):
                clocks.set(who, hours * HOUR_US)
                time.sleep(chooser.uniform(0.05, 0.3))
                rounds.count("steps of a clock")
            trial.until_more()
        each_view(node)
        trial.kill()
        trial.check()
        rows = node.sql(f"SELECT ts FROM metrics WHERE label = '{trial.label}' AND key = 'value' ORDER BY seq")
        assert jumps(rows) >= 1, "the rank's clock was never wrong"


@proves(
    "phase-monotonic-clock",
    "a sleep of the machine is no part of a phase",
    new="import time as t; timing.add(self._name, t.time() + now - t.monotonic() - began)",
    environment={"CHIPLOG_NATIVE": "0"},
)
@pytest.mark.full
def test_a_machine_that_slept_goes_on_where_it_was(bare_node: Node, clocks: Clocks, tmp_path: Path) -> None:
    """Everything stands still for a moment, and then it is eight hours later."""
    node = bare_node.start()
    trial = Trial(node, clocks, tmp_path, "rank0")
    assert node.agent is not None and node.collector is not None
    index = int(Path(f"/proc/{node.collector.pid}/task/{node.collector.pid}/children").read_text().split()[0])
    pids = [trial.rank.pid, node.agent.pid, node.collector.pid, index]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for who in WHO:
        clocks.set(who, 8 * HOUR_US)
    time.sleep(1.0)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    trial.until_more()
    each_view(node)
    trial.finish()
    rows = node.sql("SELECT seq, step, ts, value FROM metrics WHERE key = 'value' ORDER BY seq")
    assert compare(trial.file, rows).ok
    assert jumps(rows) == 1
    [seconds] = node.sql("SELECT max(seconds) AS most FROM phases")
    assert seconds["most"] < 60, "the sleep was counted as work"


# -- by hand: what SQL makes of times that cannot be -------------------------------------------------------------------


@proves(
    "last-value-by-seq",
    "the last value is the one with the highest seq",
    part="arg_max(value, seq)",
    new="arg_max(value, ts)",
)
@proves(
    "config-value-by-seq", "the latest value of a config key is the one with the highest seq", part="c.seq", new="c.ts"
)
@pytest.mark.promise(10)
def test_the_last_word_is_the_last_by_seq_whatever_its_time(index: Index) -> None:
    rank = Rank(0)
    for number, hours in enumerate((0, 2, -3, 1)):  # the last one is neither the first nor the last by time
        ts = START_US + hours * HOUR_US
        packed = struct.pack("<d", float(number))
        rank.say(EventKind.METRICS, 10 - number, pack(["loss"]), packed, ts=ts)
        rank.say(EventKind.CONFIG, {"lr": str(number)}, ts=ts)
        rank.say(EventKind.SUMMARY, {"best": str(number)}, ts=ts)
    rank.say(EventKind.STATE, {"state": "finished"}, ts=START_US - 5 * HOUR_US)
    index.take(whole(rank))
    assert index.sql("SELECT value::INT FROM config") == [(3,)]
    assert index.sql("SELECT key, value::DOUBLE::INT FROM summary ORDER BY key") == [("best", 3), ("loss", 3)]
    assert [row[0] for row in index.sql("SELECT value::INT FROM metrics ORDER BY seq")] == [0, 1, 2, 3]
    assert index.sql("SELECT state FROM runs") == [("finished",)]
    assert index.sql("SELECT produced, stored, lost, pending FROM completeness") == [(14, 14, 0, 0)]


@proves(
    "times-clipped",
    "times that no program can show are brought into years 1 to 9999",
    part="_TS_FIRST), _TS_LAST",
    new="-(1 << 61)), 1 << 61",
)
@pytest.mark.parametrize("ts", [0, -1, -START_US, 253_402_300_800_000_000, (1 << 63) - 1, -(1 << 63)])
def test_each_view_answers_whatever_a_clock_shows(index: Index, ts: int) -> None:
    """1970, 1969, long before, the year 10000, and the ends of what 64 bits hold."""
    first, second = Rank(10, "rank0", rank=0, started_at=ts), Rank(11, "rank0", rank=0, restart=1, started_at=ts)
    agent = Rank(9, label="agent", role="agent", node="node-a", run_id="", rank=None, started_at=ts)
    agent.say(EventKind.SYSTEM, "", pack(["load"]), struct.pack("<d", 1.0), ts=ts)
    for rank in (first, second):
        packed = struct.pack("<d", 1.0)
        rank.say(EventKind.METRICS, 1, pack(["loss"]), packed, ts=ts)
        rank.say(EventKind.PHASES, 1, pack(["forward"]), packed, ts=ts)
        rank.say(EventKind.CONSOLE, 1, 1, "line", ts=ts)
        rank.say(EventKind.CONFIG, {"lr": "1"}, ts=ts)
        rank.say(EventKind.STATE, {"state": "failed", "reason": "x"}, ts=ts)
    index.take(whole(first, second, agent))
    assert index.sql("SELECT count(*) FROM base.quarantine") == [(0,)]
    for view in VIEWS:
        index.sql(f"SELECT max(COLUMNS(*)::VARCHAR) FROM {view}")
    times = ["started_at, ended_at FROM labels", *(f"ts FROM {name}" for name in ("metrics", "console", "config"))]
    shown = [row for query in times for row in index.sql(f"SELECT {query}")]
    assert all(isinstance(moment, datetime) for row in shown for moment in row), "no Python program can show this"
    assert index.sql("SELECT count(*), min(value) FROM metrics") == [(2, 1.0)]
    assert index.sql("SELECT produced, stored, pending FROM completeness") == [(6, 6, 0)] * 2


@proves(
    "receive-time-of-receipt",
    "receive times are those of the receipts, not of the index's own past",
    value="max(self._context.received_us, receipt.received_us)",
)
@pytest.mark.full
def test_a_rebuild_is_the_same_when_the_collectors_clock_was_set_back(index: Index) -> None:
    """The clock is five hours ahead, then five behind; the index restarts in between."""
    for number, hours in ((0, 5), (1, -5)):
        rank = Rank(number)
        rank.log(0, loss=1.0)
        index.log.append(Kind.BLOCK, whole(rank))
        receipt = pack([START_US + hours * HOUR_US, [[b"S" * 16, 0, index.log.next_number, 1]]])
        index.log.append(Kind.RECEIPT, receipt)
        index.log.commit()
        index.follow()
        index.reopen()
    seen = index.sql(f"SELECT label, (epoch_us(last_seen_at) - {START_US}) / {HOUR_US} FROM labels ORDER BY 1")
    assert seen == [("rank0", 5), ("rank1", -5)]
    before = index.views()
    index.database.close()
    index.path.unlink()
    index.reopen()
    index.follow()
    assert index.views() == before


FACTS = ProcessFacts("host", 10, "9:999:boot", now_s=1.7e9, random="abc234")


@proves(
    "run-id-from-launch", "a run's ID comes from its launch, not from a clock", value="new_run_id(facts.now_s, word)"
)
@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29500"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"},
        {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29500"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    ],
)
def test_ranks_of_one_launch_agree_on_their_run_when_the_clock_is_set_between_their_starts(
    environ: dict[str, str],
) -> None:
    later = replace(FACTS, pid=11, random="xyz567", now_s=FACTS.now_s - 7200)
    [rank] = [name for name in environ if name.endswith("RANK")]
    first, second = resolve_identity(environ, FACTS), resolve_identity({**environ, rank: "1"}, later)
    assert (first.run_id, first.launch) == (second.run_id, second.launch)
