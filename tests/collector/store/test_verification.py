"""`chiplog store verify`: what it finds in a store that something else has damaged."""

from pathlib import Path

import pytest

from chiplog_collector.store.delta_store import Addition, DeltaStore
from chiplog_collector.store.published_tables import PUBLISHED
from chiplog_collector.store.verification import verify
from tests.support.store_files import DAY, LOG, parquet

METRICS = next(table for table in PUBLISHED if table.name == "metrics")
ROWS = "SELECT 'p' AS producer, i AS seq, 'loss' AS key, i / 2 AS value FROM range(10) t(i)"
RANGES = "SELECT 'p' AS producer, 0::BIGINT AS first_seq, 9::BIGINT AS last_seq"


@pytest.fixture
def store(tmp_path: Path) -> DeltaStore:
    store = DeltaStore(f"file://{tmp_path}/lake", LOG)
    store.publish(Addition("intervals", parquet(tmp_path / "ranges.parquet", RANGES), DAY, -1, 1))
    store.publish(Addition("metrics", parquet(tmp_path / "rows.parquet", ROWS), DAY, -1, 1))
    return store


def faults(store: DeltaStore, directory: Path) -> list[str]:
    [found] = verify(store, [METRICS], directory / "copies")
    return found.faults


def test_a_store_in_order_has_no_fault(tmp_path: Path, store: DeltaStore) -> None:
    [found] = verify(store, [METRICS], tmp_path / "copies")
    assert (found.n_files, found.n_rows, found.faults) == (1, 10, [])
    assert not (tmp_path / "copies").exists()


def test_rows_that_are_there_twice_are_counted(tmp_path: Path, store: DeltaStore) -> None:
    store.publish(Addition("metrics", parquet(tmp_path / "rows.parquet", f"{ROWS} WHERE i < 4"), DAY, 1, 2))
    assert faults(store, tmp_path) == ["metrics has 4 rows twice, by producer, seq, key"]


def test_ranges_that_were_merged_and_published_again_count_once(tmp_path: Path, store: DeltaStore) -> None:
    again = "SELECT 'p' AS producer, i::BIGINT AS first_seq, i::BIGINT AS last_seq FROM range(3, 7, 2) t(i)"
    store.publish(Addition("intervals", parquet(tmp_path / "ranges.parquet", again), DAY, 1, 2))
    assert faults(store, tmp_path) == []


def test_events_of_no_published_range_are_counted(tmp_path: Path, store: DeltaStore) -> None:
    more = ROWS.replace("i AS seq", "i + 10 AS seq")
    store.publish(Addition("metrics", parquet(tmp_path / "rows.parquet", more), DAY, 1, 2))
    assert faults(store, tmp_path) == ["metrics has 10 events that are in no published range of seq"]


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_a_file_that_is_missing_or_damaged_is_named_and_the_rest_is_checked(
    tmp_path: Path, store: DeltaStore, damage: str
) -> None:
    [path] = (tmp_path / "lake" / "metrics" / f"day={DAY}").glob("*.parquet")
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-30] if damage == "cut" else b"PAR1" + bytes(200) + content[204:])
    [fault] = faults(store, tmp_path)
    assert f"metrics/day={DAY}/{path.name}" in fault
    assert "\n" not in fault


def test_events_without_any_published_range_are_one_line(tmp_path: Path) -> None:
    store = DeltaStore(f"file://{tmp_path}/lake", LOG)
    store.publish(Addition("metrics", parquet(tmp_path / "rows.parquet", ROWS), DAY, -1, 1))
    assert faults(store, tmp_path) == ["metrics has events, and no range of seq is published"]
