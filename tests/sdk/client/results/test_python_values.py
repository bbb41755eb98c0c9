"""Python values of Arrow columns: each is what DuckDB makes of it, and most are made without DuckDB."""

import io
import re
import subprocess
import sys
from functools import cache

import duckdb
import pytest
from arro3.core import Table
from arro3.io import read_ipc_stream, write_ipc_stream

from chiplog_client.results.python_values import python_values
from chiplog_client.results.result import Result
from tests.support.safeguard import proves

# Without DuckDB: what the views and counts have.
PLAIN = r"""
1::TINYINT; -1::SMALLINT; 1::INTEGER; -9223372036854775807::BIGINT; 255::UTINYINT; 18446744073709551615::UBIGINT
0.1::FLOAT; 1e300::DOUBLE; 'nan'::DOUBLE; '-inf'::DOUBLE; -0.0::DOUBLE; true; NULL
'text ü 🎉'; ''; '\x00\xff'::BLOB; '[1]'::JSON; ['a', NULL]; [1.5::DOUBLE, NULL]; []
TIMESTAMP '2026-01-02 03:04:05.678901'; TIMESTAMP '1969-12-31 23:59:59.999999'
TIMESTAMP '0001-01-01'; TIMESTAMP '9999-12-31 23:59:59.999999'
1::HUGEINT; -9999999999999999999999999999999999999::HUGEINT; NULL::STRUCT(a INTEGER); NULL::BIGNUM; NULL::DATE"""
# By DuckDB: what arro3 converts in another way or not at all, and what is rare.
ODD = """
TIMESTAMP 'infinity'; TIMESTAMP '-infinity'; TIMESTAMP '0044-03-15 (BC) 00:00:00'; TIMESTAMP '10000-01-01'
TIMESTAMP_S '2026-01-01'; TIMESTAMP_NS '2026-01-01 00:00:00.123456789'; TIMESTAMPTZ '2026-01-01 00:00:00+01'
[TIMESTAMP 'infinity']; DATE '2026-01-01'; DATE 'infinity'; DATE '10000-01-01'; TIME '01:02:03.5'; TIME '24:00:00'
INTERVAL 1 MONTH; 1.20::DECIMAL(5, 2); 99999999999999999999999999999999999999::HUGEINT
-170141183460469231731687303715884105727::HUGEINT; [1::HUGEINT]; [[1], NULL]; {'a': 1}; MAP {'a': 1}
'a'::ENUM ('a', 'b'); array_value(1, 2); union_value(n := 1)
-123456789012345678901234567890123456789012345::BIGNUM; [1::BIGNUM, NULL]; {'a': 1::BIGNUM}; 'POINT (1 2)'::GEOMETRY"""


def stream_of(query: str) -> bytes:
    sink = io.BytesIO()
    write_ipc_stream(database().sql(query), sink, compression="lz4")
    return sink.getvalue()


@cache
def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def values_of(text: str) -> list[str]:
    return re.split("; |\n", text.strip())


@proves("odd-times-by-duckdb", "a time beyond Python's years is as DuckDB returns it, not None", value="values")
@proves("long-integers-by-duckdb", "an integer of 39 digits is not cut", value="values")
@proves("extension-types-by-duckdb", "a BIGNUM is the number, not its bytes", condition=False)
@pytest.mark.parametrize("values", [values_of(PLAIN), *([value] for value in values_of(ODD))], ids=str)
def test_values_are_those_of_duckdb(values: list[str]) -> None:
    """DuckDB is the oracle: the same values and types, also with nulls beside them, and without any.

    DuckDB converts all columns of a result with a rare value: each of those is a result of its own.
    """
    columns = ", ".join(f"{value} AS v{number}" for number, value in enumerate(values))
    with_nulls = ", ".join(f"CASE WHEN i <> 1 THEN {value} END AS v{number}" for number, value in enumerate(values))
    for query in (f"SELECT {columns}", f"SELECT {with_nulls} FROM range(3) t(i)", f"SELECT {columns} WHERE false"):
        result = Result(stream_of(query))
        expected = result.relation().fetchall()
        assert repr(result.tuples()) == repr(expected), query
        assert repr(result.rows()) == repr([dict(zip(result.columns, row, strict=True)) for row in expected]), query


def test_usual_types_are_converted_without_duckdb() -> None:
    for value in values_of(PLAIN):
        table = Table.from_arrow(read_ipc_stream(stream_of(f"SELECT {value} AS v")).read_all())
        assert python_values(table.column(0)) is not None, value


def test_values_of_several_batches_are_in_their_order() -> None:
    stream = stream_of("SELECT range AS n, 'x' || range AS t FROM range(150_000)")
    assert len(list(read_ipc_stream(stream))) > 1
    result = Result(stream)
    rows = result.tuples()
    assert rows == [(n, f"x{n}") for n in range(150_000)]
    assert result.rows() == [{"n": n, "t": text} for n, text in rows]


def test_rows_of_usual_types_import_neither_duckdb_nor_numpy() -> None:
    code = (
        "import sys; from chiplog_client.results.result import Result\n"
        "assert Result(sys.stdin.buffer.read()).rows() == [{'a': 1, 'b': 'x'}]\n"
        "print([name for name in ('duckdb', 'numpy', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], input=stream_of("SELECT 1 AS a, 'x' AS b"), capture_output=True, check=True
    )
    assert done.stdout.strip() == b"[]"
