"""Results in files and pipes: every format, and files that appear complete or not at all."""

import csv
import io
import json
import os
import signal
import stat
from datetime import datetime

import click
import duckdb
import pyarrow as pa
import pytest
from arro3.io import read_ipc

from chiplog_cli.output import Output
from chiplog_cli.tables.writers import Rows, StreamedRows, atomic_output, write_csv, write_json, write_result
from chiplog_client.result_source import MemoryResult
from chiplog_client.result_stream import ResultStream
from chiplog_client.results.result import Result
from tests.support.command_line import ON_ONE_WORKER, one_line
from tests.support.marks import everyday
from tests.support.safeguard import proves
from tests.support.waiting import wait_until

pytestmark = ON_ONE_WORKER

VALUES = (
    "SELECT 1 AS a, 'ü,\"' AS b, TIMESTAMP '2026-01-02 03:04:05' AS c, 'nan'::DOUBLE AS d, '-inf'::DOUBLE AS e, "
    "NULL AS f, [TIMESTAMP '2026-01-02 03:04:05'] AS g, {'x': 'inf'::DOUBLE} AS h, true AS i, 1.5::DECIMAL(3, 1) AS j, "
    "'\\xAB'::BLOB AS k, TIMESTAMPTZ '2026-01-02 03:04:05+01' AS l"
)


def test_json_is_a_list_of_objects_with_utc_and_without_nan(chiplog):
    code, text, _ = chiplog("sql", VALUES, "--format", "json")
    assert code == 0
    (row,) = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert row == {
        "a": 1,
        "b": 'ü,"',
        "c": "2026-01-02T03:04:05Z",
        "d": None,
        "e": None,
        "f": None,
        "g": ["2026-01-02T03:04:05Z"],
        "h": {"x": None},
        "i": True,
        "j": 1.5,
        "k": "ab",
        "l": "2026-01-02T02:04:05Z",
    }
    assert json.loads(chiplog("sql", "FROM runs WHERE false", "--format", "json")[1]) == []


def test_json_lines_have_the_same_objects(chiplog):
    code, text, _ = chiplog("sql", f"{VALUES} UNION ALL {VALUES}", "--format", "jsonl")
    assert code == 0 and text.count("\n") == 2
    rows = json.loads(chiplog("sql", f"{VALUES} UNION ALL {VALUES}", "--format", "json")[1])
    assert [json.loads(line) for line in text.splitlines()] == rows
    assert chiplog("sql", "FROM runs WHERE false", "--format", "jsonl") == (0, "", "")
    (row,) = [json.loads(line) for line in chiplog("sql", "SELECT body FROM events LIMIT 1", "--format", "jsonl")[1:2]]
    assert isinstance(row["body"], dict)


@proves("null-for-nan-is-reported", "null in place of NaN in JSON is reported", condition=False)
def test_null_in_place_of_nan_is_reported(chiplog):
    for form in ("json", "jsonl"):
        assert one_line(chiplog("sql", VALUES, "--format", form)[2]).startswith("3 values are NaN or infinite: null in")
    assert one_line(chiplog("sql", VALUES, "--format", "csv")[2]).startswith("1 value is NaN or infinite: null in JSON")
    assert chiplog("sql", "SELECT 'nan'::DOUBLE AS x, NULL AS y", "--format", "csv") == (0, "x,y\nnan,\n", "")


def test_markdown_is_a_table_whose_text_is_text(chiplog, tmp_path):
    query = "SELECT 'a|b*c' AS text, 1.5 AS n, NULL AS nothing, 'x\ny' AS lines, '_x_' AS val_a"
    expected = [
        "| text    |   n | nothing | lines | val_a |",
        "| ------- | --: | ------- | ----- | ----- |",
        r"| a\|b\*c | 1.5 | NULL    | x⏎y   | \_x\_ |",
    ]
    code, text, errors = chiplog("sql", query, "--format", "md")
    assert (code, text.splitlines(), errors) == (0, expected, "")
    assert chiplog("sql", query, "-o", str(tmp_path / "out.md")) == (0, "", "")
    assert (tmp_path / "out.md").read_text() == text
    header = chiplog("sql", "SELECT ts FROM events LIMIT 1", "--format", "md")[1].splitlines()[0]
    assert header.strip("| ") == "ts (UTC)"


def test_csv_of_one_column_keeps_rows_without_a_value(chiplog):
    text = chiplog("sql", "VALUES ('a'), (NULL), ('')", "--format", "csv")[1]
    assert [row[0] for row in csv.reader(io.StringIO(text))] == ["col0", "a", "", ""]


@pytest.mark.parametrize("form", ["csv", "json", "jsonl", "parquet", "arrow", "md", "table"])
def test_a_table_that_comes_from_no_query_has_every_format(tmp_path, form):
    path = str(tmp_path / "out")
    write_result(Rows(["a", 'b"c'], [("x", 1), (None, 2), ("", None)]), Output(form, path))
    if form == "parquet":
        rows = duckdb.sql(f"FROM read_parquet('{path}')").fetchall()
    elif form == "arrow":
        rows = [
            tuple(row.values()) for row in duckdb.from_arrow(read_ipc(path).read_all()).to_arrow_table().to_pylist()
        ]
    else:
        text = (tmp_path / "out").read_text()
        assert [text.count(word) for word in ("x", "1", "2")] == [1, 1, 1]
        assert [text.count("NULL"), text.count("null")] == {"csv": [0, 0], "md": [2, 0], "table": [2, 0]}.get(
            form, [0, 2]
        )
        return
    assert rows == [("x", 1), (None, 2), ("", None)]


@pytest.mark.parametrize("form", everyday(2, ["csv", "json", "jsonl", "parquet", "arrow"]))
def test_a_stream_is_written_as_the_whole_result_is(tmp_path, form):
    sink = io.BytesIO()
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        table = database.sql(f"SELECT range AS n, * FROM ({VALUES}), range(200)").to_arrow_table()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=30)
    data = sink.getvalue()
    whole, parts = tmp_path / f"whole.{form}", tmp_path / f"parts.{form}"
    write_result(Result(data), Output(form, str(whole)))
    with ResultStream(MemoryResult(data, 0)) as stream:
        write_result(StreamedRows(stream), Output(form, str(parts)))
    if form == "parquet":
        read = [duckdb.read_parquet(str(path), connection=duckdb.connect()) for path in (whole, parts)]
        assert read[0].types == read[1].types
        assert repr(read[0].fetchall()) == repr(read[1].fetchall())
    elif form == "arrow":
        assert pa.table(read_ipc(str(whole))).schema == pa.table(read_ipc(str(parts))).schema
        assert pa.table(read_ipc(str(parts))).num_rows == len(Result(data))
    else:
        assert whole.read_bytes() == parts.read_bytes()


@proves("interrupt-ends-parquet", "Ctrl-C ends the writing of a parquet file")
def test_ctrl_c_ends_a_parquet_file_and_leaves_nothing(tmp_path):
    batch = pa.record_batch({"n": list(range(1000))})
    with pa.BufferOutputStream() as sink, pa.ipc.new_stream(sink, batch.schema) as stream:
        for _ in range(200):
            stream.write_batch(batch)
    data = sink.getvalue().to_pybytes()

    class Interrupted(MemoryResult):
        n_read = 0

        def read(self):
            part = data[self.n_read : self.n_read + 100_000]
            self.n_read += len(part)
            if self.n_read == 500_000:
                os.kill(os.getpid(), signal.SIGINT)
                wait_until(lambda: stream._is_stopped, "a writer that is stopped")
            return part

    with ResultStream(Interrupted(data, 200_000)) as stream, pytest.raises(KeyboardInterrupt):
        write_result(StreamedRows(stream), Output("parquet", str(tmp_path / "out.parquet")))
    assert stream._is_stopped and list(tmp_path.iterdir()) == []


def test_values_of_json_keep_their_own_fields_in_a_file(tmp_path):
    path = str(tmp_path / "out.parquet")
    write_result(Rows(["opt", "lr"], [({}, 1), ({"a": 1}, 0.5), ([1, "b"], None)]), Output("parquet", path))
    found = duckdb.sql(f"SELECT opt, lr FROM '{path}'").fetchall()
    assert found == [("{}", 1.0), ('{"a": 1}', 0.5), ('[1, "b"]', None)]


@pytest.mark.full
def test_every_command_with_a_table_has_the_formats(chiplog, tmp_path):
    for command, columns in (
        (("status", "--no-canary"), {"name", "value"}),
        (("doctor",), {"check", "verdict", "found", "remedy"}),
        (("keys", "list"), {"name", "is", "roles", "nodes", "public", "file"}),
    ):
        for suffix in ("csv", "parquet"):
            target = tmp_path / f"{command[0]}.{suffix}"
            assert chiplog(*command, "-o", str(target))[1] == ""
            assert set(duckdb.sql(f"FROM '{target}'").columns) == columns
        assert chiplog(*command, "--format", "md")[1].startswith("| ") or command[0] == "keys"
    assert chiplog("show", "vit", "-o", str(tmp_path / "page.md")) == (0, "", "")
    assert "### Labels" in (tmp_path / "page.md").read_text()
    assert json.loads(chiplog("show", "vit", "--format", "json")[1])["run_id"] == "vit-20260104-0042"
    assert ".csv is not a known format; use one of .json, .md, .txt, or" in chiplog("show", "vit", "-o", "x.csv")[2]


def test_csv_has_a_header_line_and_utc(chiplog):
    code, text, _ = chiplog("sql", VALUES, "--format", "csv")
    assert code == 0
    header, row = csv.reader(io.StringIO(text))
    assert header == list("abcdefghijkl")
    assert row[:6] == ["1", 'ü,"', "2026-01-02T03:04:05Z", "nan", "-inf", ""]
    assert row[6:] == ['["2026-01-02T03:04:05Z"]', '{"x": null}', "true", "1.5", "ab", "2026-01-02T02:04:05Z"]


@pytest.mark.parametrize("suffix", ["feather", "arrow"])
def test_a_feather_file_is_arrow(chiplog, tmp_path, suffix):
    target = tmp_path / f"out.{suffix}"
    assert chiplog("sql", "SELECT key, step, ts, value FROM metrics ORDER BY ALL", "-o", str(target)) == (0, "", "")
    assert target.read_bytes().startswith(b"ARROW1") and target.read_bytes().endswith(b"ARROW1")
    table = read_ipc(str(target)).read_all()
    assert (table.num_rows, table.column_names) == (1500, ["key", "step", "ts", "value"])


@pytest.mark.parametrize("suffix", everyday(2, ["csv", "json", "parquet", "txt"]))
def test_a_file_gets_the_form_of_its_suffix_and_appears_complete(chiplog, tmp_path, suffix):
    target = tmp_path / f"out.{suffix}"
    query = "FROM metrics ORDER BY label, key, step" + (" LIMIT 20" if suffix == "txt" else "")
    assert chiplog("sql", query, "-o", str(target)) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    if suffix == "txt":
        assert target.read_text().startswith("run_id")
        return
    with duckdb.connect() as reader:
        reader.execute("SET TimeZone = 'UTC'")
        count, first = reader.execute(f"SELECT count(*), min(ts)::TIMESTAMP FROM '{target}'").fetchone()
    assert (count, first) == (1500, datetime(2026, 1, 2, 3, 4, 5))


def test_a_query_that_fails_leaves_the_old_file(chiplog, tmp_path):
    target = tmp_path / "out.csv"
    target.write_text("old")
    assert chiplog("sql", "SELECT nope", "-o", str(target))[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
    assert target.read_text() == "old"


def test_an_error_while_a_file_is_written_leaves_nothing(tmp_path):
    target = tmp_path / "out.csv"
    with pytest.raises(ZeroDivisionError), atomic_output(str(target)) as temporary:
        assert os.path.dirname(temporary) == str(tmp_path)
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_file_has_the_permissions_of_the_umask(tmp_path):
    target = tmp_path / "out.csv"
    before = os.umask(0o027)
    try:
        with atomic_output(str(target)):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_directory_that_does_not_exist_is_named(tmp_path):
    target = tmp_path / "nowhere" / "out.csv"
    refusal = pytest.raises(click.UsageError, match=r"nowhere/out\.csv' cannot be written: No such file or directory")
    with refusal, atomic_output(str(target)):
        pass


def test_times_in_the_zone_of_the_query_are_written_unchanged():
    moment = datetime(2026, 1, 2, 3, 4, 5)
    for write, shown in (
        (write_csv, "a,b\n2026-01-02T03:04:05,2026-01-02T03:04:05Z\n"),
        (write_json, '[\n{"a": "2026-01-02T03:04:05", "b": "2026-01-02T03:04:05Z"}\n]\n'),
    ):
        target = io.StringIO()
        write(("a", "b"), [(moment, moment)], target, wall={"a"})
        assert target.getvalue() == shown


def test_a_table_says_how_many_rows_it_leaves_out(chiplog):
    code, text, errors = chiplog("sql", "SELECT range AS n FROM range(10002)")
    assert (code, errors) == (0, "… and 2 more rows; use --format csv for all\n")
    assert text.splitlines()[-1].strip() == "9999"
