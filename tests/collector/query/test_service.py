"""The query service: real DuckDB files, real sockets, a real child that parses."""

import contextlib
import hashlib
import os
import select
import signal
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import zmq

from chiplog_collector.query import file_reader, query_socket
from chiplog_collector.query import service as query_module
from chiplog_collector.query import sql_guard as examiner_module
from chiplog_collector.query.flush_demand import QueryDemand
from chiplog_collector.query.service import QueryService, lock_down
from chiplog_schemas._version import __version__
from chiplog_schemas.codec import pack
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.limits import QUERIES_WAITING_MAX, QUERY_MEMORY_BYTES
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import ID_BYTES, QueryMessageKind
from chiplog_schemas.query.result_file import ResultSpace
from chiplog_schemas.sql import READS
from chiplog_schemas.storage.content_files import content_path
from tests.support.hand_written import empty_database
from tests.support.query_client import (
    FOR_EVER,
    Asker,
)
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until


def open_index(tmp_path: Path, memory_bytes: int = QUERY_MEMORY_BYTES) -> duckdb.DuckDBPyConnection:
    with duckdb.connect(str(tmp_path / "other.duckdb")) as other:
        other.execute("CREATE TABLE secret AS SELECT 42 AS answer")
    connection = empty_database(tmp_path / "index.duckdb")
    connection.execute("CREATE SEQUENCE counter")
    RunBuilder(connection).rows("names", [(n, f"key{n}") for n in range(100)])
    files = tmp_path / "files"
    files.mkdir()
    (files / "link").symlink_to("/etc/passwd")
    lock_down(connection, memory_bytes, files)
    return connection


@pytest.fixture
def index(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with open_index(tmp_path) as connection:
        yield connection


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/query.sock"


@contextlib.contextmanager
def serving(index, address: str, **given: Any) -> Iterator[tuple[QueryService, Asker]]:
    """A service with these arguments, and a client of it."""
    service = QueryService(index, address, **given)
    service.start()
    asker = Asker(address)
    try:
        yield service, asker
    finally:
        asker.close()
        service.close()


@pytest.fixture
def served(index, address) -> Iterator[tuple[QueryService, Asker]]:
    with serving(index, address) as both:
        yield both


@pytest.fixture
def service(served) -> QueryService:
    return served[0]


@pytest.fixture
def asker(served) -> Asker:
    return served[1]


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory) -> Iterator[QueryService]:
    """One for all tests that neither write nor count, with the child that each would have to start."""
    tmp_path = tmp_path_factory.mktemp("shared")
    with open_index(tmp_path, 128 << 20) as connection:  # a machine may take seconds to hand out a gigabyte
        running = QueryService(connection, f"ipc://{tmp_path}/query.sock")
        running.start()
        yield running
        running.close()


@pytest.fixture
def shared_asker(shared_service: QueryService) -> Iterator[Asker]:
    connected = Asker(shared_service.address)
    yield connected
    connected.close()


def test_a_service_without_files_says_so(shared_asker):
    assert ask_for_part(shared_asker, bytes(32), 0, 1).error_kind == "refused"


def test_a_client_that_reads_no_parts_gets_only_so_many(index, address, tmp_path, monkeypatch):
    data = bytes(1 << 20)
    digest = hashlib.sha256(data).digest()
    path = content_path(tmp_path / "files", digest)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    monkeypatch.setattr(query_module, "ANSWERS_BYTES_MAX", 4 << 20)
    with serving(index, address, files=tmp_path / "files") as (_, asker):
        asker.socket.setsockopt(zmq.RCVHWM, 1)
        for _ in range(64):
            asker.socket.send_multipart(query_messages.read_file(os.urandom(ID_BYTES), digest, 0, 1 << 20))
        answers = [asker.receive() for _ in range(64)]
        assert {answer.error_kind for answer in answers if answer.kind == QueryMessageKind.ERROR} <= {"busy"}
        # ZeroMQ releases what it has sent a moment after the client has it.
        wait_until(lambda: ask_for_part(asker, digest, 0, 1 << 20).kind == QueryMessageKind.PART, "a part again")


@proves(
    "slow-file-answers-pings",
    "pings are answered while a disk hangs",
    new="self._request_answered(request, self._file_reader._read(question))",
)
def test_a_disk_that_hangs_does_not_keep_the_service_from_answering(index, address, tmp_path, monkeypatch):
    goes_on = threading.Event()

    def hang(*_: object) -> tuple[int, bytes]:
        assert goes_on.wait(WAIT_S)
        return 4, b"data"

    monkeypatch.setattr(file_reader, "read_content", hang)
    with serving(index, address, files=tmp_path / "files") as (_, asker), contextlib.ExitStack() as at_the_end:
        at_the_end.callback(goes_on.set)
        asker.socket.send_multipart(query_messages.read_file(os.urandom(ID_BYTES), bytes(32), 0, 4))
        asker.socket.send_multipart(query_messages.ping(os.urandom(ID_BYTES)))
        assert asker.receive().kind == QueryMessageKind.PONG
        goes_on.set()
        answer = asker.receive()
        assert (answer.kind, bytes(answer.payload)) == (QueryMessageKind.PART, b"data")


def ask_for_part(asker: Asker, digest: bytes, offset: int, n_bytes: int) -> query_messages.QueryMessage:
    id = os.urandom(ID_BYTES)
    asker.socket.send_multipart(query_messages.read_file(id, digest, offset, n_bytes))
    answer = asker.receive()
    assert answer.id == id
    return answer


# -- the writer -------------------------------------------------------------------------------------------------------


@proves("query-waits-for-flush", "the first query after a quiet time waits for its flush")
def test_the_first_query_after_a_quiet_time_waits_until_its_flush_is_done(index, address):
    demand = QueryDemand()
    with serving(index, address, demand=demand) as (_, asker):
        asker.send("SELECT count(*) AS n FROM base.names")
        assert select.select([demand], [], [], WAIT_S)[0], "the writer is not woken"
        assert not asker.socket.poll(300), "answered before the flush"
        number = demand.begin()
        RunBuilder(index).name("key100")
        demand.flushed(number)
        answer = asker.receive()
        assert pa.ipc.open_stream(answer.payload).read_all().to_pylist() == [{"n": 101}]
    demand.close()


# -- admission --------------------------------------------------------------------------------------------------------


@proves("query-time-zone", "a query asked in a time zone runs in it, and the next one does not", condition=False)
def test_a_query_runs_in_the_time_zone_that_it_names(shared_asker):
    query = "SELECT strftime(TIMESTAMPTZ '2026-07-01 12:00:00+00', '%H') AS hour"
    for time_zone, hour in (("Europe/Berlin", "14"), ("", "12"), ("Asia/Tokyo", "21"), ("", "12"), ("", "12")):
        answer = shared_asker.ask(query, time_zone=time_zone)
        assert pa.ipc.open_stream(answer.payload).read_all().to_pylist() == [{"hour": hour}]
    assert shared_asker.ask(query, time_zone="No'Where").error_kind == "sql"
    assert shared_asker.ask("SET TimeZone = 'Asia/Tokyo'").error_kind == "refused"


@proves(
    "waiting-for-parser-not-stuck",
    "queries that wait for texts which hang the parser are not stuck",
    value="now >= worker.job.deadline + STUCK_AFTER_S",
)
@proves(
    "parser-wait-bounded",
    "a query waits for the parser no longer than it may take",
    part=".sql, job.deadline",
    new=".sql",
)
@pytest.mark.full
def test_texts_that_hang_the_parser_are_not_taken_for_queries_that_are_stuck(index, address, monkeypatch):
    """Many workers wait for one parser: what is overdue there was not run yet, so that nothing has to be cancelled."""
    monkeypatch.setattr(query_module, "STUCK_AFTER_S", 0.0)
    with serving(index, address, limits=Limits(queries_at_once=8)) as (service, asker):
        ids = {asker.send("WITH a AS (" * 40, timeout_s=0.1) for _ in range(16)}
        answers = [asker.receive() for _ in ids]
        assert {answer.id for answer in answers} == ids
        assert {answer.error_kind for answer in answers} <= {"refused", "timeout"}
        assert asker.rows("SELECT 1 AS a") == [{"a": 1}]
        assert not service.must_restart
        assert service._sql_guard.n_replaced < 8, "an overdue query is not parsed any more"


@proves(
    "stuck-parser-ends-process",
    "a parser that does not even die ends with the process",
    part="or self._sql_guard.must_restart(now)",
)
def test_a_parser_that_takes_no_text_for_ever_is_noticed(service, asker, monkeypatch):
    asker.rows("SELECT 1 AS a")
    assert not service.must_restart
    monkeypatch.setattr(examiner_module, "EXAMINE_MAX_S", 0.2)
    child = service._sql_guard._child.pid
    os.kill(child, signal.SIGSTOP)
    try:
        asker.send("SELECT 1" + " " * 500_000, timeout_s=0.1)  # more than a pipe holds
        wait_until(lambda: service.must_restart, "a service that knows it")
    finally:
        os.kill(child, signal.SIGKILL)


def test_parameters_that_do_not_fit_the_query_are_its_error(shared_asker):
    for params in (None, [1, 2], {"b": 1}, {}):
        answer = shared_asker.ask("SELECT $a", params)
        assert (answer.kind, answer.error_kind) == (QueryMessageKind.ERROR, "sql")


ROWS = "SELECT range AS n, hash(range) AS h FROM range(300000)"  # 4 MB, of which a client accepts less at once


@pytest.fixture
def streaming(index, address, tmp_path) -> Iterator[QueryService]:
    """A service that keeps large results in a directory of its own."""
    (tmp_path / "results").mkdir()
    running = QueryService(index, address, space=ResultSpace(tmp_path / "results"))
    running.start()
    yield running
    running.close()
    assert running._space.n_bytes == 0


def ask_for_parts(asker: Asker, sql: str = ROWS) -> query_messages.QueryMessage:
    id = os.urandom(ID_BYTES)
    asker.socket.send_multipart(query_messages.request(id, sql, None, 30.0, bytes_max=100_000))
    answer = asker.receive()
    assert answer.id == id
    return answer


def fetch(asker: Asker, id: bytes, offset: int) -> query_messages.QueryMessage:
    asker.socket.send_multipart(query_messages.fetch(id, offset, 1 << 20))
    return asker.receive()


def test_a_large_result_is_read_in_parts_and_dropped_when_it_is_cancelled(streaming):
    asker, other = Asker(streaming.address), Asker(streaming.address)
    first = ask_for_parts(asker)
    assert (first.kind, first.offset, first.n_rows) == (QueryMessageKind.PART_OF_RESULT, 0, 300_000)
    assert len(first.payload) == 1 << 20 < first.n_bytes == streaming._space.n_bytes
    assert asker.rows("SELECT 1 AS a") == [{"a": 1}], "no worker waits for the reader"
    data = bytes(first.payload)
    while len(data) < first.n_bytes:
        part = fetch(asker, first.id, len(data))
        assert (part.offset, part.n_bytes, part.n_rows) == (len(data), first.n_bytes, 300_000)
        data += bytes(part.payload)
    assert pa.ipc.open_stream(data).read_all()["n"].to_pylist() == list(range(300_000))
    assert fetch(other, first.id, 0).error_kind == "expired"
    asker.socket.send_multipart(query_messages.ping(first.id))
    assert asker.receive().info["waiting"]
    other.socket.send_multipart(query_messages.cancel(first.id))
    other.socket.send_multipart(query_messages.ping(first.id))
    assert not other.receive().info["waiting"]
    assert streaming._space.n_bytes > 0
    asker.socket.send_multipart(query_messages.cancel(first.id))
    assert fetch(asker, first.id, 0).error_kind == "expired"
    assert streaming._space.n_bytes == 0
    asker.close()
    other.close()


def test_no_transaction_is_open_while_a_large_result_is_read(streaming):
    asker = Asker(streaming.address)
    first = ask_for_parts(asker)
    for worker in streaming._workers:
        with pytest.raises(duckdb.TransactionException, match="no transaction is active"):
            worker._cursor.execute("ROLLBACK")
    assert fetch(asker, first.id, 1 << 20).kind == QueryMessageKind.PART_OF_RESULT
    asker.close()


@proves("result-of-gone-client-dropped", "the result of a client that left does not keep its space on disk")
def test_the_result_of_a_client_that_leaves_is_dropped(streaming):
    asker = Asker(streaming.address)
    ask_for_parts(asker)
    assert streaming._space.n_bytes > 0
    asker.close()
    wait_until(lambda: streaming._space.n_bytes == 0, "its space to be free")


def test_a_small_result_comes_whole_and_a_failed_query_leaves_no_file(streaming):
    asker = Asker(streaming.address)
    assert ask_for_parts(asker, "SELECT 1 AS a").kind == QueryMessageKind.RESULT
    late = "SELECT hash(range) AS h, if(range = 290000, error('late'), 1) AS e FROM range(300000)"
    answer = ask_for_parts(asker, late)
    assert (answer.error_kind, "late" in answer.message) == ("sql", True)
    assert streaming._space.n_bytes == 0
    asker.close()


def test_without_space_for_results_none_is_read_in_parts(asker):
    assert ask_for_parts(asker).kind == QueryMessageKind.RESULT


@pytest.mark.promise(9)
def test_a_query_is_cancelled_at_its_timeout_while_others_and_the_writer_go_on(service, asker, index):
    other = Asker(service.address)
    n_commits = n_during = 0
    for timeout_s in (1.0, 10.0, 60.0):  # as long as a busy machine needs for two commits
        id = asker.send(FOR_EVER, timeout_s=timeout_s)
        n_before = n_commits
        while not asker.socket.poll(0):
            n_during = n_commits - n_before
            index.execute("BEGIN")
            RunBuilder(index).names(["more"] * 100)
            index.execute("COMMIT")
            n_commits += 1
            assert other.rows("SELECT count(*) AS n FROM base.names")[0]["n"] == 100 + 100 * n_commits
        answer = asker.receive()
        assert (answer.id, answer.kind, answer.error_kind) == (id, QueryMessageKind.ERROR, "timeout")
        assert f"{timeout_s:g} s" in answer.message
        if n_during > 1:
            break
    assert n_during > 1, "others wait for the query"
    # The cursor that was interrupted answers again.
    for _ in range(4):
        assert asker.rows("SELECT count(*) AS n FROM base.names") == [{"n": 100 + 100 * n_commits}]
    other.close()


def test_more_questions_than_may_wait_are_answered_busy_and_pings_at_once(service, asker):
    blockers = [asker.send(FOR_EVER, timeout_s=1.5) for _ in range(2)]
    waiting = [asker.send("SELECT 1 AS a") for _ in range(QUERIES_WAITING_MAX)]
    refused = [asker.send("SELECT 2 AS a") for _ in range(5)]
    for id in (waiting[-1], os.urandom(ID_BYTES)):
        asker.socket.send_multipart(query_messages.ping(id))
    answers = [asker.receive() for _ in range(len(refused) + 2)]
    assert {answer.id for answer in answers if answer.error_kind == "busy"} == set(refused)
    pongs = [answer for answer in answers if answer.kind == QueryMessageKind.PONG]
    assert [pong.info["waiting"] for pong in pongs] == [True, False]
    assert pongs[0].info["pid"] == os.getpid()
    assert (pongs[0].info["version"], pongs[0].info["reads"]) == (__version__, READS)
    later = {answer.id: answer for answer in (asker.receive() for _ in range(2 + len(waiting)))}
    assert all(later[id].error_kind == "timeout" for id in blockers)
    assert all(later[id].kind == QueryMessageKind.RESULT for id in waiting)


def test_a_query_that_waits_too_long_is_answered_busy(shared_asker, monkeypatch):
    monkeypatch.setattr(query_module, "QUERY_WAIT_S", 0.2)
    blockers = [shared_asker.send(FOR_EVER, timeout_s=1.0) for _ in range(2)]
    late = shared_asker.send("SELECT 1")
    answers = {answer.id: answer.error_kind for answer in (shared_asker.receive() for _ in range(3))}
    assert answers == {blockers[0]: "timeout", blockers[1]: "timeout", late: "busy"}


def test_a_question_asked_twice_while_it_waits_is_answered_once(shared_asker):
    id = os.urandom(ID_BYTES)
    blockers = [shared_asker.send(FOR_EVER, timeout_s=0.5) for _ in range(2)]
    for _ in range(3):
        shared_asker.socket.send_multipart(query_messages.request(id, "SELECT 1", None, 1.0))
    last = shared_asker.send("SELECT 2")
    answers = [shared_asker.receive().id for _ in range(4)]
    assert sorted(answers) == sorted([*blockers, id, last])


# -- bad bytes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xc1"],
        [b"", b"", b""],
        [os.urandom(1000)],
        [pack([1])],
        [pack([1, b"short", "SELECT 1", None, 1.0])],
        [pack({"a": 1})],
        [pack([2, b"12345678", 1]), b"not for a service"],
        [pack([3, b"12345678", "sql", "not for a service"])],
        [b"\x81" * 100_000],
    ],
)
def test_frames_that_are_no_question_change_nothing(shared_asker, shared_service, frames):
    def n_bad() -> int:
        return shared_service.counts["malformed"] + shared_service.counts["unexpected"]

    before = n_bad()
    shared_asker.socket.send_multipart(frames)
    assert shared_asker.rows("SELECT 1 AS a") == [{"a": 1}]
    assert n_bad() - before == 1


@pytest.mark.parametrize(
    "fields",
    [
        [1],
        [1, "SELECT 1"],
        [1, 5, None, 1.0],
        [1, "SELECT 1", 7, 1.0],
        [1, "SELECT 1", {1: 2}, 1.0],
        [1, "SELECT 1", None, -1.0],
        [1, "SELECT 1", None, float("nan")],
        [1, "SELECT 1", None, "soon"],
        [99, "SELECT 1", None, 1.0],
        [1, "SELECT '\udcff'", None, 1.0],
    ],
)
def test_a_question_of_wrong_shape_is_answered_when_its_id_can_be_read(shared_asker, fields):
    shared_asker.socket.send_multipart([pack([fields[0], b"12345678", *fields[1:]])])
    answer = shared_asker.receive()
    assert (answer.id, answer.kind, answer.error_kind) == (b"12345678", QueryMessageKind.ERROR, "refused")


def test_fields_of_a_later_version_are_ignored(shared_asker):
    shared_asker.socket.send_multipart([pack([1, b"12345678", "SELECT 1", None, 5.0, "UTC", 0, {"new": True}, 7])])
    assert shared_asker.receive().kind == QueryMessageKind.RESULT


def test_a_client_that_leaves_without_its_answer_is_counted(service, asker):
    for timeout_s in (0.5, 5, 50):  # the question must have arrived, and the client must leave before its answer
        gone = Asker(service.address)
        gone.send(FOR_EVER, timeout_s=timeout_s)
        assert asker.rows("SELECT 1 AS a") == [{"a": 1}]
        gone.close()
        wait_until(lambda: not service._pending_ids, "an end of what was asked")
        if service.counts["undeliverable"]:
            return
    raise AssertionError("its answer was never in vain")


@proves("queries-of-gone-clients-skipped", "queries of clients that left are not run", value="False")
def test_queries_of_clients_that_left_are_not_run_and_make_room(service, asker, monkeypatch):
    run: list[str] = []
    check = service._sql_guard.check
    monkeypatch.setattr(service._sql_guard, "check", lambda sql, *more: (run.append(sql), check(sql, *more))[1])
    blockers = [asker.send(FOR_EVER, timeout_s=30) for _ in range(2)]
    clients = [Asker(service.address) for _ in range(QUERIES_WAITING_MAX)]
    for client in clients:
        client.send(f"{FOR_EVER} AND true", timeout_s=30)
    wait_until(lambda: len(service._waiting) == QUERIES_WAITING_MAX, "a queue that is full")
    for client in clients:
        client.close()
    last = asker.send("SELECT 1 AS a")
    wait_until(lambda: len(service._waiting) == 1, "their queries gone, and a place for another one")
    for worker in service._workers:
        worker.interrupt(worker.job)
    answers = {answer.id: answer for answer in (asker.receive() for _ in range(3))}
    assert answers.keys() == {*blockers, last}
    assert answers[last].kind == QueryMessageKind.RESULT, answers[last].message
    assert set(run) == {FOR_EVER, "SELECT 1 AS a"}
    assert service.counts["abandoned"] == QUERIES_WAITING_MAX


def test_a_query_whose_client_leaves_while_it_runs_is_interrupted(service, asker):
    gone = [Asker(service.address) for _ in service._workers]
    for client in gone:
        client.send(FOR_EVER, timeout_s=30)
    wait_until(lambda: all(worker.job is not None and worker.job.begun for worker in service._workers), "two that run")
    deadlines = [worker.job.deadline for worker in service._workers]
    for client in gone:
        client.close()
    assert asker.rows("SELECT 1 AS a") == [{"a": 1}]
    assert time.monotonic() < max(deadlines), "it did not wait for their time-outs"


@proves(
    "cancel-of-own-query-only",
    "a client cancels no query of another one",
    part="(job.peer, job.id) == (peer, id)",
    new="job.id == id",
)
def test_a_client_cancels_its_queries_waiting_or_running_and_no_others(service, asker):
    other = Asker(service.address)
    running = [asker.send(FOR_EVER) for _ in service._workers]
    waiting = [asker.send("SELECT 1 AS a") for _ in range(2)]
    wait_until(lambda: all(worker.job is not None and worker.job.begun for worker in service._workers), "two that run")
    for id in (*running, *waiting):
        other.socket.send_multipart(query_messages.cancel(id))
    asker.socket.send_multipart(query_messages.cancel(os.urandom(ID_BYTES)))
    other.socket.send_multipart(query_messages.ping(running[0]))
    assert other.receive().kind == QueryMessageKind.PONG, "CANCEL has no answer"
    assert len(service._pending_ids) == 4
    asker.socket.send_multipart(query_messages.cancel(waiting[0]))
    answer = asker.receive()
    assert (answer.id, answer.error_kind, answer.message) == (
        waiting[0],
        "cancelled",
        "the query was cancelled by its client",
    )
    for id in running:
        asker.socket.send_multipart(query_messages.cancel(id))
    answers = {answer.id: answer.error_kind for answer in (asker.receive() for _ in range(3))}
    assert answers == {**dict.fromkeys(running, "cancelled"), waiting[1]: ""}
    assert asker.rows("SELECT 1 AS a") == [{"a": 1}]
    other.close()


# -- life -------------------------------------------------------------------------------------------------------------
def test_the_socket_is_for_its_user_only_and_goes_with_the_service(index, tmp_path, address):
    service = QueryService(index, address)
    service.start()
    assert stat.S_IMODE((tmp_path / "query.sock").stat().st_mode) == 0o600
    service.close()
    service.close()
    assert not (tmp_path / "query.sock").exists()


def test_an_address_somebody_answers_at_is_not_taken_from_them(service, asker, index, monkeypatch):
    monkeypatch.setattr(query_socket, "BIND_WAIT_S", 0.1)
    second = QueryService(index, service.address)
    with pytest.raises(OSError, match="in use"):
        second.start()
    assert asker.rows("SELECT 1 AS a") == [{"a": 1}]


def test_an_address_beyond_loopback_needs_keys(index):
    with pytest.raises(ValueError, match="needs CURVE keys"):
        QueryService(index, "tcp://0.0.0.0:9999")
    QueryService(index, "tcp://127.0.0.1:9999").close()


def test_closing_answers_those_who_wait_and_interrupts_what_runs(index, address):
    service = QueryService(index, address)
    service.start()
    client = Asker(address)
    ids = [client.send(FOR_EVER) for _ in range(3)]
    client.socket.send_multipart(query_messages.ping(ids[0]))
    assert client.receive().info["waiting"]
    closer = threading.Thread(target=service.close)
    closer.start()
    answers = {answer.id: (answer.error_kind, answer.message) for answer in (client.receive() for _ in range(3))}
    closer.join()
    assert set(answers) == set(ids)
    assert set(answers.values()) == {
        ("stopping", "the collector is stopping; ask again later")
    }  # none had used its time
    client.close()
    RunBuilder(index).name("the writer is untouched")


def test_locked_settings_stay_locked_and_spilling_is_bounded(index):
    with pytest.raises(duckdb.Error, match="locked"):
        index.execute("SET memory_limit = '100GB'")
    settings = ("TimeZone", "enable_external_access", "lock_configuration", "max_temp_directory_size")
    values = [index.execute(f"SELECT current_setting('{name}')").fetchone()[0] for name in settings]
    assert values == ["UTC", False, True, "4.0 GiB"]
    index.execute("CHECKPOINT")  # the writer's own file is still its own
