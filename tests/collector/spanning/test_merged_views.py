"""The views over a store have the rows of the collector that published it."""

from pathlib import Path

import pytest

from chiplog_collector.store.published_tables import COMPLETE
from chiplog_schemas.sql import LARGE, levels_sql
from tests.support.collector_log import LOG_ID, VIEWS
from tests.support.index import Index
from tests.support.published_index import publish_in_pieces
from tests.support.sample_log import everything
from tests.support.store_reader import Reader


@pytest.mark.parametrize("view", VIEWS)
def test_a_reader_without_a_collector_has_the_rows_of_the_collector(published: tuple[Index, Reader], view: str) -> None:
    index, reader = published
    expected = sorted(map(repr, index.sql(f"FROM {view}")))
    assert sorted(map(repr, reader.sql(f"FROM {view}"))) == expected


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0], ids=["all hot", "half cold", "all cold"])
def test_a_collector_has_its_rows_whether_they_are_hot_or_cold(tmp_path: Path, share: float) -> None:
    index = Index(tmp_path)
    store = publish_in_pieces(index, tmp_path / "lake", everything()[:-1], 6)
    expected = {view: sorted(map(repr, index.sql(f"FROM {view}"))) for view in VIEWS}
    reader = Reader(store.url, tmp_path, index.database.connection, LOG_ID.hex())
    until = sorted(file.ranges["number"][1] for file in store.snapshot(COMPLETE))
    if share:
        drop_facts(index, until[round(share * len(until)) - 1])
    assert {view: sorted(map(repr, reader.sql(f"FROM {view}"))) for view in VIEWS} == expected
    reader.close()
    index.close()


def drop_facts(index: Index, until: int) -> None:
    """Remove facts from the database as it does once a store has had them for some days."""
    execute = index.database.connection.execute
    for table in LARGE:
        for name in (table, f"{table}_recent") if table in ("metrics", "phases", "system") else (table,):
            execute(f"DELETE FROM base.{name} WHERE flush <= ?", [until])
    execute(f"CREATE OR REPLACE TABLE base.metric_levels AS {levels_sql('FROM base.metrics')}")
    execute("CREATE OR REPLACE TABLE base.dropped AS SELECT ?::BIGINT AS flush", [until])
