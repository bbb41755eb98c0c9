"""A CSV file in SQL has the steps, times and values that Python's csv module reads; bad rows are one line each."""

import csv
import math
import random
from pathlib import Path

import pytest

from chiplog_client.transfer.importers.imported_run import ImporterError
from tests.support.imported_runs import import_path
from tests.support.index import Index
from tests.support.safeguard import proves


def test_every_cell_is_the_value_that_csv_reads(index: Index, tmp_path: Path) -> None:
    """Invariant: SQL has exactly the non-empty cells, by step, time and name, to the last bit."""
    seed = 20
    rng = random.Random(seed)
    path = tmp_path / "run.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["iteration", "when", "loss", "a, b", "note"])
        for step in range(500):
            cells = [rng.choice(["", repr(rng.gauss(0, 1)), "nan", "-inf", "1e-300"]) for _ in range(2)]
            writer.writerow([step, repr(1.7e9 + step / 8), *cells, rng.choice(["", "text, with comma"])])
    import_path(index, "csv", path, {"step": "iteration", "time": "when"})
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [
        (key, int(row["iteration"]), round(float(row["when"]) * 1e6), str(float(row[key])))
        for row in rows
        for key in ("loss", "a, b")
        if row[key]
    ]
    found = index.sql("SELECT key, step, epoch_us(ts), value FROM metrics")
    assert sorted((*row[:3], str(row[3])) for row in found) == sorted(expected), f"seed {seed}"
    texts = index.sql("SELECT step, value FROM texts ORDER BY step")
    assert texts == [(int(row["iteration"]), row["note"]) for row in rows if row["note"]]


def test_only_a_column_of_steps_has_its_role_by_its_name(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"  # as YOLO writes them: the time has elapsed since the start
    path.write_text("step,time,label,value\n1,12.5,3,0.5\n")
    import_path(index, "csv", path)
    assert index.sql("SELECT label, key, value FROM metrics ORDER BY key") == [
        ("main", "label", 3.0),
        ("main", "time", 12.5),
        ("main", "value", 0.5),
    ]


def test_the_first_columns_of_our_own_files_have_the_roles_of_their_names(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("run,label,attempt,step,time,loss\nr,rank0,1,5,2026-01-01T00:00:00.000001Z,0.5\n")
    import_path(index, "csv", path)
    found = index.sql("SELECT run_id, label, key, step, epoch_us(ts), value FROM metrics")
    assert found == [("r", "rank0", "loss", 5, 1_767_225_600_000_001, 0.5)]


def test_roles_give_runs_labels_and_a_value_in_each_row(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "long.tsv"
    lines = ["run\tlabel\tname\tvalue\ttime", "a\trank0\tloss\t0.5\t2026-01-01T00:00:00Z", "b\t\tacc\tNaN\t1e9"]
    path.write_text("\ufeff" + "\r\n".join([*lines, ""]), encoding="utf-8")
    names = {name: name for name in ("run", "label", "value", "time")}
    import_path(index, "csv", path, {**names, "key": "name", "step": ""})
    found = index.sql("SELECT run_id, label, key, step, epoch_us(ts), value FROM metrics ORDER BY ALL")
    assert found[0] == ("a", "rank0", "loss", 0, 1_767_225_600_000_000, 0.5)
    assert found[1][:5] == ("b", "main", "acc", 1, 10**15) and math.isnan(found[1][5])


@proves("ragged-row-refused", "a ragged row of a CSV file is refused", condition=False)
@proves("elapsed-time-refused", "times that have elapsed since a start do not become times in 1970", condition=False)
@proves("decimal-comma-refused", "a number with a decimal comma does not become a text", condition=False)
@pytest.mark.parametrize(
    ("content", "column_map", "message"),
    [
        (b"", {}, "bad.csv:1: no header; the first line must name the columns"),
        (b"step,a\n", {}, "bad.csv: no rows below the header"),
        (b"x,a\n1,2\n", {}, "bad.csv:1: no column of steps; name it: --map step=COLUMN, one of x, a"),
        (b"step,a\n1,2\n", {"time": "t"}, "bad.csv:1: no column 't' for --map time; the columns are step, a"),
        (b"step,a,a\n1,2,3\n", {}, "bad.csv:1: two columns are called 'a'; rename one"),
        (b"step,a\n1,2\n2,3,4\n", {}, "bad.csv:3: 3 cells, and the header has 2; quote cells"),
        (b"step,a\n1,2\n\n2\n", {}, "bad.csv:4: 1 cells, and the header has 2"),
        (b"step,a\nit,loss\n1,2\n", {}, "bad.csv:2: step 'it' is no whole number; the file has two header lines"),
        (b"step,a\nstep,a\n1,2\n", {}, "bad.csv:2: this is the header again; the file has two header lines"),
        (b"it,a\n1,2\nit,a\n", {"step": ""}, "bad.csv:3: this is the header again; the file has two header lines"),
        (b"step;a\n1;1.234,5\n", {}, "bad.csv:2: column 'a' has 1.234,5, with a decimal comma; write it with a point"),
        (b"step,a\n1,2\nstep,a\n", {}, "bad.csv:3: this is the header again; the file has two header lines"),
        (b"step,a\n0.5,2\n", {}, "bad.csv:2: step '0.5' is no whole number; --map step= numbers the rows"),
        (b"step,a\n1,2\n1.5,2\n", {}, "bad.csv:3: step '1.5' is no whole number; --map step= numbers the rows"),
        (b"step,a\n,2\n", {}, "bad.csv:2: step '' is no whole number; correct it"),
        (b"step,a\n99999999999999999999,2\n", {}, "bad.csv:2: step '99999999999999999999' is no whole number"),
        (b"step;a\n1;0,25\n", {}, "bad.csv:2: column 'a' has 0,25, with a decimal comma; write it with a point"),
        (b"step,time,a\n1,soon,2\n", {"time": "time"}, "bad.csv:2: time 'soon' is neither seconds nor ISO 8601"),
        (b"step,t,a\n1,1700000000000,2\n", {"time": "t"}, "bad.csv:2: time 1700000000000 is not in seconds since"),
        (b"step,t,a\n1,12.5,2\n", {"time": "t"}, "bad.csv:2: time 12.5 is not in seconds since the epoch; convert it"),
        (
            b"step,run,a\n1,x,2\n1,y,2\n2,x,2\n",
            {"run": "run"},
            "bad.csv:4: run 'x' has rows further up; sort the file by run",
        ),
        (b"step,key,a\n1,x,2\n", {"key": "key"}, "--map key=COLUMN and --map value=COLUMN need each other"),
        (b"step,a\n1,\xff\n", {}, "bad.csv: byte 9 is not UTF-8; save the file as UTF-8"),
        (b'step,a\n1,"2\n', {}, "unexpected end of data; save the file as CSV again"),
    ],
)
def test_bad_input_is_one_line_with_file_place_and_remedy(
    index: Index, tmp_path: Path, content: bytes, column_map: dict[str, str], message: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(ImporterError) as error:
        import_path(index, "csv", path, column_map)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert index.sql("FROM runs") == [], "nothing is stored in part"
