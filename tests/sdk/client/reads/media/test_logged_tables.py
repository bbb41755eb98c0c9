"""Rows of logged tables."""

import datetime
from typing import Any

import duckdb
import numpy as np
import pytest

import chiplog
from chiplog_client.reads.media import logged_tables
from chiplog_client.reads.media.logged_tables import CELL_CHARS_MAX, COLUMNS_MAX, read_table
from chiplog_client.results.result import QueryError


def parquet(columns: list[str], rows: list[list[Any]]) -> list[bytes]:
    """Return the bytes of a table in two parts."""
    data = chiplog.Table(columns=columns, data=rows).to_content().data
    return [data[:100], data[100:]]


NUMBERS = parquet(["id", "Score", 'odd "name"'], [[n, float((n * 7) % 10), f"row {n}"] for n in range(10)])


def test_rows_come_as_they_were_logged() -> None:
    found = read_table(NUMBERS)
    assert [row[0] for row in found["rows"]] == list(range(10))
    assert found["columns"] == [
        {"name": "id", "is_number": True},
        {"name": "Score", "is_number": True},
        {"name": 'odd "name"', "is_number": False},
    ]
    assert (found["n_columns"], found["n_rows"], found["n_found"]) == (3, 10, 10)


def test_rows_are_sorted_filtered_and_bounded() -> None:
    found = read_table(NUMBERS, 1, is_down=True, limit=3)
    assert [row[1] for row in found["rows"]] == [9.0, 8.0, 7.0]
    assert (found["n_rows"], found["n_found"]) == (10, 10)
    assert [row[1] for row in read_table(NUMBERS, 1, limit=2)["rows"]] == [0.0, 1.0]
    found = read_table(NUMBERS, 2, is_down=True, search="ROW 3")
    assert ([row[0] for row in found["rows"]], found["n_rows"], found["n_found"]) == ([3], 10, 1)
    assert read_table(NUMBERS, 99, search="%")["rows"] == [], "a sign of LIKE, and a column that is not there"


def test_the_search_finds_what_is_shown_not_the_digest_of_an_image() -> None:
    images = [chiplog.Image(np.full((4, 4), shade, np.uint8)) for shade in range(16)]
    parts = parquet(["n", "image"], [[f"row {n}", image] for n, image in enumerate(images)])
    assert [row[0] for row in read_table(parts, search="row 3")["rows"]] == ["row 3"]
    assert [read_table(parts, search=text)["n_found"] for text in ("sha256", "e", "row 1")] == [0, 0, 7]


def test_cells_of_every_type_become_numbers_or_texts() -> None:
    day = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    row = [True, 2**62, float("nan"), None, b"\x01\xff", day, day.date(), [1, {"a": 2}], "x" * 2_000]
    found = read_table(parquet([f"c{n}" for n in range(len(row))], [row]))
    [cells] = found["rows"]
    assert cells[:5] == [True, 2**62, "nan", None, "01FF"]
    assert cells[5:8] == ["2026-01-02 03:04:05+00", "2026-01-02", '[1, {"a": 2}]']
    assert cells[8] == "x" * CELL_CHARS_MAX + "…"


def test_only_the_first_columns_are_sent() -> None:
    n = COLUMNS_MAX + 5
    found = read_table(parquet([f"c{at}" for at in range(n)], [list(range(n))]), COLUMNS_MAX + 1)
    assert (len(found["columns"]), len(found["rows"][0]), found["n_columns"]) == (COLUMNS_MAX, COLUMNS_MAX, n)


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(QueryError, match="the table cannot be read: ") as error:
        read_table([b"PAR1 is not enough"])
    assert error.value.kind == "refused"


@pytest.mark.parametrize(
    ("raised", "kind"), [(duckdb.OutOfMemoryException, "too_large"), (duckdb.InterruptException, "timeout")]
)
def test_a_table_that_needs_too_much_is_refused(
    monkeypatch: pytest.MonkeyPatch, raised: type[Exception], kind: str
) -> None:
    def fail(*_: Any) -> None:
        raise raised("x")

    monkeypatch.setattr(logged_tables, "_read", fail)
    with pytest.raises(QueryError, match="download it") as error:
        read_table(NUMBERS)
    assert error.value.kind == kind
