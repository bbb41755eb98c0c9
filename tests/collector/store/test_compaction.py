"""Compaction: the same rows in fewer files, also when other processes rewrite or add at the same time."""

import itertools
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import duckdb
import pytest
from deltalake import DeltaTable

from chiplog_collector.store import compaction
from chiplog_collector.store.compaction import compact
from chiplog_collector.store.delta_store import Addition, DeltaStore, StoreError
from tests.support.safeguard import proves
from tests.support.store_files import DAY, LOG, parquet

ORDER = ("run_id", "key", "producer", "step")
ROWS = """SELECT CASE WHEN i % 5 > 0 THEN 'run' || i % 5 END AS run_id,
    'key ''' || i % 3 AS key, 'p' || i % 2 AS producer,
    {piece} * 100 + i AS step, CASE WHEN i % 7 = 0 THEN 'nan' ELSE i / 3 END::DOUBLE AS value, now() AS ts
    FROM range(60) t(i)"""


class Lake:
    """A table of a store on this disk, and what was added to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.n_pieces = 0

    def store(self) -> DeltaStore:
        return DeltaStore(f"file://{self.directory}/lake", LOG)

    def add(self, store: DeltaStore | None = None, day: str = DAY) -> None:
        file = parquet(self.directory / "piece.parquet", ROWS.format(piece=self.n_pieces))
        addition = Addition("metrics", file, day, self.n_pieces - 1, self.n_pieces)
        assert (store or self.store()).publish(addition)
        self.n_pieces += 1

    def compact(self, store: DeltaStore | None = None, pieces_min: int = 2) -> compaction.Compacted | None:
        return compact(store or self.store(), "metrics", ORDER, self.directory / "scratch", pieces_min=pieces_min)

    def files(self) -> list[str]:
        return list(map(unquote, DeltaTable(f"{self.directory}/lake/metrics").file_uris()))

    def rows(self, columns: str = "run_id, key, producer, step, value") -> list[str]:
        with duckdb.connect() as connection:
            query = f"SELECT {columns} FROM read_parquet(?)"
            return sorted(map(repr, connection.execute(query, [self.files()]).fetchall()))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_pieces_of_a_day_become_few_sorted_files_with_the_same_rows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SLICE_ROWS", 150)
    for _ in range(6):
        lake.add()
    lake.add(day="2026-11-29")
    before = lake.rows()
    assert lake.compact(pieces_min=8) is None
    done = lake.compact()
    assert done is not None
    assert (done.day, done.n_pieces, done.n_rows) == (DAY, 6, 360)
    assert lake.rows() == before
    assert len(lake.files()) == done.n_files + 1
    assert 3 <= done.n_files <= 5
    with duckdb.connect() as connection:
        for file in [path for path in lake.files() if "compacted-" in path]:
            query = "SELECT run_id, key, producer, step FROM read_parquet(?)"
            found = connection.execute(query, [file]).fetchall()
            assert found == connection.execute(f"{query} ORDER BY ALL", [file]).fetchall()
    assert lake.compact() is None, "what is compacted is not compacted again"
    assert not (lake.directory / "scratch").exists()


def test_a_reader_of_changes_sees_no_row_again(lake: Lake) -> None:
    for _ in range(3):
        lake.add()
    lake.compact()
    commits = sorted((lake.directory / "lake" / "metrics" / "_delta_log").glob("*.json"))
    assert '"dataChange":true' not in commits[-1].read_text()
    assert '"dataChange":false' in commits[-1].read_text()


@proves("one-maintenance-at-a-time", "of two processes that compact a table at once, one is refused")
@pytest.mark.parametrize("turns", list(itertools.permutations(["compact", "compact", "add"])))
def test_turns_on_handles_that_have_looked_before_double_and_lose_nothing(lake: Lake, turns: tuple[str, ...]) -> None:
    for _ in range(4):
        lake.add()
    stores = [lake.store() for _ in turns]
    snapshots: list[Callable[[], object]] = []
    for store, turn in zip(stores, turns, strict=True):
        store.snapshot("metrics")  # each handle has looked; whatever follows is behind its back
        monkey = store.snapshot("metrics")
        if turn == "compact":
            store.snapshot = lambda table, found=monkey: found  # type: ignore[method-assign]
            snapshots.append(lambda store=store: lake.compact(store))
        else:
            snapshots.append(lambda: lake.add())
    refused = 0
    for turn in snapshots:
        try:
            turn()
        except StoreError:
            refused += 1
    assert refused == 1
    rows = lake.rows("step, run_id, key, producer")
    assert len(rows) == len(set(rows)) == 60 * lake.n_pieces


@proves("compaction-keeps-each-row", "files that lack a row of the pieces are not committed")
def test_a_merge_that_lacks_a_row_changes_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        lake.add()
    before, slices = lake.rows(), compaction.slices
    monkeypatch.setattr(compaction, "SLICE_ROWS", 50)
    monkeypatch.setattr(compaction, "slices", lambda *given: slices(*given)[1:])
    with pytest.raises(StoreError, match="nothing is changed"):
        lake.compact()
    assert lake.rows() == before


def test_vacuum_keeps_what_a_reader_of_this_week_may_read(lake: Lake) -> None:
    for _ in range(3):
        lake.add()
    lake.compact()
    assert lake.store().vacuum("metrics") == 0
    assert lake.store().vacuum("never") == 0
    assert len(list((lake.directory / "lake" / "metrics" / f"day={DAY}").iterdir())) == 4
