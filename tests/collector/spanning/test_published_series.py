"""The rollups of the series of a log, read from its store."""

from pathlib import Path

from chiplog_collector.spanning.published_series import read_series
from tests.support.collector_log import LOG_ID
from tests.support.published_index import everything_published


def test_the_series_of_all_pieces_are_those_of_the_index(tmp_path: Path) -> None:
    index, store = everything_published(tmp_path)
    until = store.positions(["collectors"])["collectors"]
    found = read_series(store.url, LOG_ID.hex(), until, tmp_path / "copies")
    assert list((tmp_path / "copies").iterdir()) == []
    for table, rows in found.items():
        query = f"""SELECT lower(hex(uuid)), name, sum(n), sum(n_numbers), min(min), max(max), min(first_seq),
            max(last_seq), min(first_ts), max(last_ts) FROM base.{table} JOIN base.producers USING (producer)
            JOIN base.names ON id = key GROUP BY ALL"""
        picked = [(*row[:4], *row[5:8], row[9], row[-2], row[-1]) for row in rows]
        assert sorted(map(repr, picked)) == sorted(map(repr, index.sql(query)))
    assert sum(row[2] for row in found["metric_series"]) == index.sql("SELECT count(*) FROM base.metrics_recent")[0][0]
    earlier = read_series(store.url, LOG_ID.hex(), until - 1, tmp_path / "copies")
    n_points = [sum(row[2] for row in rows["metric_series"]) for rows in (earlier, found)]
    assert 0 < n_points[0] < n_points[1]
    assert read_series(store.url, "00" * 16, until, tmp_path / "copies") == {"metric_series": [], "phase_series": []}
    index.close()
