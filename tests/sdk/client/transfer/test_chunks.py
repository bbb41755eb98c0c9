"""Reading a table of a run in chunks: in order, each row once, in smaller parts where an answer would be too large."""

from collections.abc import Iterator
from typing import Any

import pytest

from chiplog_client.client import Client, QueryError
from chiplog_client.results.result import Result
from chiplog_client.transfer import chunks
from chiplog_client.transfer.chunks import ChunkReader
from chiplog_client.transfer.export_format import TABLES
from tests.support.exported_run import make_place, served
from tests.support.marks import everyday
from tests.support.safeguard import proves


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with served(make_place(tmp_path_factory.mktemp("chunks"))) as client:
        yield client


def producers_of(client: Client) -> list[int]:
    query = "SELECT producer FROM base.identified WHERE run_id = 'whole' ORDER BY label, attempt"
    return [row["producer"] for row in client.sql(query).rows()]


@pytest.mark.parametrize(
    ("name", "rows_max"),
    everyday(3, [("metrics", 20), ("phases", 90), ("texts", 1), ("console", 7), ("config", 3), ("events", 1000)]),
)
def test_chunks_have_each_row_once_and_hold_few_rows(
    client: Client, monkeypatch: pytest.MonkeyPatch, name: str, rows_max: int
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", rows_max)
    monkeypatch.setattr(chunks, "WIDE_CHUNK_ROWS", rows_max)
    producers = producers_of(client)
    reader = ChunkReader(client, TABLES[name], "whole", producers)
    found = list(reader.chunks())
    rows = [row for chunk in found for result in reader.read(chunk) for row in result.tuples()]
    whole = f"SELECT {', '.join(TABLES[name].source_columns)} FROM {TABLES[name].source} f"
    expected = client.sql(f"{whole} WHERE f.producer IN (SELECT unnest($p::INTEGER[]))", {"p": producers}).tuples()
    assert sorted(map(repr, rows)) == sorted(map(repr, expected))
    assert len(rows) == reader.n_rows
    sizes = [sum(map(len, reader.read(chunk))) for chunk in found]
    one_event = max(3, rows_max)  # an event may have several rows
    assert max(sizes) <= one_event


def test_chunks_come_in_the_order_of_keys_labels_and_steps(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 40)
    producers = producers_of(client)
    reader = ChunkReader(client, TABLES["metrics"], "whole", producers)
    places = []
    for chunk in reader.chunks():
        inner = sorted(
            (reader.names[row["key"]], producers.index(row["producer"]), row["step"], row["seq"])
            for result in reader.read(chunk)
            for row in result.rows()
        )
        places += inner
    assert places == sorted(places)
    assert len(places) == reader.n_rows


@proves(
    "export-in-smaller-parts",
    "a part of an export that is larger than an answer may be is read in smaller parts",
    new="parts = []",
)
def test_an_answer_that_would_be_too_large_is_read_in_halves(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    producers = producers_of(client)
    sql = client.sql

    def refuse(query: str, params: Any = None) -> Result:
        result = sql(query, params)
        if len(result) > 25 and "count(*)" not in query and "sum(" not in query:
            raise QueryError("too_large", "the result is too large")
        return result

    monkeypatch.setattr(client, "sql", refuse)
    for name in ("metrics", "console"):
        reader = ChunkReader(client, TABLES[name], "whole", producers)
        parts = [result for chunk in reader.chunks() for result in reader.read(chunk)]
        assert sum(map(len, parts)) == reader.n_rows
        assert max(map(len, parts)) <= 25


def test_another_error_ends_the_export(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ChunkReader(client, TABLES["metrics"], "whole", producers_of(client))
    [chunk] = reader.chunks()

    def fail(*_: object) -> Result:
        raise QueryError("unreachable", "it has stopped")

    monkeypatch.setattr(client, "sql", fail)
    with pytest.raises(QueryError, match="it has stopped"):
        list(reader.read(chunk))
