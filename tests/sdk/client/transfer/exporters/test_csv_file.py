"""A CSV file has a row for each call, exactly; an import gives the same rows again."""

import csv
from pathlib import Path

from chiplog_client.transfer.exporters.conversion import convert_run
from chiplog_client.transfer.exporters.csv_file import column_of
from chiplog_schemas.model.events import EventKind
from tests.support.collector_log import Rank, whole
from tests.support.exported_run import served
from tests.support.imported_runs import import_path, open_index
from tests.support.index import Index
from tests.support.sample_log import place_of

ROWS = (
    "SELECT label, key, step, epoch_us(ts), value::VARCHAR FROM metrics WHERE run_id = 'r' UNION ALL "
    "SELECT label, key, step, epoch_us(ts), value FROM texts WHERE run_id = 'r' ORDER BY ALL"
)


def written(index: Index, directory: Path) -> Path:
    """Write the run `r` of an index, and return the file."""
    place = place_of(index)
    with served(place) as client:
        done = convert_run(client, "r", directory / "out" / "r", "csv")
    assert done.left_out == {}
    return done.path / "metrics.csv"


def test_an_import_of_the_file_gives_each_value_at_its_step_and_time(tmp_path: Path) -> None:
    index = Index(tmp_path)
    for number, label in enumerate(("rank0", "rank1")):
        rank = Rank(number, label, run_id="r", primary=not number)
        for step in (0, 0, 0, 1 << 60, -3):  # code for MLflow logs without a step
            rank.log(step, loss=0.1 + step, **{'a,b\n"c"': 1e-320})
        rank.log(7, odd=float("nan"), inf=float("-inf"))
        rank.say(EventKind.TEXT, 7, "note", "two\nlines, ü")
        index.take(whole(rank))
    expected = index.sql(ROWS)
    file = written(index, tmp_path)
    with open_index() as imported:
        import_path(imported, "csv", file)
        assert imported.sql(ROWS) == expected
    assert len(expected) == 26


def test_a_run_that_restarted_has_the_attempts_and_a_name_is_no_column_twice(tmp_path: Path) -> None:
    index = Index(tmp_path)
    first, again = (Rank(n, "rank0", run_id="r", primary=True, restart=n) for n in range(2))
    first.log(0, time=1.5, x=2.0)
    again.log(0, x=3.0)
    index.take(whole(first), whole(again))
    with open(written(index, tmp_path), newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["run", "label", "attempt", "step", "time", "metrics/time", "x"]
    assert [row[:4] + row[5:] for row in rows] == [
        ["r", "rank0", "0", "0", "1.5", "2.0"],
        ["r", "rank0", "1", "0", "", "3.0"],
    ]
    assert rows[0][4].startswith("2026-11-18T11:06:40.0") and rows[0][4].endswith("Z")
    assert (column_of("x"), column_of("label")) == ("x", "metrics/label")
