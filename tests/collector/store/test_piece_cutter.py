"""Pieces: each row of the index is in exactly one, whatever is restarted, sorted or changed between two of them."""

import random
from collections import Counter
from pathlib import Path
from typing import IO, Any

import duckdb
import pytest

from chiplog_collector.store import piece_cutter
from chiplog_collector.store.outbox import Outbox, Published
from chiplog_collector.store.piece_cutter import PIECE_ROWS, PIECE_S, PieceCutter, full_in_s, next_piece
from chiplog_collector.store.published_tables import COMPLETE, PUBLISHED
from tests.support.collector_log import LOG_ID, START_US
from tests.support.index import Index
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves
from tests.support.sample_log import everything

URL = "file:///lake"
FAILS = "SELECT error('no memory') AS log FROM range($until + 1) WHERE $log <> ''"  # while rows are read
FACTS = [table for table in PUBLISHED if not (table.is_dimension or table.is_series)]


def outbox_of(directory: Path, **positions: int) -> Outbox:
    outbox = Outbox(directory / "store")
    outbox.set_published(Published(LOG_ID.hex(), URL, -1, positions))
    return outbox


def cut_all(index: Index, outbox: Outbox) -> None:
    """Cut pieces until all rows of the index are in one."""
    cutter = PieceCutter(index.database.connection, LOG_ID, outbox, URL)
    cutter.start()
    cutter.close()


def rows(outbox: Outbox, table: str, columns: str = "*") -> list[tuple]:
    files = [str(path) for until in outbox.ends() if (path := outbox.file(outbox.piece(until), table)).exists()]
    with duckdb.connect() as connection:
        return connection.execute(f"SELECT {columns} FROM read_parquet(?)", [files]).fetchall() if files else []


def test_each_row_is_in_one_piece_whichever_size_pieces_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piece_cutter, "PIECE_ROWS", 300)
    index, outbox = Index(tmp_path), outbox_of(tmp_path)
    chooser = random.Random(5)
    for payload in everything(seed=5):
        index.take(payload)
        index.database.sort_facts()
        if chooser.random() < 0.1:
            cut_all(index, outbox)
        if chooser.random() < 0.1:
            index.reopen()
    cut_all(index, outbox)
    assert len(outbox.ends()) > 5
    for table in FACTS:
        counted = [index.sql(f"SELECT count(*) FROM base.{source}")[0][0] for source in table.sources]
        if table.name != "changes":  # a change that deletes a producer takes its rows from the index, not from a piece
            assert len(rows(outbox, table.name)) >= sum(counted), table.name
    by_seq = Counter(rows(outbox, "metrics", "producer, seq, key"))
    assert set(by_seq.values()) == {1}
    index.close()


def test_a_value_in_a_piece_is_the_value_of_the_view(tmp_path: Path) -> None:
    index, outbox = Index(tmp_path), outbox_of(tmp_path)
    index.take(*everything()[:-1])
    cut_all(index, outbox)
    for view in ("metrics", "phases"):
        name, value = ("key", "value") if view == "metrics" else ("phase", "seconds")
        shown = index.sql(f"SELECT label, attempt, {name}, step, {value} FROM {view}")
        published = rows(outbox, view, "label, attempt, key, step, value")
        assert sorted(map(repr, published)) == sorted(map(repr, shown))
    index.close()


@proves(
    "piece-within-one-day", "a piece holds rows that were received on one day, so each is in the partition of its day"
)
def test_a_piece_ends_with_the_day(tmp_path: Path) -> None:
    index = Index(tmp_path)
    payloads = everything()
    index.take(payloads[0])
    days = index.sql("FROM base.receipt_days")
    assert [str(day) for day, *_ in days] == [index.sql(f"SELECT make_timestamp({START_US})::DATE::VARCHAR")[0][0]]
    next_day = "SELECT max(day) + 1, max(flush) + 1 FROM base.receipt_days"
    RunBuilder(index.database.connection).select("receipt_days (day, flush)", next_day)
    index.take(payloads[1])
    first = next_piece(index.database.connection, -1)
    assert first is not None
    second = next_piece(index.database.connection, first[0])
    assert second is not None
    assert first[1] < second[1]
    assert next_piece(index.database.connection, second[0]) is None
    index.close()


@pytest.mark.parametrize(
    ("n_left", "n_new", "in_s", "expected"),
    [
        (0, 5_000_000, 10.0, 4.0),
        (500_000, 5_000_000, 10.0, 3.0),
        (0, 2_000, 10.0, PIECE_S),
        (0, 0, 10.0, PIECE_S),
        (0, -1, 10.0, PIECE_S),
        (PIECE_ROWS, 10, 10.0, 0.0),
        (0, 1_900_000, 0.01, 1.0),
    ],
    ids=["full after 4 s", "some wait", "few rows", "no rows", "fewer than before", "full now", "a burst"],
)
def test_the_next_piece_is_cut_when_it_is_full_at_this_rate(
    n_left: int, n_new: int, in_s: float, expected: float
) -> None:
    assert full_in_s(n_left, n_new, in_s) == expected


def test_a_piece_knows_how_many_rows_wait_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index(tmp_path)
    for payload in everything()[:6]:
        index.take(payload)
    whole = next_piece(index.database.connection, -1)
    assert whole is not None
    monkeypatch.setattr(piece_cutter, "PIECE_ROWS", 1)
    first = next_piece(index.database.connection, -1)
    assert first is not None
    assert whole[3] == 0 < first[3]
    assert first[2] + first[3] == whole[2]
    index.close()


def test_a_piece_ends_where_a_table_of_the_store_ends(tmp_path: Path) -> None:
    index = Index(tmp_path)
    index.take(*everything()[:6])
    index.follow()
    flushes = [flush for (flush,) in index.sql("SELECT DISTINCT flush FROM base.intervals ORDER BY flush")]
    found = next_piece(index.database.connection, -1, [flushes[0]])
    assert found is not None
    assert found[0] == flushes[0]
    index.close()


def test_nothing_is_cut_before_the_publisher_has_asked_the_store_or_for_another_one(tmp_path: Path) -> None:
    index, outbox = Index(tmp_path), Outbox(tmp_path / "store")
    index.take(*everything()[:3])
    for published in (
        None,
        Published(LOG_ID.hex(), "file:///other", -1, {}),
        Published("00" * 16, URL, -1, {}),
        Published(LOG_ID.hex(), URL, -1, {}, is_foreign=True),
    ):
        if published is not None:
            outbox.set_published(published)
        cut_all(index, outbox)
        assert outbox.ends() == []
    index.close()


@proves(
    "uncut-piece-stops-nothing", "a disk that refuses a piece is one warning; the rows stay in the index", value="()"
)
def test_a_piece_that_cannot_be_written_is_cut_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    index, outbox = Index(tmp_path), outbox_of(tmp_path)
    index.take(*everything()[:3])

    opened = Path.open

    def open_on_full_disk(path: Path, mode: str = "r") -> IO[Any]:
        return opened(Path("/dev/full") if path.suffix == ".parquet" and mode == "wb" else path, mode)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", open_on_full_disk)
        cut_all(index, outbox)
        cut_all(index, outbox)
    assert outbox.ends() == []
    assert "cannot be cut: [Errno 28] No space left on device" in caplog.text
    with monkeypatch.context() as patched:
        patched.setattr(piece_cutter, "published_query", lambda *_: FAILS)
        cut_all(index, outbox)
    assert outbox.ends() == []
    cut_all(index, outbox)
    assert len(outbox.ends()) == 1
    assert len(rows(outbox, COMPLETE)) == 1
    index.close()
