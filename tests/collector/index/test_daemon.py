"""The index process: it waits out temporary failures, sets damaged files aside, and rebuilds them from the log."""

import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import chiplog_collector.index.database as database_module
from chiplog_client.connection import CollectorConnection
from chiplog_client.results.result import QueryError
from chiplog_collector.cli import collector
from chiplog_collector.index import daemon
from chiplog_collector.index.changes.change_queue import ChangeQueue
from chiplog_collector.index.cleaning.checkpoints import Checkpoints
from chiplog_collector.index.daemon import main
from chiplog_collector.index.opening import open_index, quarantine_database
from chiplog_collector.query import flush_demand as demand_module
from chiplog_collector.query.flush_demand import QueryDemand
from chiplog_collector.receiver import daemon as receiver_module
from chiplog_schemas.limits import QUERIED_FOR_S
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from chiplog_schemas.query.duckdb_errors import corruption_reason
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.watermark import Watermark
from tests.support.collector_log import VIEWS, Rank, contents_of, receipt, whole
from tests.support.index import Index
from tests.support.index_file import never, put, set_aside_files
from tests.support.lock_holder import lock_holder
from tests.support.marks import everyday
from tests.support.safeguard import proves
from tests.support.sample_log import everything, place_of
from tests.support.waiting import WAIT_S

PAGE_BYTES = 4096


def lived(place: Paths) -> dict[str, list[str]] | str:
    """Live once as `serve` does, and return all views; or the damage met, for which the file is set aside."""
    follower = open_index(place, never)
    assert follower is not None
    synced = Watermark(place.collector / "synced", writable=False)
    database = follower.database
    checkpoints = Checkpoints(database.checkpoint, lambda: math.inf, database.wal_bytes)
    damage = daemon._follow(follower, synced, checkpoints, lambda: None, lambda: False, QueryDemand())
    found: dict[str, list[str]] = {}
    try:
        for view in () if damage else VIEWS:
            found[view] = contents_of(lambda query: follower.database.connection.execute(query).fetchall(), view)
    except duckdb.Error as error:
        damage = corruption_reason(error)
        assert damage, error
    follower.database.close()
    if damage:
        quarantine_database(place.index, damage)
        return damage
    return found


@pytest.fixture
def ends_at_once(monkeypatch) -> None:
    monkeypatch.setattr(daemon, "_input_ended", lambda wait_s, demand=None: True)


@proves(
    "one-index-per-directory",
    "one index at a time writes the file of a directory",
    new="from chiplog_schemas.process.file_lock import Lock\nlock = Lock(place.collector / 'other.lock')",
)
def test_an_index_waits_for_the_end_of_another(index: Index) -> None:
    index.take(*everything(n_steps=5))
    place = put(index)
    place.index.unlink()
    hold = (
        "from pathlib import Path; from chiplog_schemas.process.file_lock import Lock; "
        f"lock = Lock(Path({str(place.index_lock)!r})); print('held', flush=True); input()"
    )
    holder = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    command = [sys.executable, "-P", "-m", "chiplog_collector.index", str(place.root)]
    try:
        assert holder.stdout.readline() == b"held\n"
        waiting = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(3.0)
        assert not place.index.exists()
    finally:
        holder.communicate(b"\n")
    assert waiting.wait(WAIT_S) == 0
    with duckdb.connect(str(place.index), read_only=True) as connection:
        assert connection.execute("SELECT count(*) > 0 FROM metrics").fetchone() == (True,)


@proves(
    "held-index-is-no-crash",
    "an index that another one kept waiting is no crash: the next one's first query waits for the whole log",
    condition=True,
)
def test_an_index_after_one_that_waited_too_long_still_lets_the_first_query_wait(tmp_path, monkeypatch) -> None:
    place = paths_for_root(tmp_path)
    waits: list[float] = []
    monkeypatch.setattr(daemon, "INDEX_LOCK_WAIT_S", 0.1)
    monkeypatch.setattr(daemon, "serve", lambda *given, **_: waits.append(given[-1]) or 0)
    with lock_holder(place.index_lock):
        held = main([str(tmp_path), "--after", "0", "--first-wait", "12"])
    assert main([str(tmp_path), "--after", str(held), "--first-wait", "12"]) == 0
    assert main([str(tmp_path), "--after", "1", "--first-wait", "12"]) == 0
    assert waits == [12.0, demand_module.FLUSH_WAIT_S], "after a crash the first query waits as any other"


# -- between two transactions --


@proves(
    "chores-only-when-caught-up",
    "nothing is removed while the database lacks something of the log",
    new="after_step(behind)",
)
def test_while_the_writer_is_held_the_database_counts_as_behind(index: Index, monkeypatch) -> None:
    monkeypatch.setattr(daemon, "_input_ended", lambda wait_s, demand=None: False)
    index.take(*everything(n_steps=5))
    place = put(index)
    follower = open_index(place, never)
    assert follower is not None
    follower.database.next_number -= 1  # as of an index that has not applied all
    checkpoints = Checkpoints(follower.database.checkpoint, lambda: math.inf, follower.database.wal_bytes)
    checkpoints.holds_writer = lambda now: True  # type: ignore[method-assign]
    told: list[bool] = []
    synced = Watermark(place.collector / "synced", writable=False)
    demand = QueryDemand()
    daemon._follow(follower, synced, checkpoints, lambda: None, lambda: len(told) > 1, demand, told.append)
    follower.database.close()
    demand.close()
    assert told == [True, True]


@proves("failing-chores-wait", "a disk that refuses to show what is old costs no query", value="()")
def test_a_disk_that_refuses_to_show_what_is_old_costs_nothing_else(index: Index, caplog) -> None:
    index.take(*everything(n_steps=5))
    place = put(index)
    follower = open_index(place, never)
    assert follower is not None
    turns: list[float] = []

    class Refusing:
        def turn(self, *_: object) -> None:
            turns.append(1.0)
            raise duckdb.IOException("IO Error: Could not read file: Input/output error")

    maintenance = daemon._Maintenance(follower, ChangeQueue(), Refusing(), place)  # type: ignore[arg-type]
    for _ in range(3):
        maintenance.after_step(False)
    maintenance.close()
    follower.database.close()
    assert len(turns) == 1, "it is tried again later"
    assert "old data cannot be looked for: IO Error" in caplog.text


# -- what is damaged is set aside --


@pytest.mark.parametrize("at", everyday(1, [20, 5, 60, 2000]))
def test_a_damaged_write_ahead_log_of_duckdb_costs_no_answer_either(index: Index, ends_at_once, at) -> None:
    index.take(*everything(n_steps=5))
    before, limit = index.views(), index.log.next_number
    files = {path.name: path.read_bytes() for path in index.directory.glob("index.duckdb*")}
    assert len(files) == 2
    place = place_of(index)
    Watermark(place.collector / "synced", writable=True).set(limit)
    for name, content in files.items():
        (place.collector / name).write_bytes(content)
    damaged = bytearray(files["index.duckdb.wal"])
    damaged[at] ^= 0x55
    (place.collector / "index.duckdb.wal").write_bytes(damaged)
    assert lived(place) == before
    assert set_aside_files(place)


def test_only_duckdbs_own_words_prove_damage() -> None:
    connection = duckdb.connect()
    for query in ("SELECT error('Corrupt database file: x')", "SELECT 'Corrupt database file: '::INT"):
        with pytest.raises(duckdb.Error) as caught:
            connection.execute(query).fetchall()
        assert corruption_reason(caught.value) is None
    connection.close()


def test_damage_that_a_query_meets_ends_the_index_and_the_next_one_answers(index: Index) -> None:
    index.take(*everything())
    n_rows = index.sql("SELECT count(*) FROM metrics")[0][0]
    total = "SELECT count(*) AS n, max(value) AS v FROM metrics"
    place = put(index)
    ensure_private_dir(place.run)
    with duckdb.connect(str(place.index)) as connection:
        query = "SELECT block_id FROM pragma_storage_info('base.metrics_recent') WHERE column_name = 'value'"
        block = next(number for (number,) in connection.execute(query).fetchall() if number >= 0)
    with open(place.index, "r+b") as file:
        file.seek(3 * PAGE_BYTES + block * 262_144 + 100)
        file.write(b"damaged")
    address = f"ipc://{place.run}/query.sock"
    command = [sys.executable, "-m", "chiplog_collector.index", str(place.root), "--query", address]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    remote = CollectorConnection(address)
    assert remote.ping(60)
    with pytest.raises(QueryError, match="is damaged and is rebuilt"):
        remote.execute(total, None, 30, lambda: True)
    _, said = first.communicate(timeout=WAIT_S)
    assert first.returncode == 1
    assert b"Traceback" not in said, said
    second = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    second.communicate(timeout=WAIT_S)  # catches up, and ends with its standard input
    assert second.returncode == 0
    remote.close()
    with duckdb.connect(str(place.index), read_only=True) as connection:
        assert connection.execute(total).fetchall()[0][0] == n_rows
    assert len(set_aside_files(place)) == 1


# -- when clients ask --


class Writer:
    """An index that follows its log in a thread, while `quiet` makes time pass for the queries."""

    def __init__(self, index: Index) -> None:
        self._quiet_s = 0.0
        self.synced = Watermark(index.directory / "synced", writable=True)
        self.synced.set(index.log.next_number)
        self.demand = QueryDemand(clock=lambda: time.monotonic() + self._quiet_s)
        checkpoints = Checkpoints(lambda: None, lambda: math.inf, lambda: 0)
        arguments = (index.follower, self.synced, checkpoints, lambda: None, lambda: False, self.demand)
        self._thread = threading.Thread(target=daemon._follow, args=arguments)
        self._thread.start()

    def quiet(self) -> None:
        self._quiet_s += QUERIED_FOR_S

    def ask(self) -> float:
        """Wait as a query does; return for how long."""
        begun = time.monotonic()
        self.demand.wait(self.demand.ask(), math.inf)
        return time.monotonic() - begun

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the index does not end with its standard input"
        self.demand.close()


@pytest.fixture
def writer(index: Index, monkeypatch) -> Iterator[Writer]:
    reading, writing = os.pipe()
    with open(reading) as stdin, monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", stdin)
        running = Writer(index)
        yield running
        os.close(writing)
        running.join()


def log_step(index: Index, synced: Watermark, number: int) -> None:
    rank = Rank(number)
    rank.log(1, a=1.0)
    index.log.append(Kind.BLOCK, whole(rank))
    index.log.append(Kind.RECEIPT, receipt(index.log.next_number))
    index.log.commit()
    synced.set(index.log.next_number)


@proves("query-flushes", "a query flushes what was synced before it")
@pytest.mark.parametrize("quiet_s", [0.0, 0.2])
def test_a_query_sees_all_that_was_synced(index: Index, writer: Writer, monkeypatch, quiet_s: float) -> None:
    monkeypatch.setattr(demand_module, "INDEX_FLUSH_INTERVAL_S", 3600.0)
    monkeypatch.setattr(demand_module, "INDEX_FLUSH_INTERVAL_SLOW_S", 3600.0)
    monkeypatch.setattr(demand_module, "FLUSH_WAIT_S", 60.0)
    monkeypatch.setattr(demand_module, "FLUSH_SHARED_S", 0.0)
    cursor = index.database.connection.cursor()
    writer.ask()
    for number in range(1, 6):
        if quiet_s:
            writer.quiet()
            time.sleep(quiet_s)  # until the writer sleeps for the long interval
        log_step(index, writer.synced, number)
        writer.ask()
        assert cursor.execute("SELECT count(*) FROM metrics").fetchone() == (number,)


def test_while_clients_ask_the_index_flushes_often(index: Index, writer: Writer, monkeypatch) -> None:
    monkeypatch.setattr(demand_module, "INDEX_FLUSH_INTERVAL_SLOW_S", 3600.0)
    monkeypatch.setattr(demand_module, "FLUSH_WAIT_S", 60.0)
    writer.quiet()
    writer.ask()  # from here on the interval is short
    monkeypatch.setattr(demand_module, "FLUSH_SHARED_S", 3600.0)
    cursor = index.database.connection.cursor()
    log_step(index, writer.synced, 1)
    while cursor.execute("SELECT count(*) FROM metrics").fetchone() == (0,):
        writer.demand.ask()  # demands no flush


@proves("unwritable-index-answers", "a query does not wait for an index that cannot write")
def test_a_query_does_not_wait_for_an_index_that_cannot_write(index: Index, writer: Writer, monkeypatch) -> None:
    refused = threading.Event()

    def refuse(*rest: object) -> None:
        refused.set()
        raise duckdb.IOException("IO Error: Could not write file: No space left on device")

    monkeypatch.setattr(database_module.Database, "write", refuse)
    monkeypatch.setattr(demand_module, "FLUSH_WAIT_S", 60.0)
    writer.ask()
    writer.quiet()
    log_step(index, writer.synced, 1)
    assert writer.ask() < 30.0, "the query waited for a flush that cannot be"
    assert refused.is_set()
    number = writer.demand.ask()
    writer.quiet()
    assert writer.demand.ask() == number, "no later query demands a flush"


# -- how it ends --


@proves("first-parser-forked", "the first query does not wait for a new interpreter that imports DuckDB", value="[]")
def test_the_first_query_is_parsed_by_a_fork_of_the_index(index: Index) -> None:
    place = put(index)
    ensure_private_dir(place.run)
    addresses = [f"ipc://{place.run}/{name}.sock" for name in ("query", "other")]
    options = [argument for address in addresses for argument in ("--query", address)]
    command = [sys.executable, "-m", "chiplog_collector.index", str(place.root), *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    for address in addresses:
        remote = CollectorConnection(address)
        assert remote.ping(60)
        assert remote.execute("SELECT 1 AS a", None, 30, lambda: True)
        remote.close()
    tasks = Path(f"/proc/{process.pid}/task").iterdir()  # a child is listed at the thread that started it
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    assert commands == [Path(f"/proc/{process.pid}/cmdline").read_bytes()] * len(addresses)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def test_an_expected_error_is_one_line(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "chiplog_collector.index", str(tmp_path / "nothing")],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


def test_an_index_that_a_reader_starts_with_a_bad_variable_applies_the_log_with_the_default(
    tmp_path, monkeypatch, caplog
) -> None:
    place = place_of(Index(tmp_path))
    Watermark(place.collector / "synced", writable=True)
    monkeypatch.setenv("CHIPLOG_QUERY_MEMORY_BYTES", "much")
    monkeypatch.setattr(logging, "basicConfig", lambda **options: None)
    with monkeypatch.context() as context, open(os.devnull) as ended:
        context.setattr(sys, "stdin", ended)
        assert main([str(place.root)]) == 0
    assert "CHIPLOG_QUERY_MEMORY_BYTES='much' is not a whole number" in caplog.text


def test_a_fault_of_ours_is_traced_once(tmp_path, monkeypatch, caplog) -> None:
    def fail(*rest: object) -> int:
        raise RuntimeError("ours")

    paths_for_root(tmp_path).collector.mkdir()
    monkeypatch.setattr(daemon, "serve", fail)
    monkeypatch.setattr(logging, "basicConfig", lambda **options: None)
    status = main([str(tmp_path)])
    main([str(tmp_path), "--after", str(status)])
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]


def test_a_collector_in_the_foreground_tells_its_directory_to_its_children(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CHIPLOG_DIR", "elsewhere")
    seen = []

    class Daemon:
        def __init__(self, settings: object) -> None:
            pass

        def run(self) -> None:
            seen.append(os.environ["CHIPLOG_DIR"])

    monkeypatch.setattr(receiver_module, "ReceiverDaemon", Daemon)
    collector.main(["--dir", str(tmp_path)], standalone_mode=False)
    assert seen == [str(tmp_path)]
