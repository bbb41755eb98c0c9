"""A result batch by batch: the same rows and types as the whole, in bounded memory, and one error for bad bytes."""

import io

import duckdb
import pyarrow as pa
import pytest
from arro3.io import write_ipc_stream

from chiplog_client import result_stream
from chiplog_client.result_source import MemoryResult
from chiplog_client.result_stream import ResultStream
from chiplog_client.results.result import QueryError, Result

QUERY = """SELECT range AS n, 'text ' || range AS t, range / 3 AS x, [range] AS l, range::HUGEINT AS h, 1 AS n,
TIMESTAMPTZ '2026-01-02 03:04:05+01' AS at, if(range % 2 = 0, 'even', 'odd')::ENUM ('even', 'odd') AS e
FROM range(300000)"""


def bytes_of(query: str = QUERY) -> bytes:
    sink = io.BytesIO()
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        write_ipc_stream(database.sql(query), sink, compression="lz4")
    return sink.getvalue()


class Source:
    """Parts of a few bytes; counts what is asked for."""

    def __init__(self, data: bytes, part_bytes: int = 50_000) -> None:
        self.n_bytes, self.n_rows = len(data), 300_000
        self.n_read = 0
        self.is_closed = False
        self._data, self._part_bytes = data, part_bytes

    def read(self) -> bytes:
        part = self._data[self.n_read : self.n_read + self._part_bytes]
        self.n_read += len(part)
        return part

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(scope="module")
def data() -> bytes:
    return bytes_of()


@pytest.mark.parametrize("part_bytes", [1_000, 1 << 30])
def test_batches_have_the_rows_and_types_of_the_whole_result(data: bytes, part_bytes: int) -> None:
    whole = Result(data)
    source = Source(data, part_bytes)
    with ResultStream(source) as stream:
        assert stream.columns == whole.columns == ["n", "t", "x", "l", "h", "n_1", "at", "e"]
        assert (stream.n_rows, stream.schema) == (300_000, whole.arrow().schema)
        batches = list(stream)
    assert len(batches) > 1 and {type(batch) for batch in batches} == {pa.RecordBatch}
    assert pa.Table.from_batches(batches) == whole.arrow()
    assert source.is_closed


def test_only_what_the_next_batch_needs_is_read(data: bytes) -> None:
    source = Source(data)
    stream = ResultStream(source)
    first = next(stream)
    assert source.n_read < len(data) * (first.num_rows + 60_000) / 300_000
    stream.close()
    assert source.is_closed
    assert list(stream) == []


def test_a_stream_is_a_reader_of_pyarrow_and_rows_for_writers() -> None:
    data = bytes_of(QUERY.replace("300000", "20000"))
    assert ResultStream(Source(data)).reader().read_all() == Result(data).arrow()
    assert list(ResultStream(Source(data)).tuples()) == Result(data).tuples()
    relation = ResultStream(Source(data))._relation()
    assert relation.types == Result(data).relation().types
    assert relation.limit(3).fetchall() == Result(data).tuples()[:3]


def test_without_pyarrow_batches_are_those_of_arro3(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_stream.importlib.util, "find_spec", lambda name: None)
    stream = ResultStream(Source(data))
    first = next(stream)
    assert type(first).__module__.startswith("arro3")
    assert pa.schema(stream.schema).names == stream.columns
    assert first.num_rows + pa.table(stream.reader()).num_rows == 300_000


def test_a_result_without_rows_has_its_columns() -> None:
    empty = bytes_of("SELECT 1 AS a WHERE false")
    with ResultStream(MemoryResult(empty, 0)) as stream:
        assert (stream.columns, list(stream), stream.n_rows) == (["a"], [], 0)
    assert "0 rows of a" in repr(stream)


@pytest.mark.parametrize("cut", [0, 3, 200, -20_000])
def test_a_stream_that_is_cut_short_is_an_error(data: bytes, cut: int) -> None:
    source = Source(data[:cut])
    source.n_bytes = len(data)
    with pytest.raises(QueryError, match="the answer is not an Arrow stream") as error:
        list(ResultStream(source))
    assert error.value.kind == "internal"


def test_a_batch_that_is_too_large_for_memory_is_refused(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_stream, "RESULT_BYTES_MAX", 100_000)
    with pytest.raises(QueryError, match="exceeds the limit of 100000; select fewer columns") as error:
        list(ResultStream(Source(data)))
    assert error.value.kind == "too_large"


def test_an_error_of_the_source_reaches_the_reader_of_a_relation_through_the_stream(data: bytes) -> None:
    class Lost(Source):
        def read(self) -> bytes:
            if self.n_read > 1_000_000:
                raise QueryError("expired", "ask again")
            return super().read()

    stream = ResultStream(Lost(data))
    with pytest.raises(duckdb.Error):
        stream._relation().fetchall()
    assert isinstance(stream._failure, QueryError) and stream._failure.kind == "expired"
