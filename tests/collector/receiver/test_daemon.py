"""The receiver: real sockets, real files. Acknowledged means in the log; what is sent again is stored once."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest
import zmq

from chiplog_client.client import NoDataError, connect
from chiplog_collector.query.flush_demand import QueryDemand
from chiplog_collector.receiver import daemon as receiver_module
from chiplog_collector.receiver.agent_liveness import CLEAN_EXIT_GRACE_S, MISSED_AFTER_S
from chiplog_collector.receiver.daemon import ReceiverDaemon, ReceiverSettings
from chiplog_schemas.codec import unpack
from chiplog_schemas.limits import CREDIT_BYTES, PEER_SILENT_S
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.process.log_owner import LogOwnership
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.actions import LeaveCause, SessionClosed
from chiplog_schemas.protocol.messages import MessageKind
from chiplog_schemas.storage.record import CorruptRange, Kind, Record
from chiplog_schemas.storage.record import encode as frame
from chiplog_schemas.storage.segment_format import list_segments, read_segment
from tests.support.agent_by_hand import SENDER, Agent
from tests.support.collector_log import Rank, whole
from tests.support.lock_holder import lock_holder
from tests.support.marks import everyday
from tests.support.ports import free_ports
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until


@pytest.fixture
def agent(bare_node):
    bare_node.start_collector()
    agent = Agent(bare_node.place.collector_address)
    yield agent
    agent.close()


@proves("bad-query-address-refused", "an address of SQL that cannot be bound is one line at the start")
def test_an_address_of_sql_that_is_in_use_ends_the_start_unless_an_index_has_it(chiplog_dir) -> None:
    place = paths_for_root(chiplog_dir)
    ensure_private_dir(place.run)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        settings = ReceiverSettings(place, [place.collector_address], [place.query_address, address])
        with pytest.raises(OSError, match=f"^query address {address} cannot be bound: "):
            ReceiverDaemon(settings)
        with lock_holder(place.index_lock):
            ReceiverDaemon(settings).close()


def records_of(place) -> list[Record | CorruptRange]:
    return [item for _, path in list_segments(place.collector / "log") for item in read_segment(path)]


def blocks_of(place) -> list[bytes]:
    return [bytes(item.payload) for item in records_of(place) if isinstance(item, Record) and item.kind == Kind.BLOCK]


def rank_of(number: int, n_steps: int) -> bytes:
    rank = Rank(number)
    for step in range(n_steps):
        rank.log(step, a=1.0)
    return whole(rank)


def test_acknowledged_means_in_the_log_also_when_the_receiver_is_killed_at_once(bare_node, agent) -> None:
    blocks = [rank_of(number, 3) for number in range(5)]
    assert agent.hello().next == 0
    agent.send(0, *blocks[:2])
    agent.send(2, *blocks[2:])
    assert agent.acknowledged(5).credit == CREDIT_BYTES
    bare_node.collector.kill()
    bare_node.collector.wait()
    assert blocks_of(bare_node.place) == blocks, "verbatim, in order"
    kinds = [item.kind for item in records_of(bare_node.place)]
    assert kinds[0] == Kind.SENDERS
    assert kinds[-1] == Kind.RECEIPT


@proves("agents-told-of-queries", "agents learn that clients ask", value="False")
def test_an_acknowledgement_reports_whether_a_client_has_asked(bare_node, agent) -> None:
    agent.hello()
    agent.send(0, rank_of(0, 3))
    assert not agent.acknowledged(1).queried
    bare_node.until("SELECT count(*) AS n FROM metrics", lambda rows: rows == [{"n": 3}])
    agent.send(1, rank_of(1, 3))
    assert agent.acknowledged(2).queried


def test_a_session_that_is_not_known_is_told_to_begin_again(agent) -> None:
    agent.hello()
    agent.session = os.urandom(8)
    agent.send(0, b"x")
    assert agent.receive().kind == MessageKind.RESET


def test_garbage_is_counted_or_quarantined_and_stops_nobody(bare_node, agent) -> None:
    agent.hello()
    for frames in ([b""], [b"\xc1"], [b"x"] * 5, [b"\x91\x01"], [os.urandom(100), os.urandom(1000)]):
        agent.socket.send_multipart(frames)
    sound = frame(Kind.BLOCK, 1, rank_of(1, 2))
    agent.send_raw(0, 1, b"no record at all" * 10 + sound)
    agent.send(2, b"a journal's record", kind=Kind.EVENT)
    agent.send(3, b"no block")
    agent.acknowledged(4)
    said = "SELECT kind, message FROM events WHERE kind <> 'node_lost'"  # this agent sends no heartbeats
    rows = bare_node.until(said, lambda rows: len(rows) == 3)
    assert {row["kind"] for row in rows} == {"quarantined"}
    assert bare_node.sql("SELECT count(*) AS n FROM metrics") == [{"n": 2}]
    assert bare_node.collector.poll() is None


def test_a_declared_gap_is_a_row(bare_node, agent) -> None:
    agent.hello()
    agent.socket.send_multipart(messages.lost(agent.session, 0, 4, "spool damaged"))
    agent.hello(first=5)
    agent.send(5, rank_of(1, 1))
    agent.acknowledged(6)
    rows = bare_node.until("SELECT message FROM events WHERE kind = 'gap' AND message LIKE '%damaged'")
    assert rows == [{"message": "an agent's records 0..4 can never arrive: spool damaged"}]


def test_what_a_sender_trimmed_and_this_log_does_not_have_is_a_row(bare_node, agent) -> None:
    agent.hello(first=5)
    agent.send(5, rank_of(1, 1))
    agent.acknowledged(6)
    (row,) = bare_node.until("SELECT message FROM events WHERE kind = 'gap'")
    assert row["message"].startswith("an agent's records 0..4 can never arrive: acknowledged to the sender")


def test_a_second_collector_on_the_same_directory_says_in_one_line_who_serves_it(bare_node, agent) -> None:
    agent.hello()
    command = [sys.executable, "-P", "-m", "chiplog_collector", "--dir", str(bare_node.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert f"collector process {bare_node.collector.pid}" in line
    assert bare_node.collector.poll() is None


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--bind", "tcp://0.0.0.0:7000"], "tcp://0.0.0.0:7000"),
        (["--bind", "nonsense"], "nonsense"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--bind"], "--bind"),
    ],
)
def test_bad_flags_are_one_line_that_names_them_and_exit_code_2(tmp_path, flags, named) -> None:
    command = [sys.executable, "-P", "-m", "chiplog_collector", "--dir", str(tmp_path / "c"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert named in line


def test_an_address_in_use_is_one_line_and_exit_code_1(tmp_path, bare_node, agent) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        flags = ["--dir", str(tmp_path / "c"), "--bind", f"tcp://127.0.0.1:{port}"]
        command = [sys.executable, "-P", "-m", "chiplog_collector", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert f"127.0.0.1:{port}" in line


def test_it_stops_when_told_with_everything_in_the_database(bare_node, agent) -> None:
    agent.hello()
    for number in range(20):
        agent.send(number, rank_of(number, 50))
    agent.acknowledged(20)
    bare_node.stop_collector()
    assert bare_node.collector.returncode == 0
    assert bare_node.sql("SELECT count(*) AS n FROM metrics") == [{"n": 1000}]
    assert lock_holder_pid(bare_node.place.collector / "lock") == 0


def test_the_index_is_started_again_when_it_dies(bare_node, agent) -> None:
    agent.hello()
    bare_node.until("SELECT 1")
    [child] = Path(f"/proc/{bare_node.collector.pid}/task/{bare_node.collector.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    agent.send(0, rank_of(1, 7))
    agent.acknowledged(1)  # no process waits for the index
    assert bare_node.until("SELECT count(*) AS n FROM metrics", lambda rows: rows[0]["n"]) == [{"n": 7}]


@proves(
    "failed-spawn-retried",
    "a system that starts no process for a while costs the index that while, and not the receiver",
    value="ZeroDivisionError",
)
@pytest.mark.full
def test_the_receiver_goes_on_while_the_index_cannot_be_started(bare_node, agent) -> None:
    agent.hello()
    bare_node.until("SELECT 1")
    pid = bare_node.collector.pid
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    lowest_free = min(set(range(len(used) + 1)) - used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest_free, limits[1]))  # a pipe for the next one is refused
    os.kill(int(child), signal.SIGKILL)

    def is_refused() -> bool:
        assert bare_node.collector.poll() is None, "the receiver ended"
        return "index cannot be started: " in bare_node.output("chiplog_collector")

    wait_until(is_refused, "a start that was refused")
    agent.send(0, rank_of(1, 7))
    agent.acknowledged(1)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert bare_node.until("SELECT count(*) AS n FROM metrics", lambda rows: rows[0]["n"]) == [{"n": 7}]
    said = bare_node.output("chiplog_collector")
    assert said.count("index cannot be started: ") == said.count("index could be started again") == 1


# -- the daemon in this process: its segments made small --


def index_of(collector: "subprocess.Popen[bytes]") -> list[str]:
    """Return the command lines of the index processes of a collector."""
    children = Path(f"/proc/{collector.pid}/task/{collector.pid}/children").read_text().split()
    commands = [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in children]
    return [command for command in commands if "chiplog_collector.index" in command]


@pytest.fixture
def embedded(bare_node):
    """An embedded collector that has acknowledged three events, and that no client has queried."""
    collector = bare_node.collector = bare_node._start("chiplog_collector", "--embedded")
    agent = Agent(bare_node.place.collector_address)
    agent.hello()
    agent.send(0, rank_of(1, 3))
    agent.acknowledged(1)
    yield collector
    agent.close()


@proves("query-starts-index", "the first query starts the index of an embedded collector", value="False")
@proves("first-query-sees-log", "the index that a query starts applies the whole log before it answers")
def test_the_index_of_an_embedded_collector_starts_at_the_first_query(bare_node, embedded) -> None:
    assert not index_of(embedded), "no client needs it"
    assert not bare_node.place.index.exists()
    assert bare_node.sql("SELECT count(*) AS n FROM metrics") == [{"n": 3}], "in the first answer"
    [command] = index_of(embedded)
    assert "--first-wait" in command


@proves("end-applies-log", "an embedded collector that ends leaves a database with everything")
def test_an_embedded_collector_that_ends_without_a_query_leaves_everything_in_the_database(bare_node, embedded) -> None:
    bare_node.stop_collector()
    assert bare_node.place.index.exists()
    assert bare_node.sql("SELECT count(*) AS n FROM metrics") == [{"n": 3}]


@proves("applied-log-private", "a database that a reader's index creates is for its user only", part="umask=0o077,")
@proves("log-of-other-host-left-alone", "a reader leaves the log of a service to its operator", value="has_log(where)")
def test_a_reader_applies_a_log_that_a_killed_collector_left(bare_node, embedded, capsys) -> None:
    embedded.kill()
    embedded.wait()
    assert not bare_node.place.index.exists()
    with pytest.raises(NoDataError, match="no database has the log"), connect(dir=bare_node.root, start=False):
        pass
    LogOwnership(bare_node.place, is_service=True).release()
    with pytest.raises(NoDataError, match="no database has the log"), connect(dir=bare_node.root):
        pass
    LogOwnership(bare_node.place).release()
    umask = os.umask(0o022)
    try:
        with connect(dir=bare_node.root) as client:
            assert client.sql("SELECT count(*) AS n FROM metrics").rows() == [{"n": 3}]
    finally:
        os.umask(umask)
    assert "has records that are not in the database; they are applied now" in capsys.readouterr().err
    assert not lock_holder_pid(bare_node.place.index_lock), "no process stays"
    assert bare_node.place.index.stat().st_mode & 0o777 == 0o600


def test_a_reader_replaces_the_views_of_an_older_version(bare_node, embedded, capsys) -> None:
    bare_node.stop_collector()
    with duckdb.connect(str(bare_node.place.index)) as database:
        database.execute("DROP SCHEMA reads CASCADE")
    with connect(dir=bare_node.root) as client:
        assert client.sql("SELECT count(*) AS n FROM reads.names").rows()[0]["n"] > 0
    assert "has the views of an older version of chiplog; they are replaced now" in capsys.readouterr().err


@proves("reader-applies-log", "a reader applies records of a killed collector that the database lacks")
@pytest.mark.full
def test_a_reader_applies_records_that_a_database_lacks(bare_node, embedded, capsys) -> None:
    bare_node.stop_collector()
    with connect(dir=bare_node.root) as client:
        assert client.sql("SELECT count(*) AS n FROM metrics").rows() == [{"n": 3}]
        assert not capsys.readouterr().err, "nothing is started for a complete database"
        again = bare_node._start("chiplog_collector", "--embedded")
        agent = Agent(bare_node.place.collector_address)
        agent.hello()
        agent.send(1, rank_of(2, 2))
        agent.acknowledged(2)
        agent.close()
        again.kill()
        again.wait()
        assert client.sql("SELECT count(*) AS n FROM metrics").rows() == [{"n": 5}]
    assert "they are applied now" in capsys.readouterr().err


@pytest.mark.full
def test_readers_that_come_at_the_same_time_see_everything(bare_node, embedded) -> None:
    embedded.kill()
    embedded.wait()

    code = "import chiplog; print(chiplog.connect().sql('SELECT count(*) AS n FROM metrics').rows()[0]['n'])"
    environ = os.environ | {"CHIPLOG_DIR": str(bare_node.root)}
    readers = [subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE) for _ in range(3)]
    assert [reader.communicate(timeout=WAIT_S)[0] for reader in readers] == [b"3\n"] * 3
    assert not list(bare_node.place.collector.glob("*set-aside*"))


def leave_unapplied_log(node, *, embedded: bool) -> None:
    """Kill a collector that has acknowledged three events of which the database has none."""
    flags = ["--embedded"] if embedded else ["--bind", f"tcp://127.0.0.1:{free_ports()}"]
    node.collector = node._start("chiplog_collector", *flags)
    agent = Agent(node.place.collector_address)
    agent.hello()
    stopped = []
    if not embedded:
        node.until("SELECT 1")
        pid = node.collector.pid
        stopped = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    for index in stopped:
        os.kill(index, signal.SIGSTOP)
    agent.send(0, rank_of(1, 3))
    agent.acknowledged(1)
    agent.close()
    node.collector.kill()
    node.collector.wait()
    for index in stopped:
        os.kill(index, signal.SIGKILL)


@proves(
    "reader-applies-log",
    "a reader keeps no collector from its start",
    new='daemons.start(where, daemons.COLLECTOR, ["--embedded"])',
)
@pytest.mark.parametrize("embedded", everyday(1, [True, False]))
@pytest.mark.full
def test_a_collector_starts_after_a_reader_found_records_that_the_database_lacks(bare_node, embedded) -> None:
    leave_unapplied_log(bare_node, embedded=embedded)
    with connect(dir=bare_node.root) as client:
        n_applied = client.sql("SELECT count(*) AS n FROM metrics").rows()[0]["n"]
        bare_node.start_collector()
        pid = bare_node.collector.pid
        wait_until(lambda: lock_holder_pid(bare_node.place.collector / "lock"), "a collector that holds its lock")
        wait_until(
            lambda: bare_node.collector.poll() is not None or bare_node.try_sql("SELECT 1"), "an answer, or its end"
        )
        assert bare_node.collector.poll() is None, bare_node.output("chiplog_collector")
        assert lock_holder_pid(bare_node.place.collector / "lock") == pid
        assert client.sql("SELECT count(*) AS n FROM metrics").rows() == [{"n": 3}]
    assert n_applied == (3 if embedded else 0), "a reader leaves the log of an operator's collector alone"


@proves(
    "read-result-keeps-collector",
    "an embedded collector does not exit while a client reads a large result",
    value="0.0",
)
def test_an_embedded_collector_stays_while_a_client_reads_a_large_result(chiplog_dir) -> None:
    place = paths_for_root(chiplog_dir)
    ensure_private_dir(place.run)
    settings = ReceiverSettings(place, [place.collector_address], [place.query_address], embedded=True, idle_exit_s=5.0)
    with contextlib.closing(ReceiverDaemon(settings)) as daemon:
        idle_at = daemon._busy_at + 5.1
        assert daemon._may_leave(idle_at)
        QueryDemand(daemon._index._memory, lambda: idle_at).note_read()
        assert not daemon._may_leave(idle_at + 4.9)
        assert daemon._may_leave(idle_at + 5.1)


@pytest.fixture
def daemons(chiplog_dir, monkeypatch):
    """Return what starts a receiver without an index, of small segments; the former one is closed."""
    place = paths_for_root(chiplog_dir)
    opened: list[ReceiverDaemon] = []
    original = receiver_module.SegmentLog
    monkeypatch.setattr(receiver_module, "_IDLE_POLL_S", 0.005)
    monkeypatch.setattr(
        receiver_module, "SegmentLog", lambda directory, owner: original(directory, owner, segment_bytes=3000)
    )

    def start() -> ReceiverDaemon:
        if opened:
            opened.pop().close()
        opened.append(ReceiverDaemon(ReceiverSettings(place, [place.collector_address]), with_index=False))
        return opened[0]

    yield start
    if opened:
        opened[0].close()


def talk(daemon: ReceiverDaemon, agent: Agent, done) -> None:
    """Let the daemon turn until the agent has received the expected message."""
    heard: list[messages.Message] = []

    def turned() -> bool:
        daemon.turn()
        while agent.socket.poll(0):
            heard.append(messages.parse(agent.socket.recv_multipart()))
        return any(done(message) for message in heard)

    wait_until(turned, "an answer")


def greet(daemon: ReceiverDaemon, agent: Agent) -> int:
    agent.socket.close()
    agent.socket = agent.connect()
    agent.session = os.urandom(8)
    agent.socket.send_multipart(messages.hello(agent.session, agent.sender, 0, {}))
    found: list[int] = []
    talk(daemon, agent, lambda m: m.kind == MessageKind.WELCOME and (found.append(m.next) or True))
    return found[0]


@proves("silent-since-last-message", "an agent that fell silent is missed since its last message", value="0.0")
@pytest.mark.parametrize("cause", LeaveCause)
def test_how_long_an_agent_is_waited_for_depends_on_the_cause_of_its_sessions_end(daemons, cause) -> None:
    daemon = daemons()
    daemon._commits.next_numbers[SENDER] = 1
    heard_before_s = PEER_SILENT_S if cause is LeaveCause.SILENT else 0.0
    patience_s = CLEAN_EXIT_GRACE_S if cause is LeaveCause.GOODBYE else PEER_SILENT_S + MISSED_AFTER_S
    before = time.monotonic()
    daemon._act([SessionClosed(SENDER, cause)])
    lost_at = daemon._liveness._missed[SENDER].until + heard_before_s
    assert before + patience_s <= lost_at <= time.monotonic() + patience_s


def test_positions_of_all_senders_are_recovered_from_the_newest_segment(daemons, chiplog_dir) -> None:
    """One agent is silent for many segments: its position is in the SENDERS record that each segment begins with."""
    daemon = daemons()
    address = paths_for_root(chiplog_dir).collector_address
    silent, busy = Agent(address, b"silent-agent....."[:16]), Agent(address, b"busy-agent......"[:16])
    try:
        greet(daemon, silent)
        silent.send(0, b"a", b"b")
        talk(daemon, silent, lambda message: message.next == 2)
        greet(daemon, busy)
        for number in range(20):
            busy.send(number, bytes([number]) * 1000)
            talk(daemon, busy, lambda message, number=number: message.next == number + 1)
        segments = list_segments(paths_for_root(chiplog_dir).collector / "log")
        assert len(segments) > 4
        for _, path in segments:
            first = next(iter(read_segment(path)))
            assert isinstance(first, Record)
            assert first.kind == Kind.SENDERS
        assert dict(unpack(first.payload))[silent.sender] == 2
        for _ in range(2):
            daemon = daemons()
            assert greet(daemon, silent) == 2
            assert greet(daemon, busy) == 20
        records = [item for item in records_of(paths_for_root(chiplog_dir)) if isinstance(item, Record)]
        assert [record.number for record in records] == list(range(len(records)))
    finally:
        silent.close()
        busy.close()


def test_a_disk_that_refuses_acknowledges_nothing_and_takes_nothing_behind_the_receipt_that_waits(
    daemons, chiplog_dir, monkeypatch
) -> None:
    """The records after it would have no receipt, and be acknowledged."""
    monkeypatch.setattr(receiver_module, "_WRITE_AGAIN_S", 0.0)  # the next try is due at once, as after a slow one
    daemon = daemons()
    with contextlib.closing(Agent(paths_for_root(chiplog_dir).collector_address)) as agent:
        greet(daemon, agent)
        original, refused = daemon.log.commit, 0

        def refuse() -> int:
            nonlocal refused
            refused += 1
            raise OSError(28, "No space left on device")

        daemon.log.commit = refuse
        agent.send(0, b"first")
        wait_until(lambda: daemon.turn() or refused > 2, "commits that were refused")
        agent.send(1, b"second")
        wait_until(lambda: daemon.turn() or refused > 20, "more of them")
        assert not agent.socket.poll(0)
        daemon.log.commit = original
        talk(daemon, agent, lambda message: message.next == 2)
        kinds = [item.kind for item in records_of(paths_for_root(chiplog_dir)) if isinstance(item, Record)]
        assert kinds[-4:] == [Kind.BLOCK, Kind.RECEIPT, Kind.BLOCK, Kind.RECEIPT]
        assert blocks_of(paths_for_root(chiplog_dir)) == [b"first", b"second"]


@proves("turn-bounded", "a flood of small messages delays no commit and no signal", new="while True:")
def test_a_turn_ends_however_many_messages_come(daemons, chiplog_dir) -> None:
    """A flood is faster than the receiver: each message is followed by another, and a slice waits for its commit."""
    daemon = daemons()
    with contextlib.closing(Agent(paths_for_root(chiplog_dir).collector_address)) as agent:
        greet(daemon, agent)
        original, taken = daemon._router.receive, 0

        def flood(now: float):
            nonlocal taken
            taken += 1
            assert taken < 1_000_000, "a turn without end"
            try:
                return original(now)
            except zmq.Again:
                return None  # a message that does not count, as of a key that was revoked

        daemon._router.receive = flood
        agent.send(0, b"taken in the flood")
        talk(daemon, agent, lambda message: message.next == 1)
        daemon._router.receive = original
