"""A client that was opened before a fork works in the child, or ends with one clear error: it never waits forever."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import chiplog
from chiplog_client import client as client_module
from chiplog_client import database_file, dbapi
from chiplog_client.client import Client
from chiplog_collector.query.service import QueryService, lock_down
from chiplog_schemas.query import result_sink
from chiplog_schemas.query.result_file import ResultSpace
from tests.support.recorded import create_database
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

MANY = "SELECT range AS n, hash(range) AS h FROM range(300000)"


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a collector that answers large results in parts."""
    monkeypatch.setattr(client_module, "SMALL_RESULT_BYTES", 100_000)
    monkeypatch.setattr(result_sink, "RESULT_SPILL_BYTES", 100_000)
    with duckdb.connect() as connection:
        lock_down(connection, 128 << 20)
        service = QueryService(connection, f"ipc://{tmp_path}/query.sock", space=ResultSpace(tmp_path))
        service.start()
        yield service.address
        service.close()


def in_child(work: Callable[[], Any]) -> str:
    """Return the text of what a function returns or raises in a forked child, which a timer ends."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(WAIT_S / 3))
        try:
            text = repr(work())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        text = answer.read().decode()
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"the child ended with {status}: it hung, and its timer ended it"
    return text


def ask(client: Client) -> list[dict[str, Any]]:
    return client.sql("SELECT 1 AS a").rows()


def test_a_client_answers_in_parent_and_child(address: str) -> None:
    with chiplog.connect(address) as client:
        assert ask(client) == [{"a": 1}]
        assert in_child(lambda: (ask(client), ask(client), client.close())) == "([{'a': 1}], [{'a': 1}], None)"
        assert in_child(client.close) == "None"
        assert ask(client) == [{"a": 1}]


@proves("fork-renews-client-lock", "a thread that asks during a fork does not block the child", condition=False)
def test_a_child_does_not_wait_for_a_query_of_its_parent(address: str) -> None:
    with chiplog.connect(address) as client:
        entered, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with client._lock:
                entered.set()
                leave.wait(WAIT_S)

        thread = threading.Thread(target=hold)
        thread.start()
        entered.wait(WAIT_S)
        try:
            assert in_child(lambda: ask(client)) == "[{'a': 1}]"
        finally:
            leave.set()
            thread.join()


@proves(
    "fork-during-query-is-an-error",
    "a process that was forked while its parent read the database does not wait for DuckDB's threads",
    condition=False,
)
def test_a_child_of_a_process_that_reads_the_file_gets_an_error(tmp_path: Path) -> None:
    """DuckDB shares an open file within a process, and its threads are not in the child."""
    place, database = create_database(tmp_path, "2026-01-02")
    database.close()
    with client_module.connect(dir=tmp_path, start=False) as client:
        assert in_child(lambda: ask(client)) == "[{'a': 1}]"
        opened = database_file.open_file(place)  # as during a query of another thread
        said = in_child(lambda: ask(client))
        assert said.startswith("QueryError: this process was forked while its parent read "), said
        assert not isinstance(opened, str)
        database_file.close_file(opened)
        assert in_child(lambda: ask(client)) == "[{'a': 1}]"


def test_an_async_client_answers_in_parent_and_child(address: str) -> None:
    async def opened() -> Any:
        client = await chiplog.connect_async(address)
        assert (await client.sql("SELECT 1 AS a")).rows() == [{"a": 1}]
        await client._turns.lock.acquire()  # as by a task that waits for its query
        return client

    client = asyncio.run(opened())

    async def asked() -> Any:
        return (await client.sql("SELECT 1 AS a")).rows()

    assert in_child(lambda: asyncio.run(asked())) == "[{'a': 1}]"
    client._turns.lock.release()
    assert asyncio.run(asked()) == [{"a": 1}]
    asyncio.run(client.close())


@proves("inherited-result-expired", "a result of the parent ends with an error in a forked child", condition=False)
def test_a_stream_of_the_parent_is_an_error_in_the_child_and_stays_whole(address: str) -> None:
    with chiplog.connect(address) as client, client.stream(MANY) as stream:
        n_rows = next(stream).num_rows

        def read_on() -> int:
            return sum(batch.num_rows for batch in stream)

        assert in_child(read_on).startswith("QueryError: this result belongs to the parent")
        assert in_child(stream.close) == "None"
        assert in_child(lambda: sum(batch.num_rows for batch in client.stream(MANY))) == "300000"
        assert n_rows + read_on() == 300_000


def test_connections_and_cursors_of_the_parent_are_usable_or_an_error(address: str) -> None:
    connection = dbapi.connect(address)
    cursor = connection.cursor().execute(MANY)
    assert len(cursor.fetchmany(10)) == 10

    def all_rows() -> int:
        return len(cursor.fetchall())

    assert "this result belongs to the parent" in in_child(all_rows)
    assert in_child(lambda: connection.cursor().execute("SELECT 1").fetchall()) == "[(1,)]"
    assert in_child(lambda: cursor.execute("SELECT 2").fetchall()) == "[(2,)]"
    assert all_rows() == 299_990
    connection.close()


def test_a_change_waits_for_no_answer_to_the_parent(address: str) -> None:
    with chiplog.connect(address) as client:
        ask(client)
        assert in_child(lambda: client.delete_runs(["x"])).startswith("QueryError: ")
        assert in_child(lambda: list(client.read_file("0" * 64))).startswith("QueryError: ")


def test_workers_of_a_data_loader_ask_through_the_client_of_their_parent(address: str) -> None:
    from torch.utils.data import DataLoader, Dataset

    with chiplog.connect(address) as client:
        ask(client)

        class Rows(Dataset[int]):
            def __len__(self) -> int:
                return 8

            def __getitem__(self, number: int) -> int:
                return int(client.sql("SELECT ? + 1 AS a", [number]).rows()[0]["a"])

        loader = DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=int(WAIT_S))
        assert [value for batch in loader for value in batch.tolist()] == list(range(1, 9))
        assert ask(client) == [{"a": 1}]


def test_a_page_of_the_parent_lets_a_child_end(tmp_path: Path) -> None:
    from chiplog_page.server.access import Access
    from chiplog_page.server.source import Source
    from chiplog_page.web_server import PageServer

    server = PageServer(Source(dir=str(tmp_path)), Access())
    server.start()
    try:
        assert in_child(server.close) == "None"
    finally:
        server.close()
