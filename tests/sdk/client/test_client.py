"""The query client: against a real collector's query service, and against the file itself."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest

from chiplog_cli.tables.writers import write_parquet
from chiplog_client import client as client_module
from chiplog_client import connection as remote_module
from chiplog_client import database_file
from chiplog_client.client import NoDataError, QueryError, connect
from chiplog_client.results import result as result_module
from chiplog_schemas import codec
from chiplog_schemas.limits import QUERY_CHARS_MAX
from chiplog_schemas.paths import Paths
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.query import query_messages
from chiplog_schemas.query import result_sink as sink_module
from tests.support.marks import everyday
from tests.support.ports import free_ports
from tests.support.safeguard import proves
from tests.support.signals import handling, raising
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.usefixtures("no_environment")

FOR_EVER = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE (a.range * 7 + b.range) % 13 = 3"


# A collector as far as queries go: the lock, the database, the service; until its standard input ends.
COLLECTOR = """
import sys, duckdb
from pathlib import Path
from chiplog_collector.query.service import QueryService, lock_down
from chiplog_schemas.process.file_lock import Lock
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from chiplog_schemas.query.result_file import ResultSpace
where = paths_for_root(Path(sys.argv[1]))
address = sys.argv[2] if len(sys.argv) > 2 else where.query_address
ensure_private_dir(where.run)
lock = Lock(where.collector / "lock")
print("locked", flush=True)
sys.stdin.readline()
connection = duckdb.connect(str(where.index))
lock_down(connection, 128 << 20, where.files)  # a machine may take seconds to hand out a gigabyte
service = QueryService(connection, address, space=ResultSpace(where.collector))
service.start()
print("ready", flush=True)
sys.stdin.readline()
service.close()
connection.close()
lock.release()
"""


class Collector:
    """A real process that holds the lock and answers queries."""

    def __init__(self, where: Paths, address: str = "", answer: bool = True) -> None:
        arguments = [sys.executable, "-c", COLLECTOR, str(where.root), *([address] if address else [])]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin and self.process.stdout
        assert self.process.stdout.readline() == b"locked\n"
        if answer:
            self.answer()

    def answer(self) -> None:
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"ready\n"

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait(WAIT_S)
        self.process.stdout.close()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def collector(where: Paths) -> Iterator[Collector]:
    running = Collector(where)
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture
def waits_there(monkeypatch) -> threading.Event:
    """Set once a collector has confirmed that it has the query. Pings are frequent."""
    seen = threading.Event()
    parse = query_messages.parse

    def spy(frames):
        question = parse(frames)
        if question.info.get("waiting"):
            seen.set()
        return question

    monkeypatch.setattr(query_messages, "parse", spy)
    monkeypatch.setattr(remote_module, "HEARTBEAT_INTERVAL_S", 0.1)
    monkeypatch.setattr(remote_module, "PEER_SILENT_S", WAIT_S)  # a loaded machine starts a process slowly
    return seen


def killed_and_free(collector: Collector, where: Paths) -> None:
    collector.kill()
    assert lock_holder_pid(where.collector / "lock") == 0


# -- the same through the socket and from the file --------------------------------------------------------------------
QUERIES = [
    ("SELECT * FROM metrics ORDER BY step", None),
    ("SELECT * FROM runs", None),
    ("SELECT * FROM labels", None),
    ("SELECT run_id, state FROM runs WHERE false", None),
    ("SELECT count(*) AS n, sum(step) AS s, avg(value) AS m FROM metrics WHERE step < ?", [10]),
    ("SELECT $a AS a, $b AS b, $c AS c, $d AS d", {"a": 1, "b": "ü'", "c": None, "d": [1.5, 2.5]}),
    ("SELECT 'nan'::DOUBLE AS a, 'inf'::DOUBLE AS b, true AS c, 'x'::BLOB AS d, 1.25::DECIMAL(5, 2) AS e", None),
    ("SELECT {'a': 1, 'b': [TIMESTAMPTZ '2026-01-02 03:04:05+01']} AS s, MAP {'k': 1} AS m, [[1], []] AS l", None),
    ("SELECT DATE '2026-01-02' AS d, TIME '01:02:03' AS t, INTERVAL 90 SECOND AS i, TIMESTAMP 'infinity' AS f", None),
    ("SELECT TIMESTAMPTZ '2026-01-02 03:04:05+05' AS t, 170141183460469231731687303715::HUGEINT AS h", None),
    ("SELECT 1 AS a, 2 AS a, 3 AS A, '{\"x\": 1}'::JSON AS j, uuid() IS NULL AS u", None),
    ("DESCRIBE metrics", None),
    ("SHOW TABLES", None),
    ("SELECT * FROM media_table(?, 'loss', ?)", ["run-a", 0]),
]


def test_a_result_is_equal_through_the_socket_and_from_the_file(where, collector):
    with connect(dir=where.root) as live:
        assert live._connection is not None
        through_socket = [live.sql(sql, params) for sql, params in QUERIES]
    collector.stop()
    with connect(dir=where.root) as direct:
        from_file = [direct.sql(sql, params) for sql, params in QUERIES]
        assert direct._connection is None
    for (sql, _), one, other in zip(QUERIES, through_socket, from_file, strict=True):
        assert one.columns == other.columns, sql
        assert repr(one.rows()) == repr(other.rows()), sql  # repr: NaN is not equal to itself
        assert one.arrow().schema == other.arrow().schema, sql


def test_what_duckdb_optimizes_wrongly_is_off_through_the_socket_and_from_the_file(where, collector):
    query, disabled = (
        "SELECT current_setting('disabled_optimizers') AS disabled",
        {"common_subplan", "compressed_materialization"},
    )
    with connect(dir=where.root) as live:
        assert set(live.sql(query).rows()[0]["disabled"].split(",")) == disabled
    collector.stop()
    with connect(dir=where.root) as from_file:
        assert set(from_file.sql(query).rows()[0]["disabled"].split(",")) == disabled


@pytest.mark.parametrize("live", everyday(1, [True, False]))
def test_errors_are_equal_through_the_socket_and_from_the_file(where, live, monkeypatch):
    settings = [text.replace("'1024MiB'", "'128MiB'") for text in database_file.LOCKED_SETTINGS]
    assert settings != list(database_file.LOCKED_SETTINGS)
    monkeypatch.setattr(database_file, "LOCKED_SETTINGS", settings)
    running = Collector(where) if live else None
    expected = [
        ("SELECT nope FROM runs", "sql", "Binder Error"),
        ("SELECT 1; SELECT 2", "refused", "holds 2 statements"),
        ("DELETE FROM base.runs", "refused", "DELETE statement is refused"),
        ("selec 1", "sql", "LINE 1: selec 1"),
        ("", "refused", "query is empty"),
        ("SELECT * FROM read_csv('/etc/passwd')", "sql", "disabled by configuration"),
        ("FROM media_table('run-a', 'loss', 9)", "sql", "no table loss of run run-a at step 9 is stored; see"),
        (f"FROM glob('{where.files}/../*')", "sql", "disabled by configuration"),
        ("WITH x AS (DELETE FROM base.runs RETURNING *) FROM x", "sql", "read-only"),
        ("SELECT len(list(range)) FROM range(1000000000)", "too_large", "Out of Memory"),
        ("SELECT error('Out of Memory Error: x')", "sql", "Out of Memory Error: x"),
        ("SELECT '" + "x" * QUERY_CHARS_MAX + "'", "refused", "limit of 1048576"),
    ]
    with connect(dir=where.root) as client:
        for sql, kind, part in expected:
            with pytest.raises(QueryError) as error:
                client.sql(sql)
            assert (error.value.kind, part in error.value.message) == (kind, True), error.value.message
            assert "\n" not in error.value.message
        with pytest.raises(QueryError) as error:
            client.sql(FOR_EVER, timeout_s=0.3)
        assert error.value.kind == "timeout"
        assert client.sql("SELECT 1 AS a").rows() == [{"a": 1}]
        with pytest.raises(QueryError, match="not within 0 and 30 s"):
            client.sql("SELECT 1", timeout_s=1000)
    if running:
        running.stop()


# -- streams ----------------------------------------------------------------------------------------------------------
MANY = "SELECT range AS n, hash(range) AS h FROM range(1000000)"  # 9 parts, of which a reader requests 4 ahead


@pytest.fixture
def in_parts(monkeypatch) -> None:
    """Results above 100 KB are read in parts."""
    monkeypatch.setattr(client_module, "SMALL_RESULT_BYTES", 100_000)
    monkeypatch.setattr(sink_module, "RESULT_SPILL_BYTES", 100_000)


def files_of_results(process: int | str, where: Paths) -> list[str]:
    """Return the open files without a name that a process has in the collector's directory."""
    found = []
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        try:
            found.append(os.readlink(descriptor))
        except OSError:
            continue  # closed in the meantime
    return [name for name in found if name.startswith(str(where.collector)) and name.endswith(" (deleted)")]


@pytest.mark.parametrize("live", everyday(1, [True, False]))
@pytest.mark.usefixtures("in_parts")
def test_a_large_result_is_streamed_beside_other_queries_and_leaves_nothing(where, live):
    running = Collector(where) if live else None
    process = running.process.pid if running else "self"
    with connect(dir=where.root) as client:
        with client.stream(MANY) as stream:
            assert (stream.columns, stream.n_rows) == (["n", "h"], 1_000_000)
            batches = [next(stream)]
            assert len(files_of_results(process, where)) == 1
            assert client.sql("SELECT count(*) AS n FROM metrics").rows() == [{"n": 1000}]
            with client.stream("SELECT $a AS a", {"a": 7}) as small:
                assert [batch.to_pylist() for batch in small] == [[{"a": 7}]]
            batches += stream
        assert pa.Table.from_batches(batches)["n"].to_pylist() == list(range(1_000_000))
        wait_until(lambda: not files_of_results(process, where), "an end of the file")
    if running:
        running.stop()


@pytest.mark.usefixtures("in_parts")
def test_a_logged_table_is_streamed_and_written_like_any_result(where, collector, tmp_path):
    query, params = "SELECT * FROM media_table($run, 'loss', 1)", {"run": "run-a"}
    for name in ("live", "file"):
        with connect(dir=where.root) as client:
            with client.stream(query, params) as stream:
                numbers = pa.Table.from_batches(stream)["n"].to_pylist()
            write_parquet(client.sql(query, params), str(tmp_path / name))
        assert numbers == list(range(50_000))
        if name == "live":
            collector.stop()
    tables = [pyarrow.parquet.read_table(tmp_path / name) for name in ("live", "file")]
    assert tables[0] == tables[1] and tables[0].column_names == ["label", "n", "h"]


@pytest.mark.parametrize("live", everyday(1, [True, False]))
@pytest.mark.usefixtures("in_parts")
def test_a_stream_that_is_closed_or_forgotten_leaves_nothing(where, live):
    running = Collector(where) if live else None
    process = running.process.pid if running else "self"
    with connect(dir=where.root) as client:
        with client.stream(MANY) as stream:
            next(stream)
        assert list(stream) == []
        forgotten = client.stream(MANY)
        next(forgotten)
        del forgotten
        wait_until(lambda: not files_of_results(process, where), "an end of the files")
        with pytest.raises(QueryError, match="Binder Error"):
            client.stream("SELECT nope FROM runs")
        with pytest.raises(QueryError, match="closed"):
            client.close()
            client.stream("SELECT 1")
    if running:
        running.stop()


@proves(
    "lost-result-is-expired",
    "a stream whose collector was restarted ends with an error",
    part='"expired"',
    new='"unreachable"',
)
@pytest.mark.usefixtures("in_parts")
def test_a_stream_ends_with_one_clear_error_when_its_collector_ends(where, collector, monkeypatch):
    monkeypatch.setattr(remote_module, "HEARTBEAT_INTERVAL_S", 0.1)
    with connect(dir=where.root) as client, client.stream(MANY) as stream:
        next(stream)
        killed_and_free(collector, where)
        with pytest.raises(QueryError, match="ask again") as error:
            list(stream)
        assert error.value.kind == "expired"
        assert client.sql("SELECT count(*) AS n FROM metrics").rows() == [{"n": 1000}]


# -- signals of the training ------------------------------------------------------------------------------------------
class AlarmError(ValueError):
    """What the training's own handler raises: a type that chiplog catches elsewhere."""


@pytest.fixture
def raising_handler() -> Iterator[None]:
    with handling(signal.SIGALRM, raising(AlarmError("of the training"))):
        yield


@proves(
    "interrupt-passes-sql",
    "what a signal handler raises while the file is queried passes through Client.sql()",
    new="try:\n    ...\nexcept Exception:\n    pass",
)
@pytest.mark.parametrize("live", everyday(1, [True, False]))
def test_what_a_handler_raises_while_a_query_runs_reaches_the_training(where, live, raising_handler):
    running = Collector(where) if live else None
    with connect(dir=where.root) as client:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(AlarmError, match="of the training"):
            client.sql(FOR_EVER, timeout_s=20)
        assert client._connection is None, "so that the collector notices"
        assert client.sql("SELECT 1 AS a").rows() == [{"a": 1}]
    if running:
        running.stop()


@proves(
    "starting-query-interrupted",
    "a query that a signal handler interrupts at its start does not continue",
    new="if True:",
)
def test_what_a_handler_raises_while_a_query_starts_ends_the_query(where, raising_handler, monkeypatch):
    read_file = database_file._read_file
    ended: list[bool] = []

    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            signal.raise_signal(signal.SIGALRM)

    def read_late(*given: object) -> memoryview:
        time.sleep(0.3)
        try:
            return read_file(*given)
        finally:
            ended.append(True)

    with connect(dir=where.root) as client:
        monkeypatch.setattr(database_file, "_read_file", read_late)
        with monkeypatch.context() as patched, pytest.raises(AlarmError):
            patched.setattr(database_file.threading, "Thread", Interrupted)
            client.sql(FOR_EVER)
        assert ended, "the query continues"


def test_a_query_without_a_thread_is_an_error_at_once(where, monkeypatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with connect(dir=where.root) as client:
        with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="can't start new thread"):
            patched.setattr(database_file.threading.Thread, "start", refuse)
            client.sql("SELECT 1")
        assert client.sql("SELECT 1 AS a").rows() == [{"a": 1}]


@proves("interrupt-passes-answer", "what a signal handler raises while an answer is read passes through Client.sql()")
def test_what_a_handler_raises_while_an_answer_is_read_is_no_query_error(where, raising_handler, monkeypatch):
    with connect(dir=where.root) as client:
        validate = result_module.validate_ipc_stream
        monkeypatch.setattr(
            result_module, "validate_ipc_stream", lambda data: (validate(data), signal.raise_signal(signal.SIGALRM))
        )
        with pytest.raises(AlarmError):
            client.sql("SELECT 1 AS a")


def test_what_a_handler_raises_while_a_message_is_decoded_is_no_bad_message(where, raising_handler, monkeypatch):
    running = Collector(where)
    with connect(dir=where.root) as client:
        unpackb = codec.msgpack.unpackb

        def interrupted(*given: object, **options: object) -> object:
            monkeypatch.setattr(codec.msgpack, "unpackb", unpackb)
            signal.raise_signal(signal.SIGALRM)

        monkeypatch.setattr(codec.msgpack, "unpackb", interrupted)
        with pytest.raises(AlarmError):
            client.sql("SELECT 1 AS a")
    running.stop()


@proves(
    "interrupt-passes-rows",
    "what a signal handler raises while rows are converted passes through Result.rows()",
    new="if True:",
)
@proves(
    "interrupt-passes-tuples",
    "what a signal handler raises while rows are converted passes through Result.tuples()",
    new="if True:",
)
@pytest.mark.parametrize("method", everyday(1, ["rows", "tuples"]))
def test_what_a_handler_raises_while_the_garbage_collector_runs_reaches_the_training(where, raising_handler, method):
    """CPython ignores what a callback of the garbage collector raises, and a handler may run in it."""
    with connect(dir=where.root) as client:
        result = client.sql("SELECT range AS n, range::VARCHAR AS text FROM range(10000)")

    def alarm_once(phase: str, info: dict[str, int]) -> None:
        if threading.current_thread() is threading.main_thread():
            gc.callbacks.remove(alarm_once)
            signal.raise_signal(signal.SIGALRM)

    gc.collect()  # the next collection comes after 700 more objects, so while rows are converted
    gc.callbacks.append(alarm_once)
    with pytest.raises(AlarmError):
        getattr(result, method)()


# -- values -----------------------------------------------------------------------------------------------------------


def test_rows_are_dicts_of_python_values(where):
    with connect(dir=where.root) as client:
        result = client.sql("SELECT label, step, ts, value, [step] AS l FROM metrics ORDER BY step LIMIT 2")
        assert result.rows() == [
            {"label": "rank0", "step": 0, "ts": datetime(2026, 1, 2), "value": 0.0, "l": [0]},
            {"label": "rank0", "step": 1, "ts": datetime(2026, 1, 2, 0, 0, 1), "value": 0.5, "l": [1]},
        ]
        assert (len(result), result.columns) == (2, ["label", "step", "ts", "value", "l"])
        assert list(result) == result.rows()
        assert client.sql("SELECT sum(step) AS s FROM metrics").rows() == [{"s": 499_500}]


def test_times_are_utc_wherever_the_client_is(where):
    code = (
        "from chiplog_client.client import connect; import sys\n"
        "print(connect(dir=sys.argv[1]).sql(\"SELECT TIMESTAMPTZ '2026-01-02 03:04:05+01' AS a, min(ts) AS b \"\n"
        '"FROM metrics WHERE ts >= ?", [__import__("datetime").datetime(2026, 1, 2)]).tuples())'
    )
    environment = {**os.environ, "TZ": "America/New_York"}
    done = subprocess.run(
        [sys.executable, "-c", code, where.root], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[(datetime.datetime(2026, 1, 2, 2, 4, 5), datetime.datetime(2026, 1, 2, 0, 0))]\n"


@pytest.mark.parametrize("live", everyday(1, [True, False]))
def test_a_query_may_be_asked_in_a_zone_of_its_own_and_the_next_is_in_utc_again(where, live):
    running = Collector(where) if live else None
    noon = "SELECT strftime(TIMESTAMPTZ '2026-07-01 12:00:00+00', '%H') AS hour"
    with connect(dir=where.root) as client:
        for _ in range(3):  # by both workers
            assert client.sql(noon, time_zone="Europe/Berlin").rows() == [{"hour": "14"}]
            assert client.sql(noon).rows() == [{"hour": "12"}]
        with pytest.raises(QueryError, match="Unknown TimeZone 'No'Where'") as error:
            client.sql(noon, time_zone="No'Where")
        assert error.value.kind == "sql"
        assert client.sql(noon, time_zone="UTC").rows() == [{"hour": "12"}]
    if running is not None:
        running.stop()


def test_arrow_is_pyarrow_where_that_is_installed_and_an_arrow_table_elsewhere(where, monkeypatch):
    with connect(dir=where.root) as client:
        result = client.sql("SELECT * FROM metrics")
        assert isinstance(result.arrow(), pa.Table)
        monkeypatch.setattr(result_module.importlib.util, "find_spec", lambda name: None)
        bare = result.arrow()
        assert not isinstance(bare, pa.Table)
        assert pa.table(bare) == pa.table(result._table)


# -- sources of data -------------------------------------------------------------------------------------------------
def test_nothing_recorded_says_where_it_looked_and_what_to_do(tmp_path):
    with pytest.raises(NoDataError, match=f"nothing has been recorded under {tmp_path}/empty yet; run a training"):
        connect(dir=tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_a_directory_in_which_duckdb_opens_no_database_is_named(tmp_path):
    with pytest.raises(QueryError, match="DuckDB cannot open a database in "):
        connect(dir=tmp_path / "what?")


def test_the_directory_may_come_from_the_environment(where, monkeypatch):
    monkeypatch.setenv("CHIPLOG_DIR", str(where.root))
    with connect() as client:
        assert client.sql("SELECT run_id FROM runs").rows() == [{"run_id": "run-a"}]


def test_the_collector_may_come_from_the_environment_and_an_argument_wins(where, tmp_path, monkeypatch):
    address = f"ipc://{tmp_path}/remote/query.sock"
    (tmp_path / "remote").mkdir()
    remote = Collector(where, address)
    monkeypatch.setenv("CHIPLOG_COLLECTOR", f"ipc://{tmp_path}/remote/collector.sock")
    with connect() as client:
        assert client.sql("SELECT run_id FROM runs").rows() == [{"run_id": "run-a"}]
    with pytest.raises(NoDataError):
        connect(dir=tmp_path / "empty")
    remote.stop()


def test_a_collector_over_tcp_answers_at_the_next_port(where):
    port = free_ports()
    remote = Collector(where, f"tcp://127.0.0.1:{port + 1}")
    with connect(f"tcp://127.0.0.1:{port}") as client:
        assert len(client.sql("SELECT * FROM metrics")) == 1000
    remote.stop()


def test_an_address_where_nobody_answers_is_an_error_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(client_module, "CONNECT_WAIT_S", 0.1)
    with pytest.raises(QueryError, match=f"no collector answers at ipc://{tmp_path}/query.sock") as error:
        connect(f"ipc://{tmp_path}/collector.sock")
    assert error.value.kind == "unreachable"


@pytest.mark.parametrize("url", ["host:1", "tcp://host", "http://host:80"])
def test_an_address_that_is_none_is_a_value_error(url):
    with pytest.raises(ValueError, match=r"write tcp://HOST:PORT or ipc:///PATH"):
        connect(url)
    with pytest.raises(ValueError, match="give one of them"):
        connect(url, dir="/tmp")


def test_a_collector_that_is_still_starting_is_waited_for(where):
    collector = Collector(where, answer=False)
    threading.Timer(0.1, collector.answer).start()
    with connect(dir=where.root) as client:
        assert client._connection is not None
        assert client.sql("SELECT run_id FROM runs").rows() == [{"run_id": "run-a"}]
    collector.stop()


def test_a_file_that_somebody_else_writes_is_waited_for_and_then_named(where, monkeypatch):
    monkeypatch.setattr(client_module, "CONNECT_WAIT_S", 0.1)
    monkeypatch.setattr(client_module, "POLL_AGAIN_S", 0.05)
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(1, flush=True); sys.stdin.readline()"
    holder = subprocess.Popen([sys.executable, "-c", code, where.index], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin and holder.stdout and holder.stdout.readline()
    with pytest.raises(QueryError, match=f"PID {holder.pid}") as error:
        connect(dir=where.root)
    assert error.value.kind == "unreachable"
    monkeypatch.setattr(client_module, "CONNECT_WAIT_S", WAIT_S)
    threading.Timer(0.2, holder.stdin.close).start()
    with connect(dir=where.root) as client:
        assert len(client.sql("SELECT * FROM runs")) == 1
    holder.wait(WAIT_S)
    holder.stdout.close()


def test_an_open_client_does_not_keep_a_collector_from_starting_and_follows_it(where):
    with connect(dir=where.root) as client:
        assert client.sql("SELECT count(*) AS n FROM runs").rows() == [{"n": 1}]
        first = Collector(where)  # would fail if the client still held the file
        assert client.sql("SELECT count(*) AS n FROM runs").rows() == [{"n": 1}]
        assert client._connection is not None
        first.stop()
        assert client.sql("SELECT count(*) AS n FROM runs").rows() == [{"n": 1}]


def test_a_client_survives_a_collector_that_is_killed_in_the_middle_of_a_question(where, monkeypatch, waits_there):
    ask_file = database_file.ask
    asked_of_file = []

    def ask_file_briefly(connection, query, params, timeout_s, *more):
        asked_of_file.append(query)
        return ask_file(connection, query, params, 0.2 if query == FOR_EVER else timeout_s, *more)

    monkeypatch.setattr(database_file, "ask", ask_file_briefly)
    first = Collector(where)
    with connect(dir=where.root) as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.sql, FOR_EVER)
        assert waits_there.wait(WAIT_S)
        killed_and_free(first, where)
        with pytest.raises(QueryError) as error:
            asked.result()
        assert (error.value.kind, asked_of_file) == ("timeout", [FOR_EVER])
        assert client.sql("SELECT count(*) AS n FROM runs").rows() == [{"n": 1}]


def test_a_question_is_asked_again_when_another_collector_has_taken_over(where, tmp_path, waits_there):
    (tmp_path / "remote").mkdir()
    address = f"ipc://{tmp_path}/remote/query.sock"
    first = Collector(where, address)
    with connect(address) as client, ThreadPoolExecutor(1) as pool:
        # The first collector would need forever; the second one, which has no metrics, answers at once.
        asked = pool.submit(client.sql, "SELECT count(*) AS n FROM metrics a, metrics b, metrics c, metrics d")
        assert waits_there.wait(WAIT_S)
        killed_and_free(first, where)
        with duckdb.connect(str(where.index)) as database:
            database.execute("DELETE FROM base.metrics")
        second = Collector(where, address)
        assert asked.result().rows() == [{"n": 0}]
        assert client.sql("SELECT count(*) AS n FROM runs").rows() == [{"n": 1}]
    second.stop()


@pytest.mark.full
def test_sixteen_threads_share_a_client_and_sixteen_have_their_own(where, collector):
    shared = connect(dir=where.root)

    def work(number: int, own: bool) -> None:
        client = connect(dir=where.root) if own else shared
        for turn in range(2):
            assert client.sql("SELECT ? AS a, ? AS b", [number, turn]).rows() == [{"a": number, "b": turn}]
        if own:
            client.close()

    with ThreadPoolExecutor(32) as pool:
        for done in [pool.submit(work, number, number % 2 == 0) for number in range(32)]:
            done.result()
    shared.close()


def test_a_closed_client_says_so(where):
    client = connect(dir=where.root)
    client.close()
    client.close()
    with pytest.raises(QueryError, match="closed"):
        client.sql("SELECT 1")


def test_a_collector_of_another_version_is_named(where, collector, monkeypatch):
    monkeypatch.setattr(remote_module, "QUESTION_VERSIONS", (7, 8))
    with pytest.raises(QueryError, match=r"speaks query versions \[1, 1\], this client \[7, 8\]"):
        connect(dir=where.root)


def test_importing_the_client_costs_no_heavy_module():
    code = "import chiplog_client.client, sys; "
    code += "print([m for m in ('duckdb','numpy','arro3','rich','click') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
