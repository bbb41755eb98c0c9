"""The agent as a process: one per directory, no input stops it, and it leaves nothing behind."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from chiplog_agent.daemon import AgentDaemon, AgentSettings
from chiplog_schemas.codec import pack
from chiplog_schemas.limits import CREDIT_BYTES, MIB, SPOOL_SYNC_INTERVAL_SLOW_S
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from chiplog_schemas.process.file_lock import Lock, lock_holder_pid
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.actions import DataReceived, LeaveCause, SessionClosed, SessionOpened
from chiplog_schemas.protocol.messages import MessageKind
from chiplog_schemas.storage.journal_dir import LOCK_NAME
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.record import encode as frame
from tests.support.dealer_by_hand import DealerByHand
from tests.support.descriptors import no_descriptors
from tests.support.marks import everyday
from tests.support.node import Node, end_daemons, end_process
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_MS, WAIT_S, wait_until

AGENT = [sys.executable, "-P", "-m", "chiplog_agent", "--no-stats"]
# An embedded agent with little patience: for tests of its leaving. No collector is started by it.
IMPATIENT = """
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from chiplog_agent import daemon
from chiplog_schemas.process.file_lock import LockHeldError, take_lock
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
daemon.CollectorSupervisor.ensure_running = lambda self, now: None
try:
    place = paths_for_root(Path(sys.argv[1]))
    ensure_private_dir(place.agent)
    lock = take_lock(place.agent / "lock", patient_s=2.0, note="embedded")
    settings = daemon.AgentSettings(place, "node-a", embedded=True, stats=False, idle_exit_s=float(sys.argv[2]))
    daemon.AgentDaemon(settings, lock).run()
except LockHeldError:
    sys.exit(9)
"""
# An agent that syncs once an hour, unless something hurries it.
SLOW = """
import sys
from pathlib import Path
from chiplog_agent import daemon
from chiplog_schemas.process.file_lock import take_lock
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
daemon.SPOOL_SYNC_INTERVAL_SLOW_S = 3600.0
place = paths_for_root(Path(sys.argv[1]))
ensure_private_dir(place.agent)
daemon.AgentDaemon(daemon.AgentSettings(place, "node-a", stats=False), take_lock(place.agent / "lock")).run()
"""
RANK = """
import sys
import time
from collections.abc import Iterator
import chiplog
run = chiplog.init(run_id="r", label=sys.argv[1], capture_console=False, agent=sys.argv[2] if sys.argv[2:] else None)
for step in range(100): run.log({"x": float(step)}, step=step)
run.finish()
"""


class Rank(DealerByHand):
    """A rank's end of the wire, written by hand."""

    def __init__(self, address: str, producer: bytes = b"P" * 16) -> None:
        super().__init__(address)
        self.producer = producer
        self.session = os.urandom(8)
        self.credit = -1
        self.acked = 0
        self.next = 0

    def hello(self) -> messages.Message:
        self.socket.send_multipart(messages.hello(self.session, self.producer, 0, {"pid": os.getpid()}))
        message = self.receive()
        assert message.kind == MessageKind.WELCOME
        return message

    def hello_again(self) -> messages.Message:
        """Begin another session; what was sent in the one before is not read."""
        self.session = os.urandom(8)
        self.socket.send_multipart(messages.hello(self.session, self.producer, 0, {"pid": os.getpid()}))
        while (message := self.receive()).kind != MessageKind.WELCOME:
            pass
        return message

    def say(self, *payloads: bytes) -> None:
        data = b"".join(frame(Kind.EVENT, self.next + index, payload) for index, payload in enumerate(payloads))
        last = self.next + len(payloads) - 1
        self.socket.send_multipart(messages.data(self.session, self.next, last, data))
        self.next = last + 1

    def fill_spool(self) -> None:
        """Send 2 MB, and wait until the agent withholds credit."""
        self.say(identity(), *[encode(EventKind.TEXT, 1, 1, "k", "x" * 500_000)] * 4)
        wait_until(lambda: self.receive().credit == 0, "credit that is withheld")

    def receive(self) -> messages.Message:
        message = messages.parse(self.frames())
        self.credit = message.credit
        self.acked = max(self.acked, message.next)
        return message

    def wait_for(self, acked: int) -> None:
        while self.acked < acked:
            self.receive()


@pytest.fixture
def rank(bare_node):
    rank = Rank(bare_node.place.agent_address)
    yield rank
    rank.close()


def identity(label: str = "hand") -> bytes:
    return encode(EventKind.IDENTITY, 1, {"role": "rank", "run_id": "r", "label": label})


def run_rank(label: str = "rank0", *more: str, says: str = "") -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RANK, label, *more], capture_output=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stderr.decode() and len(done.stderr.splitlines()) == bool(says), done.stderr


@pytest.mark.promise(2)
def test_an_acknowledgement_means_that_it_is_in_the_spool(bare_node, rank) -> None:
    bare_node.start_agent()
    assert rank.hello().next == 0
    rank.say(identity(), *(encode(EventKind.TEXT, n, n, "k", "v") for n in range(50)))
    rank.wait_for(51)
    bare_node.kill_agent()
    bare_node.start()
    rows = bare_node.until("SELECT count(*) AS n, count(DISTINCT seq) AS d FROM texts", lambda rows: rows[0]["n"] == 50)
    assert rows == [{"n": 50, "d": 50}]


def test_garbage_on_its_socket_does_not_stop_it(bare_node, rank) -> None:
    bare_node.start("--node", "node-a")
    rank.hello()
    session = rank.session
    for frames in (
        [b""],
        [b"\xc1"],
        [b"x"] * 7,
        [os.urandom(1000)],
        [pack([99, session])],
        [pack([3, session, 0, 2**64 - 1]), b"x"],
        [pack([3, session, 5, 3]), b"x"],
        [pack([1, session, [1, 1], b"short", 0, {}])],
        [pack([1, b"", [1, 1], b"x" * 16, 0, {}])],
        [pack([7, b"8 bytes!"])],
        [pack([1, b"other---", [7, 9], b"N" * 16, 0, {}])],
    ):
        rank.socket.send_multipart(frames)
    assert rank.receive().kind == MessageKind.RESET, "unsupported versions"
    rank.say(identity())
    rank.socket.send_multipart(messages.data(session, 1, 3, b"no records" * 10))
    rank.next = 4
    rank.say(
        b"\xc1", pack([99, 1]), pack([1, 2, 3, pack(["a", "a"]), b"x" * 16]), encode(EventKind.TEXT, 1, 1, "k", "v")
    )
    rank.wait_for(8)
    rows = bare_node.until(
        "SELECT kind, count(*)::INT AS n FROM events WHERE label = 'hand' GROUP BY kind ORDER BY kind",
        lambda rows: len(rows) == 2,
    )
    assert rows == [{"kind": "lost", "n": 1}, {"kind": "quarantined", "n": 3}]
    assert bare_node.sql("SELECT key, value FROM texts") == [{"key": "k", "value": "v"}]
    assert bare_node.sql("SELECT produced, stored, lost, pending FROM completeness") == [
        {"produced": 8, "stored": 2, "lost": 6, "pending": 0}
    ]
    assert bare_node.agent.poll() is None


def test_a_full_spool_withholds_credit_and_ranks_keep_their_events_until_there_is_room(bare_node, rank) -> None:
    bare_node.start_agent("--spool-bytes-max", str(MIB))
    assert rank.hello().credit == CREDIT_BYTES
    rank.fill_spool()
    run_rank()
    journals = bare_node.place.journals
    assert len(list(journals.glob("[!.]*"))) == 1, "its journal keeps what the spool cannot"
    bare_node.start_collector()
    # By a session of its own each time: an agent that was slow has ended the one of a rank that was silent.
    wait_until(lambda: rank.hello_again().credit == CREDIT_BYTES, "credit again")
    query = "SELECT count(*) AS n FROM metrics WHERE label = 'rank0'"
    bare_node.until(query, lambda rows: rows[0]["n"] == 100)
    wait_until(lambda: not list(journals.iterdir()), "a journal that is removed")
    bare_node.until("SELECT 1 FROM labels WHERE label = 'rank0' AND state = 'finished'")


def test_samples_that_a_full_spool_drops_are_counted_and_declared(bare_node, rank) -> None:
    """The sampler runs here: with statistics."""
    bare_node.agent = bare_node._start(
        "chiplog_agent", "--spool-bytes-max", str(MIB), "--sample-interval-s", "0.1", "--node", "node-a"
    )
    rank.hello()
    rank.fill_spool()
    sampler = Path(f"/proc/{bare_node.agent.pid}/task/{bare_node.agent.pid}/children")
    wait_until(lambda: sampler.read_text().split(), "a sampler process")

    def sampled_bytes() -> int:
        counters = dict(
            line.split(": ") for line in Path(f"/proc/{sampler.read_text().split()[0]}/io").read_text().splitlines()
        )
        return int(counters["wchar"])

    wait_until(lambda: sampled_bytes() > 5_000, "sets of samples, one every 0.1 s")
    bare_node.start_collector()
    rows = bare_node.until("SELECT message, body->>'samples' AS n FROM events WHERE kind = 'samples_dropped'")
    assert sum(int(row["n"]) for row in rows) > 0
    assert "were dropped while the spool was full" in rows[0]["message"]
    bare_node.until("SELECT 1 FROM system_samples")


SAMPLED = """
import os, sys, time
import chiplog
run = chiplog.init(run_id=sys.argv[1], label="a", capture_console=False, sample_interval_s=float(sys.argv[2]))
print(os.getpid(), flush=True)
if sys.argv[3:]:
    time.sleep(2.0)  # a sample may come, and must not
else:
    input()
run.finish()
"""


def test_a_node_is_sampled_as_its_ranks_ask(bare_node: Node, tmp_path: Path) -> None:
    """The agent is the one that a training starts: it samples the host and the ranks that want it."""
    command = [sys.executable, "-c", SAMPLED]
    environ = os.environ | {"CHIPLOG_DIR": str(bare_node.root)}
    subprocess.run([*command, "alone", "0", "briefly"], env=environ, check=True, timeout=WAIT_S, capture_output=True)
    bare_node.until("SELECT 1 FROM runs WHERE run_id = 'alone' AND state = 'finished'")
    assert bare_node.sql("SELECT * FROM system_samples") == []
    both = [
        subprocess.Popen([*command, *given], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for given in (("quiet", "0"), ("often", "0.1"))
    ]
    try:
        quiet, often = [f"pid:{int(process.stdout.readline())}" for process in both if process.stdout is not None]
        close = """
            SELECT count(*) AS n FROM (
                SELECT epoch(ts - lag(ts) OVER (PARTITION BY device, name ORDER BY ts)) AS gap_s, device
                FROM system_samples
            ) WHERE gap_s < 0.5 AND device = ?
        """
        for device in (often, ""):
            wait_until(lambda device=device: bare_node.sql(close, [device])[0]["n"] > 5, "samples in short intervals")
        assert bare_node.sql("SELECT * FROM system_samples WHERE device = ?", [quiet]) == []
    finally:
        for process in both:
            process.communicate(b"\n", timeout=WAIT_S)
        end_daemons(bare_node.place)


def start_impatient(root: Path, idle_exit_s: float = 0.5) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", IMPATIENT, str(root), str(idle_exit_s)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until(
        lambda: lock_holder_pid(paths_for_root(root).agent / "lock") == process.pid, "an agent that holds its lock"
    )
    return process


@pytest.mark.full
def test_an_embedded_agent_leaves_when_idle_and_a_late_arrival_is_still_delivered(bare_node) -> None:
    bare_node.start_collector()
    process = start_impatient(bare_node.root, idle_exit_s=8.0)  # long enough for a rank to start, on a busy machine too
    try:
        run_rank("early", bare_node.place.agent_address)
        wait_until(lambda: process.poll() is not None, "an agent that leaves")
        assert process.returncode == 0
        assert process.communicate()[1] == ""
        assert lock_holder_pid(bare_node.place.agent / "lock") == 0
        run_rank("late", bare_node.place.agent_address, says="cannot be reached")  # given an address, it starts none
        assert len(list(bare_node.place.journals.glob("[!.]*"))) == 1
        process = start_impatient(bare_node.root)
        query = "SELECT label, count(*)::INT AS n FROM metrics GROUP BY label ORDER BY label"
        rows = bare_node.until(query, lambda rows: len(rows) == 2)
        assert rows == [{"label": "early", "n": 100}, {"label": "late", "n": 100}]
        wait_until(lambda: process.poll() is not None, "an agent that leaves")
    finally:
        end_process(process.pid)
        process.communicate()


SHOWS_SUCCESSOR = """
def start(module, arguments, where, path, patient_s):
    print("successor", file=sys.stderr)
daemon.start_daemon_once = start
leave = daemon.AgentDaemon._try_exit_idle
def leave_then_make(self):
    left = leave(self)
    if left and sys.argv[3]:  # a rank that still saw this agent's lock
        (self.settings.places.journals / sys.argv[3]).mkdir()
    return left
daemon.AgentDaemon._try_exit_idle = leave_then_make
"""


@proves(
    "no-successor-for-known-journals",
    "a leaving agent starts no successor for journals that no agent can adopt",
    part="- self._orphans.known",
)
@pytest.mark.parametrize(("late", "printed"), everyday(1, [("fedcba9876543210" * 2, "successor\n"), ("", "")]))
def test_a_leaving_agent_starts_a_successor_only_for_journals_that_it_has_not_seen(
    bare_node: Node, late: str, printed: str
) -> None:
    """Otherwise a directory that no agent can adopt starts one agent after the other."""
    bare_node.start_collector()
    (bare_node.place.journals / ("0123456789abcdef" * 2)).mkdir(parents=True)
    (bare_node.place.journals / ("00112233445566778899aabbccddeeff") / LOCK_NAME).mkdir(parents=True)
    code = IMPATIENT.replace("try:\n", SHOWS_SUCCESSOR + "try:\n", 1)
    command = [sys.executable, "-c", code, str(bare_node.root), "0.5", late]
    process = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=WAIT_S, check=True)
    assert process.stderr == printed


def test_an_embedded_agent_stays_while_a_rank_lives_or_its_spool_is_not_delivered(bare_node, rank) -> None:
    process = start_impatient(bare_node.root)
    try:
        rank.hello()
        rank.say(identity())
        rank.wait_for(1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.0)
        rank.socket.send_multipart(messages.bye(rank.session))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        bare_node.start_collector()
        process.wait(WAIT_S)
        assert process.returncode == 0
    finally:
        end_process(process.pid)
        process.communicate()


def test_a_sigterm_stops_it_with_everything_synced_and_said(bare_node, rank) -> None:
    bare_node.start_agent()
    rank.hello()
    rank.say(identity(), encode(EventKind.TEXT, 1, 1, "k", "v"))
    rank.wait_for(2)
    bare_node.stop_agent()
    assert bare_node.agent.returncode == 0
    assert "agent stopped" in bare_node.output()
    assert "Traceback" not in bare_node.output()
    assert lock_holder_pid(bare_node.place.agent / "lock") == 0


def test_an_agent_whose_socket_was_cleaned_away_listens_anew(tmp_path: Path) -> None:
    place = paths_for_root(tmp_path / "c")
    process = subprocess.Popen([*AGENT, "--dir", str(place.root)], stderr=subprocess.PIPE)
    try:
        path = Path(place.agent_address.removeprefix("ipc://"))
        wait_until(path.exists, "the agent's socket")
        rank = Rank(place.agent_address)
        rank.hello()  # it serves: it has set the socket's mode, and noted which file it is
        rank.close()
        path.unlink()
        wait_until(path.exists, "the agent's socket, restored")
        rank = Rank(place.agent_address)
        rank.hello()
        rank.close()
    finally:
        end_process(process.pid)
        process.communicate()


def test_a_training_that_waits_for_its_children_does_not_wait_for_the_agent(tmp_path: Path) -> None:
    code = (
        "import os, time, chiplog\n"
        "run = chiplog.init(run_id='w', label='a')\n"
        "for _ in range(200):\n"
        "    run.log({'x': 1.0}); time.sleep(0.01)\n"
        "try:\n"
        "    print('child', os.waitpid(-1, os.WNOHANG))\n"
        "except ChildProcessError:\n"
        "    print('no children')\n"
        "run.finish()\n"
    )
    place = paths_for_root(tmp_path / "c")
    environ = os.environ | {"CHIPLOG_DIR": str(place.root)}
    try:
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == ["no children"]
        wait_until(lambda: lock_holder_pid(place.agent / "lock") > 0, "the agent that it has started")
    finally:
        end_daemons(place)


@pytest.fixture
def daemon(chiplog_dir: Path) -> Iterator[AgentDaemon]:
    """An agent whose turns the test runs."""
    place = paths_for_root(chiplog_dir)
    ensure_private_dir(place.agent)
    daemon = AgentDaemon(AgentSettings(place, "node-a", stats=False), Lock(place.agent / "lock"))
    yield daemon
    daemon.stop()
    daemon.run()


OWNER = """
import pathlib, sys
from chiplog_schemas.process.file_lock import Lock
lock = Lock(pathlib.Path(sys.argv[1]))
print()
input()
"""


def start_owner(journal: Path) -> "subprocess.Popen[bytes]":
    """Start a process that holds the lock of a journal until its stdin ends."""
    journal.mkdir(parents=True)
    command = [sys.executable, "-c", OWNER, str(journal / LOCK_NAME)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_producer_that_is_gone_is_forgotten_in_all_respects(daemon: AgentDaemon) -> None:
    producer = b"P" * 16
    journal = daemon.settings.places.journals / producer.hex()
    process = start_owner(journal)
    daemon._act([SessionOpened(producer, {"pid": process.pid})], 1.0)
    records = frame(Kind.EVENT, 0, encode(EventKind.STATE, 1, {"state": "finished"}))
    daemon._act([DataReceived(producer, 0, 0, records)], 1.0)
    daemon._flush(100.0)
    assert daemon._synced == {producer: 1}
    process.communicate()
    shutil.rmtree(journal)
    assert daemon._exit_causes.poll(42)
    assert daemon._exit_causes.resolve(producer, {}, 99, finished=False)[0] == 42
    daemon._act([SessionClosed(producer, LeaveCause.GOODBYE)], 2.0)
    daemon._flush(200.0)
    daemon._poll_journals(200.0)
    assert producer not in daemon._batcher.peers
    assert daemon._synced == {}
    assert daemon._exit_causes.resolve(producer, {}, 99, finished=False)[0] == 99


@proves(
    "process-watched-while-needed",
    "a process is watched no longer than a journal or a session of it is there",
    part="| self._exit_causes.watched",
)
def test_a_journal_that_is_looked_at_behind_the_goodbye_costs_no_descriptor(daemon: AgentDaemon) -> None:
    """The process lives on, as one does that makes a run after the other."""
    producer = b"P" * 16
    journal = daemon.settings.places.journals / producer.hex()
    with start_owner(journal) as process:
        records = frame(Kind.EVENT, 0, encode(EventKind.STATE, 1, {"state": "finished"}))
        daemon._act([SessionOpened(producer, {}), DataReceived(producer, 0, 0, records)], 1.0)
        daemon._flush(100.0)
        daemon._act([SessionClosed(producer, LeaveCause.GOODBYE)], 100.0)
        daemon._poll_journals(100.0)
        assert daemon._exit_causes.watched == {producer}, "its journal is still there"
        assert n_pidfds_of(process.pid) == 1
        shutil.rmtree(journal)
        daemon._poll_journals(200.0)
        assert daemon._exit_causes.watched == set()
        assert n_pidfds_of(process.pid) == 0


def n_pidfds_of(pid: int) -> int:
    n_found = 0
    for entry in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # already closed
            n_found += f"\nPid:\t{pid}\n" in entry.read_text()
    return n_found


@proves(
    "peer-state-dropped",
    "the agent's state of a producer is dropped with it, whichever message is last",
    part="| self._synced.keys()",
)
def test_an_acknowledgement_behind_the_goodbye_is_forgotten_too(daemon: AgentDaemon) -> None:
    producer = b"P" * 16
    daemon._act([SessionOpened(producer, {}), DataReceived(producer, 0, 0, frame(Kind.EVENT, 0, identity()))], 1.0)
    daemon._act([SessionClosed(producer, LeaveCause.GOODBYE)], 1.0)
    daemon._poll_journals(100.0)
    daemon._flush(100.0)
    assert daemon._synced == {producer: 1}, "it was synced after its producer was forgotten"
    daemon._poll_journals(200.0)
    assert daemon._synced == {}


@proves("descriptors-short-agent-continues", "without a free descriptor an agent continues", value="FileNotFoundError")
def test_nothing_in_the_loop_ends_for_want_of_a_descriptor_and_each_trouble_is_said_once(
    daemon: AgentDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(daemon.settings.places.agent_address.removeprefix("ipc://"))
    path.unlink()
    daemon._poller.register(daemon._router.socket, zmq.POLLIN)
    daemon._collector._may_start = True
    with no_descriptors(), caplog.at_level("WARNING", "chiplog.agent"):
        for turn in range(5):
            now = time.monotonic() + 100.0 * turn
            daemon._poll_journals(now)
            daemon._flush(now)
            daemon._delivery.poll(now)
            daemon._collector.ensure_running(now)
    said = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert len(said) == len(set(said)), said
    assert "journals cannot be listed" in said
    daemon._poll_journals(time.monotonic() + 1000.0)
    assert path.exists(), "it listens again"
    daemon._flush(time.monotonic() + 1000.0)
    assert not daemon._spool.waiting_bytes, "and writes"


# -- how often it syncs --


def begin_small_block(daemon: AgentDaemon, now: float) -> None:
    """Begin a block by one small event, after a whole turn."""
    daemon._flush(now)
    daemon._turned_at = now
    daemon._act([DataReceived(b"P" * 16, 0, 0, frame(Kind.EVENT, 0, identity()))], now)
    assert daemon._is_gathering(now)


def test_a_small_block_gathers_until_it_is_due_or_a_rank_waits_and_no_longer_than_a_turn(daemon: AgentDaemon) -> None:
    now = time.monotonic() + 100.0
    begin_small_block(daemon, now)
    assert not daemon._is_gathering(now + SPOOL_SYNC_INTERVAL_SLOW_S + 0.001)
    daemon._batcher.sync_interval_s = 3600.0
    assert daemon._is_gathering(now + SPOOL_SYNC_INTERVAL_SLOW_S + 0.001)
    assert not daemon._is_gathering(now + 1.0), "other work"
    daemon._receiver.is_ack_requested = True
    assert not daemon._is_gathering(now)


def test_a_process_that_has_ended_ends_the_gathering(daemon: AgentDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = b"P" * 16
    process = start_owner(daemon.settings.places.journals / producer.hex())
    daemon._act([SessionOpened(producer, {"pid": process.pid})], time.monotonic())
    begin_small_block(daemon, time.monotonic() + 100.0)
    process.communicate()
    turns = iter([True])  # but for the process the block would gather; a second turn is too late
    monkeypatch.setattr(daemon, "_is_gathering", lambda now: next(turns))
    monkeypatch.setattr(daemon._samples, "take", lambda *_: (_ for _ in ()).throw(InterruptedError))
    with pytest.raises(InterruptedError):
        daemon.run()


@pytest.fixture
def slow_agent(chiplog_dir: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-P", "-c", SLOW, str(chiplog_dir)])
    yield
    process.terminate()
    assert process.wait(WAIT_S) == 0


def wait_for_ack(rank: Rank, number: int) -> messages.Message:
    while rank.socket.poll(WAIT_MS):
        message = rank.receive()
        if message.next >= number:
            return message
    raise AssertionError(f"{number} is not acknowledged")


@proves("waiting-rank-acknowledged-at-once", "a rank that waits for its acknowledgement does not wait for the interval")
@pytest.mark.usefixtures("slow_agent")
def test_a_rank_that_waits_for_its_acknowledgement_gets_it_at_once(chiplog_dir: Path) -> None:
    rank = Rank(paths_for_root(chiplog_dir).agent_address)
    rank.hello()
    rank.say(encode(EventKind.NOTICE, 1, "a", "info", "b", {}))
    rank.socket.send_multipart(messages.ping(rank.session, rank.next))
    wait_for_ack(rank, 1)  # the agent's first turn writes its own identity, and what has arrived with it
    for number in range(1, 4):
        rank.say(encode(EventKind.NOTICE, 1, "a", "info", "b", {}))
        while rank.socket.poll(200):  # a heartbeat may come
            assert rank.receive().next <= number, "acknowledged before anything hurries the agent"
        rank.socket.send_multipart(messages.ping(rank.session, rank.next))
        assert not wait_for_ack(rank, number + 1).queried
    rank.close()


@proves("ranks-told-of-queries", "ranks learn from their agent that clients ask", value="False")
@pytest.mark.usefixtures("slow_agent")
def test_while_clients_ask_the_collector_its_agents_sync_often_and_tell_their_ranks(chiplog_dir: Path) -> None:
    place = paths_for_root(chiplog_dir)
    done = threading.Event()

    def answer_as_collector() -> None:
        ensure_private_dir(place.run)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with context.socket(zmq.ROUTER) as router:
            router.bind(place.collector_address)
            while not done.is_set():
                if not router.poll(20):
                    continue
                routing, *frames = router.recv_multipart()
                message = messages.parse(frames)
                if message.kind == MessageKind.HELLO:
                    router.send_multipart([routing, *messages.welcome(message.session, 0, CREDIT_BYTES)])
                elif message.kind in (MessageKind.DATA, MessageKind.PING):
                    router.send_multipart([routing, *messages.ack(message.session, 0, CREDIT_BYTES, queried=True)])
        context.term()

    collector = threading.Thread(target=answer_as_collector)
    collector.start()
    try:
        rank = Rank(place.agent_address)
        rank.hello()
        rank.say(encode(EventKind.NOTICE, 1, "a", "info", "b", {}))
        assert wait_for_ack(rank, 1).queried
        rank.close()
    finally:
        done.set()
        collector.join(WAIT_S)
