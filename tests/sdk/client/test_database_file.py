"""Queries of the database file itself, where no collector runs."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pytest

from chiplog_client.client import QueryError, connect
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from chiplog_schemas.query import result_sink as sink_module
from tests.support.run_builder import RunBuilder, Sql
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.usefixtures("no_environment")


def test_a_result_above_the_limit_is_too_large_from_the_file_too(where, monkeypatch):
    monkeypatch.setattr(sink_module, "RESULT_BYTES_MAX", 100_000)
    with connect(dir=where.root) as client:
        with pytest.raises(QueryError, match=r"exceeds the limit of 100000 bytes; .*Client\.stream\(\)") as error:
            client.sql("SELECT hash(range) FROM range(1000000)")
        assert error.value.kind == "too_large"


@proves(
    "shared-database-configured-once",
    "a second thread that opens the same file does not set what the first one has locked",
    condition=True,
)
def test_threads_may_read_the_file_at_the_same_time(where):
    def ask(number: int) -> int:
        with connect(dir=where.root) as client:
            return client.sql("SELECT count(*) AS n FROM metrics").rows()[0]["n"]

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(ask, range(24))) == {1000}


FORKS = """
import os, signal, sys, threading
from chiplog_client import client, database_file
held = threading.Event()
def hold():
    with database_file._configuring:
        held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    with client.connect(dir=sys.argv[1]) as reader:
        os._exit(reader.sql("SELECT 7 AS n").rows()[0]["n"])
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os._exit(0)
"""


@proves("fork-renews-configuring-lock", "a forked child does not wait for a thread of its parent")
def test_a_forked_child_opens_the_file_that_a_thread_of_its_parent_was_opening(where):
    command = [sys.executable, "-P", "-c", FORKS, str(where.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout == "7\n", (done.stdout, done.stderr)


def test_a_file_that_is_no_database_is_named(where):
    where.index.write_bytes(b"x" * 100_000)
    with pytest.raises(QueryError, match=r"cannot be read: .*; try chiplog rebuild"):
        connect(dir=where.root)


def _acknowledged(where: Paths, synced: int, applied: int) -> None:
    (where.collector / "synced").write_bytes(synced.to_bytes(8, "little") + bytes(4088))
    with duckdb.connect(str(where.index)) as database:
        RunBuilder(database).position(applied, migration=1, log_id=Sql("'L'::BLOB"), last_run=0, last_producer=0)


def test_records_that_are_not_in_the_file_yet_are_told_once(where, caplog):
    _acknowledged(where, 12, 5)
    with connect(dir=where.root) as client:
        for _ in range(2):
            assert client.sql("SELECT run_id FROM runs").rows() == [{"run_id": "run-a"}]
    [record] = caplog.records
    assert record.getMessage() == (
        "chiplog: 7 records of the log are not in the database yet; start the collector (chiplog up) to apply them"
    )


@pytest.mark.parametrize("page", ["caught up", "torn", "missing"])
def test_a_file_that_has_all_records_is_answered_without_a_word(where, caplog, page):
    _acknowledged(where, 5, 5)
    if page == "torn":
        (where.collector / "synced").write_bytes(b"abc")
    elif page == "missing":
        (where.collector / "synced").unlink()
    with connect(dir=where.root) as client:
        assert len(client.sql("SELECT run_id FROM runs")) == 1
    assert not caplog.records


def test_a_damaged_file_in_a_directory_named_like_a_lock_is_not_in_use(tmp_path):
    where = paths_for_root(tmp_path / "review-blocks")
    ensure_private_dir(where.collector)
    where.index.write_bytes(b"no database" * 1000)
    with pytest.raises(QueryError, match=r"cannot be read: .*; try chiplog rebuild") as error:
        connect(dir=where.root)
    assert error.value.kind == "internal"
