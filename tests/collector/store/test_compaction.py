"""Compaction: the same rows in fewer files, also when other processes rewrite or add at the same time."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import duckdb
import pytest
from deltalake import DeltaTable

from chiplog_collector.store import compaction
from chiplog_collector.store.compaction import compact, delete_rows, read_deletions
from chiplog_collector.store.delta_store import Addition, DeltaStore, StoreError
from tests.support.safeguard import proves
from tests.support.store_files import DAY, LOG, parquet

ORDER = ("run_id", "key", "producer", "step")
OTHER = "ef" * 16  # another log
ROWS = """SELECT '{log}' AS log, {piece}::BIGINT AS number, CASE WHEN i % 5 > 0 THEN 'run' || i % 5 END AS run_id,
    'key ''' || i % 3 AS key, 'p' || i % 2 AS producer,
    {piece} * 100 + i AS step, step AS seq, CASE WHEN i % 7 = 0 THEN 'nan' ELSE i / 3 END::DOUBLE AS value, now() AS ts
    FROM range(60) t(i)"""


class Lake:
    """A table of a store on this disk, and what was added to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.n_pieces = 0

    def store(self, log: str = LOG) -> DeltaStore:
        return DeltaStore(f"file://{self.directory}/lake", log)

    def add(self, store: DeltaStore | None = None, day: str = DAY, log: str = LOG) -> None:
        query = ROWS.format(piece=self.n_pieces, log=log)
        file = parquet(self.directory / "piece.parquet", query)
        addition = Addition("metrics", file, day, self.n_pieces - 1, self.n_pieces)
        assert (store or self.store(log)).publish(addition)
        self.n_pieces += 1

    def delete(self, *producers: str, log: str = LOG) -> None:
        """Publish that producers were deleted."""
        query = f"""SELECT '{log}' AS log, {self.n_pieces}::BIGINT AS number, unnest({list(producers)}) AS producer,
            NULL::VARCHAR AS run_id, NULL::TIMESTAMPTZ AS samples_until, false AS is_request"""
        file = parquet(self.directory / "deletions.parquet", query)
        assert self.store(log).publish(Addition("deletions", file, DAY, self.n_pieces - 1, self.n_pieces))
        self.n_pieces += 1

    def remove_deleted(self, store: DeltaStore | None = None) -> list[int]:
        """Carry out all deletions; return how many files each commit replaced."""
        store, scratch = store or self.store(), self.directory / "scratch"
        deletions = read_deletions(store, scratch)
        return list(iter(lambda: delete_rows(store, "metrics", ORDER, deletions, scratch), None))

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
@pytest.mark.parametrize(
    "turns",
    [
        *itertools.permutations(["compact", "compact", "add"]),
        *itertools.permutations(["compact", "delete", "add"]),
        *itertools.permutations(["delete", "delete", "add"]),
    ],
)
def test_turns_on_handles_that_have_looked_before_double_and_lose_nothing(lake: Lake, turns: tuple[str, ...]) -> None:
    for _ in range(4):
        lake.add()
    lake.delete("p0")
    stores = [lake.store() for _ in turns]
    begun: list[Callable[[], object]] = []
    for store, turn in zip(stores, turns, strict=True):
        found = store.snapshot("metrics")  # each handle has looked; it does not see what follows
        if turn == "add":
            begun.append(lambda: lake.add())
            continue
        newest = store.snapshot
        store.snapshot = lambda table, found=found, newest=newest: found if table == "metrics" else newest(table)  # type: ignore[method-assign]
        work = lake.compact if turn == "compact" else lake.remove_deleted
        begun.append(lambda work=work, store=store: work(store))
    refused = 0
    for turn in begun:
        try:
            turn()
        except StoreError:
            refused += 1
    assert refused == 1
    lake.remove_deleted()
    rows = lake.rows("step, run_id, key, producer")
    assert len(rows) == len(set(rows)) == 30 * 4 + 60, "p0 is gone, except from the piece after the deletion"
    assert sum("'p0'" in row for row in rows) == 30


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


# -- deletions --


def test_rows_of_a_deleted_producer_go_and_all_others_stay(lake: Lake) -> None:
    for _ in range(3):
        lake.add()
    lake.add(day="2026-11-29")
    lake.add(log=OTHER)
    lake.delete("p0")
    before = lake.rows("log, producer, step, value")
    assert lake.remove_deleted() == [3, 1]
    assert lake.rows("log, producer, step, value") == [row for row in before if not row.startswith(f"('{LOG}', 'p0'")]
    assert lake.remove_deleted() == [], "what was carried out is not looked for again"
    lake.delete("p1", log=OTHER)
    assert lake.remove_deleted() == [1]


@proves("restored-rows-stay", "rows that came after a producer was restored stay", part=" AND d.number > {row}.number")
def test_rows_that_came_after_a_deletion_stay(lake: Lake) -> None:
    lake.add()
    lake.delete("p0", "p1")
    lake.add()
    for _ in range(2):
        lake.compact(pieces_min=0)  # both in one file
        lake.remove_deleted()
        assert len(lake.rows()) == 60


def test_files_that_only_may_have_had_deleted_rows_are_read_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        lake.add()
    lake.delete("p00")  # between p0 and p1
    before, fetched = lake.files(), []
    fetch = DeltaStore.fetch
    monkeypatch.setattr(DeltaStore, "fetch", lambda *given: fetched.append(given[1]) or fetch(*given))
    assert lake.remove_deleted() == [0]
    assert lake.remove_deleted() == []
    assert (lake.files(), fetched.count("metrics")) == (before, 2)


def test_a_deletion_is_done_in_commits_of_bounded_size(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "REWRITTEN_BYTES", 1)
    for _ in range(3):
        lake.add()
    lake.delete("p1")
    assert lake.remove_deleted()[:3] == [1, 1, 1]
    assert len(lake.rows()) == 90


def test_a_reader_of_changes_sees_a_deletion(lake: Lake) -> None:
    lake.add()
    lake.delete("p0")
    lake.remove_deleted()
    commits = sorted((lake.directory / "lake" / "metrics" / "_delta_log").glob("*.json"))
    assert commits[-1].read_text().count('"dataChange":true') == 2


def test_samples_older_than_a_cutoff_go_file_by_file(lake: Lake) -> None:
    store, scratch = lake.store(), lake.directory / "scratch"
    for number, hour in enumerate((1, 3)):
        rows = f"""SELECT '{LOG}' AS log, {number}::BIGINT AS number, 'p' AS producer, 'key' AS key, '' AS device,
            '2026-11-28 0{hour}:00Z'::TIMESTAMPTZ + INTERVAL (i) MINUTE AS ts, i AS seq FROM range(9) t(i)"""
        store.publish(Addition("system", parquet(lake.directory / "piece.parquet", rows), DAY, number - 1, number))
    trim = f"""SELECT '{LOG}' AS log, 2::BIGINT AS number, NULL::VARCHAR AS producer, NULL::VARCHAR AS run_id,
        '2026-11-28 03:04Z'::TIMESTAMPTZ AS samples_until, false AS is_request"""
    store.publish(Addition("deletions", parquet(lake.directory / "piece.parquet", trim), DAY, 1, 2))
    deletions = read_deletions(store, scratch)
    assert delete_rows(store, "system", ("producer", "key", "ts"), deletions, scratch) == 1
    assert delete_rows(store, "system", ("producer", "key", "ts"), deletions, scratch) is None
    assert [file.n_rows for file in store.snapshot("system")] == [9], "a file with newer samples waits"


# -- files --


@proves("logs-compacted-apart", "no file has rows of two logs", part="file.log", new="''")
def test_a_file_has_rows_of_one_log(lake: Lake) -> None:
    for log in (LOG, OTHER, LOG, OTHER):
        lake.add(log=log)
    before = lake.rows()
    while lake.compact(pieces_min=0):
        pass
    assert lake.rows() == before
    assert sorted(file.ranges["log"] for file in lake.store().snapshot("metrics")) == [(LOG, LOG), (OTHER, OTHER)]


def test_small_files_are_merged_again_and_full_ones_are_not(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SLICE_ROWS", 400)
    n_files = []
    for _ in range(20):
        for _ in range(3):
            lake.add()
        lake.compact()
        n_files.append(len(lake.files()))
    rows = lake.rows("step, run_id, key, producer")
    assert len(rows) == len(set(rows)) == 60 * 60
    assert n_files[0] == 1
    assert n_files[-1] <= 2 * 3600 / 400
    while lake.compact(pieces_min=0):
        pass


@proves("large-file-waits-for-rows", "a few rows do not have a large file of the newest day rewritten")
def test_a_large_file_of_the_newest_day_waits_for_a_quarter_of_its_rows(lake: Lake) -> None:
    for _ in range(20):
        lake.add()
    lake.compact()
    [large] = lake.files()
    rewritten = []
    for _ in range(20):
        lake.add()
        done = lake.compact(pieces_min=0)
        rewritten.append(0 if done is None else done.n_rows)
    assert rewritten[0] == 0, "one piece is not worth a commit"
    assert sum(rewritten[:4]) < 1200
    assert rewritten[4] == 1200 + 5 * 60
    assert sum(rewritten) < 10_000, "not 36,600, as of 20 merges with the large file"
    assert large not in lake.files()
    lake.add()
    lake.add(day="2026-11-29")
    while lake.compact(pieces_min=0):
        pass
    assert [path.count("compacted-") for path in sorted(lake.files())] == [1, 0], "a day that is over is merged"
    assert len(lake.rows()) == 60 * 42


def test_a_call_of_optimize_is_nowhere() -> None:
    """Of deltalake 1.6.6, two at once both commit, and every row is there twice."""
    package = Path(compaction.__file__).parents[1]
    calls = [path.name for path in package.rglob("*.py") if re.search(r"optimize\.|\.optimize\b", path.read_text())]
    assert calls == []


@proves("stale-list-refused", "files that are gone are not replaced by a handle that has looked since")
def test_files_that_are_gone_are_not_replaced_again(lake: Lake) -> None:
    for _ in range(3):
        lake.add()
    before, store = lake.rows(), lake.store()
    listed = store.snapshot("metrics")
    lake.compact()
    store.snapshot("metrics")
    with pytest.raises(StoreError, match="rewritten since"):
        store.replace("metrics", listed, [parquet(lake.directory / "piece.parquet", ROWS.format(piece=0, log=LOG))])
    assert lake.rows() == before
