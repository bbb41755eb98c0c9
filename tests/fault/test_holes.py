"""Holes that a decision of the design closes, each with real processes and files, judged by the oracle."""

import contextlib
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.storage.journal_dir import list_journals
from chiplog_schemas.storage.record import Kind, Record
from chiplog_schemas.storage.segment_format import list_segments, read_segment
from tests.support import patched
from tests.support.agent_by_hand import Agent
from tests.support.collector_log import Rank, whole
from tests.support.lake import stored_rows
from tests.support.node import Node, end_daemons
from tests.support.oracle import ORACLE, Verdict, compare
from tests.support.patched import patch_daemons
from tests.support.ports import free_ports
from tests.support.rounds import Rounds
from tests.support.safeguard import proves
from tests.support.store_ranks import OFTEN
from tests.support.waiting import wait_until

# It has unbound its socket, and holds its lock until its successor has met it: at most for three seconds.
LEAVES_SLOWLY = """
import sys
if "chiplog_agent" in sys.orig_argv:
    import time
    from chiplog_schemas.process.file_lock import Lock, LockHeldError
    take, release = Lock.__init__, Lock.release
    def meet(lock, path, **options):
        try:
            take(lock, path, **options)
        except LockHeldError:
            if path.parent.name == "agent":
                path.with_name("met").touch()
            raise
    def slowly(lock):
        if lock.path.parent.name == "agent":
            met, leaving = lock.path.with_name("met"), lock.path.with_name("leaving")
            met.unlink(missing_ok=True)
            leaving.touch()
            deadline = time.monotonic() + 3.0
            while not met.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            leaving.unlink()
        release(lock)
    Lock.__init__, Lock.release = meet, slowly
"""

EVENTS_MAX = 1_000_000


class Cluster:
    """A collector on loopback TCP and nodes with an agent each, every one in a CHIPLOG_DIR of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.centre = Node(root / "centre")
        self.nodes: dict[str, Node] = {}
        self.ranks: list[subprocess.Popen[bytes]] = []
        self.address = f"tcp://127.0.0.1:{free_ports()}"

    def start_collector(self) -> None:
        self.centre.collector = self.centre._start("chiplog_collector", "--bind", self.address)

    def node(self, name: str) -> Node:
        return self.nodes.setdefault(name, Node(self.root / name))

    def start_agent(self, name: str) -> Node:
        node = self.node(name)
        node.start_agent("--node", name, "--collector", self.address)
        return node

    def rank(self, node: str, label: str, events: int = EVENTS_MAX, **variables: str) -> "subprocess.Popen[bytes]":
        """Start an oracle rank of a node; its file has the label's name."""
        self.node(node).root.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", ORACLE, str(self.file(label)), "--label", label),
                *("--events", str(events), "--pause-s", "0.002"),
            ],
            env=dict(os.environ, **self.variables(node), **variables),
        )
        self.ranks.append(process)
        return process

    def file(self, label: str) -> Path:
        return self.root / f"{label}.oracle"

    def variables(self, node: str) -> dict[str, str]:
        """Return a rank's environment: with a named agent, so that it starts none itself while the test's is gone."""
        place = self.node(node).place
        return {"CHIPLOG_DIR": str(place.root), "CHIPLOG_AGENT": place.agent_address}

    def offline(self, node: str) -> Path:
        """Return where a node keeps what ran offline."""
        place = self.node(node).place
        return next(path for path in (place.root / "offline", place.local / "offline") if path.exists())

    def sync(self, source: Path, node: str) -> None:
        """Deliver journals through a node, by `chiplog sync`, also those that it delivered before."""
        root = str(self.node(node).root)
        command = [sys.executable, "-m", "chiplog_cli", "sync", str(source), "--dir", root, "--again"]
        done = subprocess.run(command, capture_output=True)
        assert done.returncode == 0, done.stderr

    def logged(self, label: str) -> int:
        """Return about how many events a rank has logged."""
        return self.file(label).stat().st_size // 20 if self.file(label).exists() else 0

    def verdict(self, label: str) -> Verdict:
        rows = self.centre.sql(f"SELECT step, value FROM metrics WHERE label = '{label}' AND key = 'value'")
        [lost] = self.centre.sql(f"SELECT sum(lost)::BIGINT AS n FROM completeness WHERE label = '{label}'")
        return compare(self.file(label), rows, int(lost["n"] or 0))

    def until_ended(self, label: str, state: str = "finished") -> dict[str, Any]:
        """Wait until a label has ended and nothing of it is pending; return its row of completeness."""
        query = (
            "SELECT produced, stored, lost, pending, reasons FROM labels JOIN completeness "
            f"USING (run_id, label, attempt) WHERE label = '{label}' AND state = '{state}'"
        )
        [row] = self.centre.until(query, lambda rows: rows[0]["pending"] <= 0)
        assert row["produced"] == row["stored"] + row["lost"]
        return row

    def stop(self) -> None:
        for process in self.ranks:
            process.kill()
            process.wait()
        for node in self.nodes.values():
            node.stop()
            end_daemons(node.place)
        self.centre.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        cluster.start_collector()
        yield cluster
    finally:
        cluster.stop()


def log_blocks(place: Paths) -> list[Record]:
    """Return the blocks of a collector's log."""
    items = [item for _, path in list_segments(place.collector / "log") for item in read_segment(path)]
    return [item for item in items if isinstance(item, Record) and item.kind == Kind.BLOCK]


def times_in_log(place: Paths, producer: bytes) -> int:
    """Return how many events the log holds of a producer, each as often as it is there."""
    named = [entry for block in log_blocks(place) for entry in decode_block(block.payload).producers]
    return sum(last - first + 1 for uuid, ranges in named if uuid == producer for first, last in ranges)


def only_producer(node: Node) -> bytes:
    [(producer, _)] = wait_until(lambda: list_journals(node.place.journals), "a journal")
    return producer


def end(process: "subprocess.Popen[bytes]", number: int) -> None:
    process.send_signal(number)
    process.wait()


# -- delivered twice --


@proves(
    "stored-once",
    "an event that the log holds twice is a row once",
    new="have.add(first, last)\nnew.append((first, last))",
)
def test_an_agent_that_dies_after_forwarding_and_before_acknowledging_doubles_nothing(
    cluster: Cluster, monkeypatch, tmp_path: Path
) -> None:
    patch_daemons(monkeypatch, tmp_path / "patch", patched.NEVER_ACKNOWLEDGES)
    node = cluster.start_agent("a")
    rank = cluster.rank("a", "rank0")
    producer = only_producer(node)
    cluster.centre.until("SELECT count(*) AS n FROM metrics", lambda rows: rows[0]["n"] >= 400)  # two keys per event
    patch_daemons(monkeypatch, tmp_path / "patch", "")
    node.kill_agent()
    cluster.start_agent("a")
    end(rank, signal.SIGKILL)
    row = cluster.until_ended("rank0", "crashed")
    verdict = cluster.verdict("rank0")
    assert verdict.ok, verdict
    assert (row["lost"], len(verdict.extra) <= 1) == (0, True), verdict
    assert times_in_log(cluster.centre.place, producer) > row["produced"], "else nothing came twice"


@proves(
    "stored-once",
    "what two agents deliver of one producer is stored once",
    new="have.add(first, last)\nnew.append((first, last))",
)
@pytest.mark.full
def test_a_producer_that_reaches_a_second_agent_is_stored_once_and_whole(cluster: Cluster) -> None:
    """Its journal is on a disk that two nodes see: the first agent has spooled half of it and is gone for a while."""
    node = cluster.start_agent("a")
    rank = cluster.rank("a", "rank0")
    producer = only_producer(node)
    wait_until(lambda: cluster.logged("rank0") > 200, "a rank that logs")
    node.kill_agent()
    wait_until(lambda: cluster.logged("rank0") > 400, "a rank that logs on")
    end(rank, signal.SIGKILL)
    source, target = node.place.journals / producer.hex(), cluster.node("b").place.journals / producer.hex()
    shutil.copytree(source, target)
    cluster.start_agent("b")
    cluster.until_ended("rank0", "crashed")
    before = times_in_log(cluster.centre.place, producer)
    cluster.start_agent("a")
    wait_until(lambda: not source.exists() and not target.exists(), "both journals delivered")
    wait_until(lambda: times_in_log(cluster.centre.place, producer) > before, "the first agent's blocks")
    cluster.start_agent("c")
    cluster.rank("c", "last", events=5).wait()
    cluster.until_ended("last")  # and what came before it is applied too
    verdict = cluster.verdict("rank0")
    assert verdict.ok, verdict
    assert verdict.expected > 300
    assert len(verdict.extra) <= 1


@proves(
    "stored-once",
    "a journal that is synced again, here or elsewhere, is stored once",
    new="have.add(first, last)\nnew.append((first, last))",
)
@pytest.mark.full
def test_a_journal_that_is_synced_twice_and_by_two_nodes_is_stored_once(cluster: Cluster) -> None:
    rank = cluster.rank("away", "rank0", events=200, CHIPLOG_MODE="offline")
    assert rank.wait() == 0
    offline = cluster.offline("away")
    [(producer, _)] = list_journals(offline)
    for name in ("a", "b"):
        cluster.start_agent(name)
    for name in ("a", "a", "b"):
        cluster.sync(offline, name)
    row = cluster.until_ended("rank0")
    wait_until(lambda: times_in_log(cluster.centre.place, producer) == 3 * row["produced"], "all three in the log")
    cluster.rank("a", "last", events=5).wait()
    cluster.until_ended("last")
    verdict = cluster.verdict("rank0")
    assert (verdict.expected, verdict.ok, verdict.extra) == (200, True, []), verdict


# -- lost for good --


@proves("damaged-blocks-declared", "a spool reports which of its numbers were cut off", part=", reason")
def test_a_spool_with_a_cut_tail_declares_what_it_lost_and_goes_on(cluster: Cluster) -> None:
    """The tail was acknowledged to a rank that lives on: it cannot come again, and is declared when the rank ends."""
    cluster.centre.stop_collector()
    node = cluster.start_agent("a")
    rank = cluster.rank("a", "rank0")

    def newest() -> tuple[Path, list[Record]]:
        """Return the newest file of the spool, and its records."""
        _, file = list_segments(node.place.agent / "spool")[-1]
        return file, [item for item in read_segment(file) if isinstance(item, Record)]

    def known() -> int:
        """Return how many records there are up to the first that has events of the rank; 0 without one."""
        blocks = enumerate(newest()[1], start=1)
        return next((n for n, item in blocks if item.kind == Kind.BLOCK and decode_block(item.payload).producers), 0)

    wait_until(lambda: list_segments(node.place.agent / "spool"), "a spool")
    wait_until(known, "a rank whose events are in the spool")  # its identity, too, which is sent once
    wait_until(lambda: len(newest()[1]) > known() + 3, "three more blocks")
    node.kill_agent()
    file, records = newest()
    os.truncate(file, records[-3].end - 7)  # the last three blocks, and a piece of one before
    cluster.start_agent("a")
    cluster.start_collector()
    logged = cluster.logged("rank0")
    wait_until(lambda: cluster.logged("rank0") > logged + 100, "a rank that logs on")
    end(rank, signal.SIGKILL)
    cluster.until_ended("rank0", "crashed")
    verdict = cluster.verdict("rank0")
    assert verdict.is_exact and verdict.lost, verdict
    gaps = [gap["message"] for gap in cluster.centre.sql("SELECT message FROM events WHERE kind = 'gap'")]
    assert any("cut off from it" in gap for gap in gaps), gaps


@proves(
    "known-events-count",
    "for a rank that has not reported how much it produced, the known events count",
    part="p.produced, 0",
    new="p.produced, s.last_seq + 100",
)
@proves(
    "record-stored-whole",
    "a record that was accepted from a node that is lost later is stored to its last event",
    new="hole = message.payload if message.first % 8 else b''\n"
    "return [DataReceived(sender, message.first, message.last, hole, permit)]",
)
@pytest.mark.full
def test_a_node_that_is_lost_with_its_spool_leaves_nothing_pending_and_holds_up_nobody(cluster: Cluster) -> None:
    """Its content is unknown: events that arrived are whole and counted, its label is gone, and the others continue."""
    for name in ("a", "b"):
        cluster.start_agent(name)
    lost = cluster.rank("a", "rank0")
    cluster.rank("b", "rank1", events=300)
    cluster.centre.until("SELECT count(*) AS n FROM metrics WHERE label = 'rank0'", lambda rows: rows[0]["n"] > 100)
    node = cluster.node("a")
    assert node.agent is not None
    node.agent.send_signal(signal.SIGSTOP)  # events logged from now on reach no agent
    logged = cluster.logged("rank0")
    wait_until(lambda: cluster.logged("rank0") > logged + 50, "a rank that logs on")
    end(lost, signal.SIGKILL)
    node.kill_agent()
    shutil.rmtree(node.root)
    shutil.rmtree(node.place.local, ignore_errors=True)
    cluster.until_ended("rank1")
    assert cluster.verdict("rank1").ok
    [row] = cluster.centre.sql("SELECT produced, stored, lost, pending FROM completeness WHERE label = 'rank0'")
    assert row["pending"] == 0
    assert row["produced"] == row["stored"]
    verdict = cluster.verdict("rank0")
    assert not verdict.doubled
    assert not verdict.altered
    assert verdict.lost == list(range(min(verdict.lost), verdict.expected)), "only its end is missing"


@proves("rollback-declared", "a collector declares what it acknowledged and has lost", condition=False)
@pytest.mark.parametrize("what", [pytest.param("rolled back", marks=pytest.mark.full), "deleted"])
def test_a_log_that_was_rolled_back_declares_what_it_had_acknowledged(cluster: Cluster, what: str) -> None:
    """A collector's disk is restored from a copy, or new: its agents have trimmed what it acknowledged since."""
    node = cluster.start_agent("a")
    rank = cluster.rank("a", "rank0")
    query = "SELECT count(*) AS n FROM metrics WHERE label = 'rank0'"
    cluster.centre.until(query, lambda rows: rows[0]["n"] > 200)
    place = cluster.centre.place
    copy = cluster.root / "copy"
    if what == "rolled back":
        cluster.centre.stop_collector()
        shutil.copytree(place.collector, copy)
        cluster.start_collector()
        [before] = cluster.centre.until(query, lambda rows: rows[0]["n"] > 200)
        cluster.centre.until(query, lambda rows: rows[0]["n"] > before["n"] + 200)
    cluster.centre.stop_collector()
    shutil.rmtree(place.collector)
    if what == "rolled back":
        shutil.copytree(copy, place.collector)
    cluster.start_collector()
    cluster.rank("a", "rank1", events=100).wait()
    cluster.until_ended("rank1")
    assert cluster.verdict("rank1").ok, "new data flows"
    end(rank, signal.SIGKILL)
    [gap] = cluster.centre.until("SELECT message FROM events WHERE kind = 'gap'")
    assert "acknowledged to the sender, and not in this log" in gap["message"]
    if what == "rolled back":
        cluster.until_ended("rank0", "crashed")
        verdict = cluster.verdict("rank0")
        assert verdict.is_exact and verdict.lost, verdict
    assert node.agent is not None
    assert node.agent.poll() is None


# -- what cannot be applied --


@proves("bad-event-costs-itself", "an event that cannot be applied costs itself", value="ZeroDivisionError")
def test_records_that_cannot_be_applied_cost_themselves_and_the_index_goes_on(cluster: Cluster) -> None:
    wait_until(lambda: cluster.centre.try_sql("SELECT 1"), "a collector that answers")
    children = Path(f"/proc/{cluster.centre.collector.pid}/task/{cluster.centre.collector.pid}/children")
    index = children.read_text()
    poisoned = Rank(3)
    poisoned.log(1, a=1.0)
    poisoned.say(EventKind.STATE, {"state": "exploded"})
    poisoned.say(EventKind.SUMMARY, {"k": "[" * 100_000})
    poisoned.say(EventKind.HISTOGRAM, 0, "key", b"odd", b"")
    poisoned.events.append(pack([99, 0, "of no kind"]))
    poisoned.log(2, a=2.0)
    with contextlib.closing(Agent(cluster.centre.place.collector_address)) as agent:
        agent.hello()
        agent.send(0, b"no block", whole(poisoned)[:-9], whole(poisoned), b"", whole(Rank(4)))
        agent.acknowledged(5)
    cluster.centre.until("SELECT 1 FROM labels WHERE label = 'rank4'")
    assert cluster.centre.sql("SELECT step, value FROM metrics ORDER BY step") == [
        {"step": 1, "value": 1.0},
        {"step": 2, "value": 2.0},
    ]
    [row] = cluster.centre.sql("SELECT count(*) AS n FROM events WHERE kind = 'quarantined'")
    assert row["n"] == 3 + 4, "three blocks, four events"
    assert children.read_text() == index, cluster.centre.output("chiplog_collector")  # one index process all the time


@pytest.mark.full
def test_a_block_of_a_newer_version_waits_for_the_upgrade(cluster: Cluster, monkeypatch, tmp_path: Path) -> None:
    newer, older = Rank(1), Rank(2)
    for rank in (newer, older):
        rank.log(7, a=float(rank.uuid[0]))
    block = bytearray(whole(newer))
    block[4:6] = (2).to_bytes(2, "little")
    with contextlib.closing(Agent(cluster.centre.place.collector_address)) as agent:
        agent.hello()
        agent.send(0, bytes(block), whole(older))
        agent.acknowledged(2)
    cluster.centre.until("SELECT label FROM metrics", lambda rows: rows == [{"label": "rank2"}])
    said = "SELECT kind FROM events WHERE kind <> 'node_lost'"  # this agent is gone, and may be missed by now
    cluster.centre.until(said, lambda rows: rows == [{"kind": "quarantined"}])
    monkeypatch.setenv("CHIPLOG_STORE", f"file://{tmp_path}/lake")
    patch_daemons(monkeypatch, tmp_path / "patch", OFTEN)
    cluster.centre.stop_collector()
    cluster.start_collector()
    stored = functools.partial(stored_rows, tmp_path / "lake", "metrics", "producer, seq")
    wait_until(stored, "a piece that has passed the parked block")
    assert len(stored()) == 1
    patch_daemons(monkeypatch, tmp_path / "patch", OFTEN + patched.READS_NEWER_BLOCKS)
    cluster.centre.stop_collector()
    cluster.start_collector()
    cluster.centre.until("SELECT label FROM metrics ORDER BY label", lambda rows: len(rows) == 2)
    assert [row["kind"] for row in cluster.centre.sql(f"{said} ORDER BY kind")] == ["accepted_blocks", "quarantined"]
    wait_until(lambda: len(stored()) > 1, "a store that has the parked block")
    place = cluster.centre.place
    cluster.centre.stop_collector()
    # As by an older release: the patch leaves this process.
    subprocess.run([sys.executable, "-P", "-m", "chiplog_cli", "rebuild", "--dir", str(place.root)], check=True)
    cluster.start_collector()
    cluster.centre.until("SELECT label FROM metrics ORDER BY label", lambda rows: len(rows) == 2)
    cluster.centre.stop_collector()
    assert len(stored()) == len(set(stored())) == 2


# -- races --


def until_it_leaves(place: Paths, what: str, wait_s: float) -> None:
    """Wait for the moment in which an agent has closed its socket, or given up its lock; at most for so long."""
    pid = lock_holder_pid(place.agent / "lock")
    deadline = time.monotonic() + wait_s
    while pid > 0 and time.monotonic() < deadline:
        if (place.agent / "leaving").exists() if what == "socket" else lock_holder_pid(place.agent / "lock") != pid:
            return
        time.sleep(0.001)


@proves(
    "successor-waits-for-leaver",
    "an agent that is started while another leaves waits for its lock",
    part="LEAVER_WAIT_S",
    new="0.0",
)
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.full
def test_an_agent_that_leaves_while_a_run_begins_loses_nothing(
    chiplog_dir: Path, monkeypatch, tmp_path: Path, rounds: Rounds
) -> None:
    """Embedded: each run starts at a random moment around the idle exit of the agent.

    The last run starts in the middle of it, because no later run starts an agent that would deliver its journal.
    """
    idle_exit_s = 0.3
    code = patched.LEAVES_AT_ONCE.format(idle_exit_s=idle_exit_s) + LEAVES_SLOWLY
    patch_daemons(monkeypatch, tmp_path / "patch", code)
    place = paths_for_root(chiplog_dir)
    agents: set[int] = set()
    labels: list[str] = []

    def be(label: str) -> None:
        labels.append(label)
        run = chiplog.init(project="race", run_id="race", label=label, dir=str(chiplog_dir), capture_console=False)
        for step in range(5):
            run.log({"x": float(step)}, step=step)
        run.finish()
        agents.add(lock_holder_pid(place.agent / "lock"))

    for seed in rounds(1):
        chooser = random.Random(seed)
        be(f"seed{seed}")
        if chooser.random() < 0.7:  # to the moment, else at any
            until_it_leaves(place, chooser.choice(["socket", "socket", "lock"]), 30.0 if len(labels) == 1 else 3.0)
            time.sleep(chooser.choice([0.0, 0.0, 0.01]))
        else:
            time.sleep(chooser.uniform(0.0, 2 * idle_exit_s))
    wait_until(lambda: not lock_holder_pid(place.agent / "lock"), "an agent that left")
    be("before the last")
    wait_until(lambda: lock_holder_pid(place.agent / "lock"), "an agent")
    until_it_leaves(place, "socket", 30.0)
    be("last")
    node = Node(chiplog_dir)
    rows = node.until(
        "SELECT label, count(*) AS n FROM metrics GROUP BY label ORDER BY label", lambda rows: len(rows) == len(labels)
    )
    assert rows == [{"label": label, "n": 5} for label in sorted(labels)], f"seeds {labels}"
    [row] = node.sql("SELECT sum(lost)::INTEGER AS lost, sum(pending)::INTEGER AS pending FROM completeness")
    assert row == {"lost": 0, "pending": 0}
    agents.discard(0)
    rounds.count("agents", len(agents))
    assert len(agents) > 1, "none left in between"


@proves(
    "leave-after-drain",
    "an agent does not leave before the collector has all of it",
    part=".idle_exit_s\n            and self._spool.is_drained",
    new=".idle_exit_s",
)
def test_an_idle_agent_stays_until_a_slow_collector_has_all_of_it(
    chiplog_dir: Path, monkeypatch, tmp_path: Path
) -> None:
    code = patched.LEAVES_AT_ONCE.format(idle_exit_s=0.2) + patched.SLOW_COLLECTOR
    patch_daemons(monkeypatch, tmp_path / "patch", code)
    run = chiplog.init(project="race", run_id="race", label="only", dir=str(chiplog_dir), capture_console=False)
    run.log({"x": 1.0})
    run.finish()
    node, place = Node(chiplog_dir), paths_for_root(chiplog_dir)
    wait_until(lambda: node.try_sql("SELECT 1"), "a collector that answers")
    wait_until(lambda: not lock_holder_pid(place.agent / "lock"), "an agent that left")
    assert node.until("SELECT label FROM metrics", lambda rows: len(rows) == 1) == [{"label": "only"}]


@proves("higher-restart-is-primary", "a stale primary's claim changes nothing", value="True")
@pytest.mark.full
def test_a_stale_primary_whose_claim_arrives_last_changes_nothing(cluster: Cluster) -> None:
    """Rank 0 before the restart could not deliver; its journal comes when the one after the restart has finished."""
    launch = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": "0c1c1f9e-5d0b-4f5e-9b8e-2f4a5f7f7f7f",
    }
    code = (
        "import sys, chiplog; name = sys.argv[1]\n"
        "run = chiplog.init(run_id='r', label=name, primary=True, config={'by': name}, capture_console=False)\n"
        "run.log({'x': 1.0}); run.finish()\n"
    )

    def be(name: str, restart: int, node: str, **more: str) -> None:
        cluster.node(node).root.mkdir(parents=True, exist_ok=True)
        variables = launch | cluster.variables(node) | more | {"TORCHELASTIC_RESTART_COUNT": str(restart)}
        subprocess.run([sys.executable, "-c", code, name], env=os.environ | variables, check=True)

    be("stale", 0, "b", CHIPLOG_MODE="offline")
    cluster.start_agent("a")
    be("newer", 1, "a")
    cluster.centre.until("SELECT 1 FROM labels WHERE label = 'newer' AND state = 'finished'")
    before = cluster.centre.sql("SELECT run_id, state, exit_code, primary_label FROM runs")
    cluster.sync(cluster.offline("b"), "a")
    cluster.centre.until("SELECT 1 FROM labels WHERE label = 'stale' AND state = 'finished'")
    config = cluster.centre.sql("SELECT key, value, label FROM config")
    assert config == [{"key": "by", "value": '"newer"', "label": "newer"}]
    assert cluster.centre.sql("SELECT run_id, state, exit_code, primary_label FROM runs") == before
    rows = cluster.centre.sql("SELECT kind, label FROM events WHERE kind LIKE '%refused' ORDER BY kind")
    assert rows == [{"kind": "config_refused", "label": "stale"}, {"kind": "primary_refused", "label": "stale"}]
