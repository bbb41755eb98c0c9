"""The calls of each label come in the order in which it made them, with what each recorded."""

import struct
from pathlib import Path

import pytest

from chiplog_client.transfer.exporter import export_tables
from chiplog_client.transfer.exporters.run_rows import TABLES, HistogramRow, LogCall, MediaRow, RunRows
from chiplog_schemas.model.events import EventKind
from tests.support.collector_log import START_US, Rank, whole
from tests.support.exported_run import served
from tests.support.index import Index
from tests.support.sample_log import place_of


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """The tables of a run of two labels, of which one restarted. Its `b` logs more than is fetched at once."""
    first = Rank(1, "a", run_id="r", primary=True)
    again = Rank(2, "a", run_id="r", primary=True, restart=1)
    other = Rank(3, "b", run_id="r")
    first.log(5, z=0.1, y=float("nan"))
    first.say(EventKind.TEXT, 5, "note", "ü")
    first.log(5, y=2.0)
    first.say(EventKind.HISTOGRAM, 4, "w", struct.pack("<2d", 0, 1), struct.pack("<d", 3))
    first.say(EventKind.MEDIA, 4, "i", "image", b"\7" * 32, 5, '{"width": 8}')
    again.log(2, y=3.0)
    for step in range(11_000):
        other.log(step, y=float(step))
    index = Index(tmp_path)
    index.take(whole(first, again), whole(other))
    target = tmp_path / "tables"
    target.mkdir()
    with served(place_of(index)) as client:
        assert export_tables(client, "r", target, TABLES), "it has not ended"
    return target


def test_calls_come_by_label_and_attempt_with_all_values_of_each(tables: Path) -> None:
    read: list[tuple[int, int]] = []
    with RunRows(tables, lambda n, total: read.append((n, total))) as rows:
        assert rows.has_restarts()
        assert rows.keys("metrics", "texts") == ["note", "y", "z"]
        one, text, two, histogram, image, restarted, *others = rows.calls(*TABLES)
        assert (one.label, one.attempt, one.step) == ("a", 0, 5)
        assert [key for key, _ in one.values] == ["y", "z"] and one.values[1] == ("z", 0.1)
        assert (text.step, text.values) == (5, [("note", "ü")])
        assert (two.step, two.values) == (5, [("y", 2.0)])
        assert (histogram.step, histogram.values) == (4, [("w", HistogramRow([0, 1], [3]))])
        assert image.values == [("i", MediaRow("image", "07" * 32, False, {"width": 8}))]
        assert START_US <= one.us < text.us < two.us < histogram.us < image.us
        assert (restarted.attempt, restarted.step, restarted.values) == (1, 2, [("y", 3.0)])
        assert [call[:1] + call[2:3] + (call.values,) for call in others] == [
            ("b", step, [("y", float(step))]) for step in range(11_000)
        ]
    assert read == [(10_000, 11_007)]


def test_tables_without_rows_have_no_calls(tables: Path) -> None:
    (tables / "texts.parquet").unlink()
    with RunRows(tables) as rows:
        assert list(rows.calls("texts")) == [] and rows.keys("texts") == []
        assert isinstance(next(rows.calls("media", "texts")), LogCall)
