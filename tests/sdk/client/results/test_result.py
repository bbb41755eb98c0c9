"""The result of a query, from the Arrow streams that DuckDB's answers become."""

import io
from datetime import datetime
from decimal import Decimal

import duckdb
import pytest
from arro3.io import write_ipc_stream

from chiplog_client.results.result import QueryError, Result


@pytest.mark.parametrize("stream", [b"", b"no stream", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\x10\0\0\0garbage"])
def test_an_answer_that_is_no_arrow_stream_is_an_error_of_ours(stream):
    with pytest.raises(QueryError) as error:
        Result(stream)
    assert error.value.kind == "internal"


def result_of(query: str) -> Result:
    """Return the result of a query as it comes from a collector."""
    sink = io.BytesIO()
    with duckdb.connect() as database:
        write_ipc_stream(database.sql(query), sink, compression="lz4")
    return Result(sink.getvalue())


def test_rows_are_python_values_with_one_name_for_each_column() -> None:
    result = result_of("SELECT 1 AS a, 'x' AS A, [1.5, NULL] AS l, {'k': 2} AS s FROM range(2)")
    assert result.columns == ["a", "A_1", "l", "s"]
    assert list(result) == [{"a": 1, "A_1": "x", "l": [1.5, None], "s": {"k": 2}}] * 2
    assert repr(result) == "<chiplog result: 2 rows of a, A_1, l, s>"


def test_types_that_arrow_lacks_are_as_they_were_asked() -> None:
    result = result_of("SELECT TIMESTAMPTZ '2026-01-02 03:04:05+01' AS t, 3::HUGEINT AS h, 1.25::DECIMAL(5, 2) AS d")
    assert result.tuples() == [(datetime(2026, 1, 2, 2, 4, 5), 3, Decimal("1.25"))]
    assert [type(value) for value in result.tuples()[0]] == [datetime, int, Decimal]


def test_times_without_a_zone_are_named() -> None:
    result = result_of("SELECT TIMESTAMP '2026-01-02' AS t, TIMESTAMPTZ '2026-01-02 00:00:00+00' AS z, 1 AS n")
    assert result.wall_times == ["t"]


def test_a_result_without_rows_keeps_its_columns_in_every_library() -> None:
    result = result_of("SELECT 1 AS a, 'x' AS b WHERE false")
    assert (len(result), result.rows()) == (0, [])
    assert result.columns == list(result.arrow().column_names) == list(result.df().columns) == result.relation().columns


def test_a_result_may_be_asked_again_in_sql() -> None:
    relation = result_of("SELECT range AS n FROM range(10)").relation()
    assert relation.filter("n > 7").fetchall() == [(8,), (9,)]


def test_a_notebook_shows_an_escaped_table_of_the_first_rows_and_counts_all() -> None:
    page = result_of("SELECT range AS \"<n>\", '<b>' || repeat('x', 300) AS t, NULL AS u FROM range(50)")._repr_html_()
    assert "<th>&lt;n&gt;</th><th>t</th><th>u</th>" in page
    assert page.count("<tr>") == 21
    assert "<b>" not in page
    assert "x…</td><td></td>" in page
    assert page.endswith("<p>the first 20 of 50 rows × 3 columns</p>")


def test_a_notebook_shows_a_list_of_numbers_as_a_curve_with_its_range() -> None:
    query = """SELECT [0, 7, NULL, 3.5]::DOUBLE[] AS a, [1.5, 2.5] AS decimals,
        [if(x = 500, 9, 1) for x in range(1000)] AS long, ['<x>'] AS texts,
        [1] AS one, [true, false] AS flags, [NULL, NULL]::INTEGER[] AS unknown, ['nan'::DOUBLE, 1] AS nan"""
    page = result_of(query)._repr_html_()
    assert '<td title="4 values, 0 to 7">▁█·▅</td>' in page
    assert f'<td title="1000 values, 1 to 9">{"▁" * 29}█{"▁" * 29}</td>' in page
    for shown in (
        "<td>[&#x27;&lt;x&gt;&#x27;]</td>",
        "<td>[1]</td>",
        "<td>[True, False]</td>",
        "<td>[None, None]</td>",
    ):
        assert shown in page
    assert '<td title="2 values, 1 to 1">×▁</td>' in page
    assert '<td title="2 values, 1.5 to 2.5">▁█</td>' in page


def test_a_notebook_shows_the_columns_of_a_result_without_rows() -> None:
    page = result_of("SELECT 1 AS a, 2 AS b WHERE false")._repr_html_()
    assert page == (
        "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody></tbody></table><p>0 rows × 2 columns</p>"
    )
