"""Tables: rows of values and media as Parquet."""

import copy
import hashlib
import pickle
from datetime import timedelta
from io import BytesIO
from itertools import count
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chiplog.media import table as tables
from chiplog.media.image import Image
from chiplog.media.table import Table
from chiplog.values.media_value import Content, MediaError, MediaValue

ROWS = [[1, "a", 0.5], [2, None, 1.5]]
NAMES = ["n", "text", "x"]
STORED = [{"n": 1, "text": "a", "x": 0.5}, {"n": 2, "text": None, "x": 1.5}]
PLAIN = {"format": "parquet", "n_rows": 2, "n_columns": 3}


def rows_of(content: Content) -> list[dict[str, Any]]:
    return pq.read_table(BytesIO(content.data)).to_pylist()  # type: ignore[no-any-return]


def problem_of(table: Table) -> str:
    with pytest.raises(MediaError) as caught:
        table.to_content()
    return str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"columns": NAMES, "data": ROWS},
        {"columns": NAMES, "rows": ROWS},
        {"columns": NAMES, "data": tuple(map(tuple, ROWS))},
        {"columns": NAMES, "data": iter(ROWS)},
        {"data": STORED},
        {"data": {name: [row[name] for row in STORED] for name in NAMES}},
        {"data": pd.DataFrame(ROWS, columns=NAMES)},
        {"dataframe": pd.DataFrame(ROWS, columns=NAMES), "columns": ["other"]},
        {"dataframe": pa.Table.from_pylist(STORED)},
        {"data": pa.Table.from_pylist(STORED).to_reader()},
        {"data": duckdb.sql("SELECT 1 AS n, 'a' AS text, 0.5::DOUBLE AS x UNION ALL SELECT 2, NULL, 1.5 ORDER BY n")},
    ],
    ids=[
        "data",
        "rows",
        "tuples",
        "iterator",
        "dicts",
        "columns",
        "pandas",
        "dataframe=",
        "pyarrow",
        "stream",
        "duckdb",
    ],
)
def test_rows_and_data_frames_become_parquet(given: Any) -> None:
    table = Table(**given)
    assert table.columns == NAMES
    content = table.to_content()
    assert (content.kind, content.metadata, content.parts) == ("table", PLAIN, ())
    assert rows_of(content) == STORED
    assert table.data == ROWS and rows_of(table.to_content()) == STORED


@pytest.mark.parametrize(
    "rows",
    [
        pd.DataFrame({"a": [1, 3], "b": [2, 4]}),
        pa.table({"a": [1, 3], "b": [2, 4]}),
        {"a": [1, 3], "b": [2, 4]},
        [{"a": 1, "b": 2}, {"a": 3, "b": 4}],
        [[1, 2], [3, 4]],
        np.array([[1, 2], [3, 4]]),
    ],
)
def test_rows_may_be_the_only_argument_in_place_of_names(rows: Any) -> None:
    table = Table(rows)
    assert table.data == [[1, 2], [3, 4]] and table.columns in (["a", "b"], [0, 1])


def test_the_types_of_data_frames_are_kept() -> None:
    frame = pa.table({"a": pa.array([1], pa.int8()), "b": pa.array([[1.5]], pa.list_(pa.float32()))})
    schema = pq.read_schema(BytesIO(Table(data=frame).to_content().data))
    assert (schema.field("a").type, schema.field("b").type) == (pa.int8(), pa.list_(pa.float32()))
    small = pd.DataFrame({"a": np.zeros(1, np.float32)})
    assert pq.read_schema(BytesIO(Table(data=small).to_content().data)).field("a").type == pa.float32()


def test_a_frame_of_polars_that_arrow_cannot_read_is_read_as_values() -> None:
    class Frame:
        __module__ = "polars.dataframe.frame"

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise ValueError('the datatype "_pli128" is not supported')

        def to_dict(self, as_series: bool) -> dict[str, list[Any]]:
            return {"big": [2**100, None], "none": [None, None]}

    assert rows_of(Table(data=Frame()).to_content()) == [
        {"big": str(2**100), "none": None},
        {"big": None, "none": None},
    ]
    Frame.__module__ = "other"
    assert problem_of(Table(data=Frame())).startswith("it cannot be read: ValueError the datatype")


def test_durations_are_integers_of_a_named_unit() -> None:
    frame = Table(data=pa.table({"d": pa.array([1_500], pa.duration("ms"))}))
    content = frame.to_content()
    assert (rows_of(content), content.metadata["columns"]) == ([{"d": 1_500}], {"d": "duration_ms"})
    assert frame.data == [[timedelta(seconds=1.5)]]


def test_an_array_is_rows_and_columns() -> None:
    content = Table(columns=["a", 1], data=np.array([[1.5, 2], [3, 4]])).to_content()
    assert rows_of(content) == [{"a": 1.5, "1": 2.0}, {"a": 3.0, "1": 4.0}]


def test_columns_without_names_have_those_of_wandb_or_numbers() -> None:
    assert Table().columns == Table(data=[[1, 2, 3]]).columns == ["Input", "Output", "Expected"]
    assert Table(data=[[1, 2]]).columns == [0, 1]


def test_rows_and_columns_are_added() -> None:
    table = Table(columns=["a", "b"])
    table.add_data(1, "x")
    table.add_row(2, "y")
    table.add_row([3, "z"])
    table.add_rows([(4, "u")])
    table.add_column("c", np.array([0.5, 1.5, 2.5, 3.5]))
    table.add_computed_columns(lambda index, row: {"d": index + row["a"]})
    assert table.columns == ["a", "b", "c", "d"]
    assert table.get_column("b") == ["x", "y", "z", "u"]
    assert table.get_column("a", convert_to="numpy").tolist() == [1, 2, 3, 4]
    assert [row for _, row in table.iterrows()] == table.data and table.get_index() == [0, 1, 2, 3]
    assert table.get_dataframe()["d"].tolist() == [1, 3, 5, 7]
    assert rows_of(table.to_content())[3] == {"a": 4, "b": "u", "c": 3.5, "d": 7}
    with pytest.raises(KeyError):
        table.get_column("e")
    first = Table(columns=[])
    first.add_column("a", [1, 2])
    assert rows_of(first.to_content()) == [{"a": 1}, {"a": 2}]


def test_a_table_is_read_when_it_is_logged() -> None:
    table = Table(columns=["a"], data=[[1]])
    assert rows_of(table.to_content()) == [{"a": 1}]
    table.add_data(2)
    table.data[0][0] = 9
    assert rows_of(table.to_content()) == [{"a": 9}, {"a": 2}]
    table.data = [[5]]
    assert rows_of(table.to_content()) == [{"a": 5}]
    frame = Table(data=pa.table({"a": [1]}))
    frame.add_data(2)
    assert rows_of(frame.to_content()) == [{"a": 1}, {"a": 2}]


def test_media_in_cells_are_parts() -> None:
    image = Image(np.zeros((2, 2)), masks={"truth": np.zeros((2, 2), int)})
    content = Table(columns=["image", "label"], data=[[None, "a"], [image, 1]]).to_content()
    assert content.metadata["columns"] == {"image": "image", "label": "json"}
    [(name, part)] = content.parts
    whole = image.to_content()
    assert (name, part.data, part.metadata) == ("image", whole.data, {**whole.metadata, "row": 1})
    assert [(name, mask.metadata["row"]) for name, mask in part.parts] == [("truth", 1)]
    digest = hashlib.sha256(part.data).hexdigest()
    assert rows_of(content) == [{"image": None, "label": '"a"'}, {"image": f"sha256:{digest}", "label": "1"}]


def test_the_log_mode_is_metadata() -> None:
    assert "log_mode" not in Table(columns=["a"]).to_content().metadata
    assert Table(columns=["a"], log_mode="INCREMENTAL").to_content().metadata["log_mode"] == "INCREMENTAL"


def test_a_table_without_rows_is_stored() -> None:
    content = Table(columns=["a"]).to_content()
    assert (content.metadata["n_rows"], pq.read_schema(BytesIO(content.data)).names) == (0, ["a"])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"columns": []}, "it has 0 columns; name them in columns="),
        ({"columns": ["a", "a"]}, "it has two columns 'a'; rename one"),
        ({"columns": [1, "1"]}, "it has two columns '1'; rename one"),
        ({"columns": ["a" * 513]}, f"column {'a' * 512!r:.60} has a name of more than 512 bytes; shorten it"),
        ({"data": pa.table({"c": pa.array([{}], pa.struct([]))})}, "column 'c' has a type that Parquet lacks"),
        ({"columns": ["a"] * 10_001}, "it has 10001 columns, the limit is 10000"),
        ({"columns": "ab"}, "columns= is the text 'ab'; pass a list of names"),
        ({"columns": ["a", "b"], "data": [[1, 2], [1]]}, "row 1 has 1 values for 2 columns; give one for each"),
        ({"columns": ["a"], "data": [[1], 2]}, "row 1 is a value of type int; pass a list of values for each row"),
        ({"columns": ["a"], "data": ["ab"]}, "row 0 is a value of type str"),
        ({"columns": ["a"], "data": [[object()]]}, "column 'a', row 0: a table stores no object"),
        ({"data": lambda: 1}, "a value of type function is not a table; pass a list of rows, or a data frame"),
        ({"data": np.zeros(3)}, "an array of the shape (3,) is not a table; pass (rows, columns)"),
        ({"data": {"a": [1], "b": [1, 2]}}, "it cannot be read: ValueError"),
    ],
)
def test_what_is_not_a_table_is_said_by_to_content(given: Any, reason: str) -> None:
    assert problem_of(Table(**given)).startswith(reason)


def test_endless_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TABLE_ROWS_MAX", 3)
    assert problem_of(Table(columns=["a"], data=([1] for _ in count()))).startswith("it has more than ")
    table = Table(columns=["a"])
    table.add_rows([1] for _ in count())
    assert problem_of(table).startswith("it has more than ")


def test_wrong_columns_and_rows_are_said_by_to_content() -> None:
    table = Table(columns=["a"], data=[[1]])
    table.add_column("b", [1, 2])
    assert problem_of(table) == "column 'b' has 2 values for 1 rows; give one for each"
    for spoil in (lambda t: t.add_column("b", 5), lambda t: t.add_rows([5]), lambda t: setattr(t, "data", 5)):
        table = Table(columns=["a"])
        spoil(table)
        assert problem_of(table)


def test_a_table_that_holds_itself_is_refused() -> None:
    table = Table(columns=["a"])
    table.add_data(table)
    assert "RecursionError" in problem_of(table)


def test_a_table_pickles_and_copies() -> None:
    table = Table(columns=NAMES, data=ROWS)
    assert isinstance(table, MediaValue)
    for other in (pickle.loads(pickle.dumps(table)), copy.deepcopy(table)):
        assert rows_of(other.to_content()) == STORED
    frame = Table(data=pa.Table.from_pylist(STORED))
    for other in (pickle.loads(pickle.dumps(frame)), copy.copy(frame), frame):
        assert rows_of(other.to_content()) == STORED
