"""The views over a store have the rows of the collector that published it."""

from pathlib import Path

import pytest

from chiplog_collector.store.published_tables import COMPLETE
from tests.support.collector_log import LOG_ID, VIEWS, Rank, whole
from tests.support.index import Index
from tests.support.marks import everyday
from tests.support.published_index import publish_in_pieces
from tests.support.safeguard import proves
from tests.support.sample_log import everything
from tests.support.store_reader import Reader


@pytest.mark.parametrize("view", VIEWS)
def test_a_reader_without_a_collector_has_the_rows_of_the_collector(published: tuple[Index, Reader], view: str) -> None:
    index, reader = published
    expected = sorted(map(repr, index.sql(f"FROM {view}")))
    assert sorted(map(repr, reader.sql(f"FROM {view}"))) == expected


@proves("nan-in-files-is-found", "NaN in a file of a store is found as in the index", value='"f.value"')
def test_nan_in_files_is_found_and_larger_than_a_number(tmp_path: Path) -> None:
    rank = Rank(0)
    for step in range(10):
        rank.log(step, loss=float(step) if step % 2 else float("nan"))
    index = Index(tmp_path)
    store = publish_in_pieces(index, tmp_path / "lake", [whole(rank)], 1)
    reader = Reader(store.url, tmp_path)
    for condition in ("isnan(value)", "value = 'nan'::DOUBLE", "value > 1e9", "value <> 'nan'::DOUBLE"):
        query = f"SELECT count(*) FROM metrics WHERE {condition}"
        assert reader.sql(query) == index.sql(query) == [(5,)], condition
    query = "SELECT count(nullif(value, 'nan'::DOUBLE)), max(value) = 'nan'::DOUBLE FROM metrics"
    assert reader.sql(query) == index.sql(query) == [(5, True)]
    reader.close()
    index.close()


@pytest.mark.parametrize("share", everyday(1, [0.5, 0.0, 1.0]))
def test_a_collector_has_its_rows_whether_they_are_hot_or_cold(tmp_path: Path, share: float) -> None:
    """share: of the pieces that are cold. tests/fault/test_store_histories.py has all three, with random histories."""
    index = Index(tmp_path)
    store = publish_in_pieces(index, tmp_path / "lake", everything()[:-1], 6)
    expected = {view: sorted(map(repr, index.sql(f"FROM {view}"))) for view in VIEWS}
    reader = Reader(store.url, tmp_path, index.database.connection, LOG_ID.hex())
    until = sorted(file.ranges["number"][1] for file in store.snapshot(COMPLETE))
    if share:
        index.database.drop_facts(until[round(share * len(until)) - 1])
    assert {view: sorted(map(repr, reader.sql(f"FROM {view}"))) for view in VIEWS} == expected
    reader.close()
    index.close()


@pytest.mark.parametrize("view", ["runs", "labels", "summary", "rank_progress", "completeness", "metrics"])
def test_a_reader_without_a_collector_reads_no_row_of_its_empty_index(
    published: tuple[Index, Reader], view: str
) -> None:
    _, reader = published
    [(_, plan)] = reader.sql(f"EXPLAIN FROM {view}")
    assert "store.held" in plan
    assert "own.base" not in plan


def test_the_progress_of_ranks_is_read_without_the_names_of_metrics(published: tuple[Index, Reader]) -> None:
    _, reader = published
    [(_, plan)] = reader.sql("EXPLAIN FROM rank_progress")
    assert "held.metric_series" in plan
    assert "held.names" not in plan
