"""The numbers in DuckDB: flushes are appended, and sorted into place in large pieces; each series has a rollup.

A flush is sorted, but small: a series of five thousand points lies in hundreds of flushes, and a query would read all
of them. Once PIECE_ROWS rows have come together, one transaction moves them to the sorted table in one piece. It takes
about half a second. The receiver continues to acknowledge, and readers keep their snapshots. After a kill at
any moment each row is in one of the two tables.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb

from chiplog_collector.index.apply.write_batch import Columns
from chiplog_collector.index.numpy_source import NAN_KEPT, Incoming
from chiplog_collector.store.published_tables import SERIES_COLUMNS
from chiplog_schemas.sql import LARGE, SERIES, levels_sql, merged_series_sql, series_sql

PIECE_ROWS = 2_000_000  # to sort at once: a tenth of the memory for queries
SERIES_ROWS = 50_000  # rows appended to the rollup of series before it is merged; a query reads them all
BY_SERIES = "run, key, producer, step, seq"
ORDERS = {"metrics": BY_SERIES, "phases": BY_SERIES, "system": "key, device, ts"}  # of sorted rows
_NUMBERS = f"{NAN_KEPT.format('value')} AS value"
_OF_STEPS = f"producer, key, lead AS step, seq, ts, {_NUMBERS}"
_COLUMNS = {
    "metrics": _OF_STEPS,
    "phases": _OF_STEPS,
    "system": f"producer, lead::INTEGER AS device, key, ts, {_NUMBERS}, seq",
}


class Facts:
    """The tables metrics, phases and system of a database, and the rollups of their series.

    The caller opens the transactions.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, incoming: Incoming) -> None:
        self._connection = connection
        self._incoming = incoming
        self.count()
        self._n_series = {series: self._count(series) for series in SERIES.values()}
        self._merge_at = {series: self._merge_threshold(series) for series in self._n_series}

    def insert(self, table: str, columns: Columns) -> None:
        """Append the rows of a flush, as `write_batch.turn` makes them, and what they add to their series."""
        with self._incoming.hold(table, columns) as source:
            rows = f"SELECT {_COLUMNS[table]} FROM {source}"
            self._connection.execute(f"INSERT INTO base.{table}_recent BY NAME {rows}")
            self._n_recent[table] += len(columns["ts"])
            if table in SERIES:
                series = SERIES[table]
                (n_added,) = self._connection.execute(f"INSERT INTO base.{series} {series_sql(rows)}").fetchall()[0]
                self._n_series[series] += n_added

    def count(self) -> None:
        """Count the recent rows."""
        # A transaction that is rolled back leaves these counts too high, which only causes an early turn.
        self._n_recent = {table: self._count(f"{table}_recent") for table in ORDERS}
        self._sort_at = dict.fromkeys(ORDERS, PIECE_ROWS)

    def drop(self, until: int) -> None:
        """Delete the facts of flushes up to this one. Levels of their series are made of what stays."""
        given = {"until": until}
        lost = "SELECT DISTINCT producer, key FROM base.metrics WHERE flush <= $until"
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE lost AS {lost}", given)
        for table in LARGE:
            for source in (table, f"{table}_recent") if table in ORDERS else (table,):
                self._connection.execute(f"DELETE FROM base.{source} WHERE flush <= $until", given)
        self._connection.execute("DELETE FROM base.metric_levels WHERE (producer, key) IN (FROM lost)")
        levels = levels_sql("SELECT f.* FROM base.metrics f SEMI JOIN lost USING (producer, key)")
        self._connection.execute(f"INSERT INTO base.metric_levels {levels} ORDER BY width, key, producer, step")
        self._connection.execute("DROP TABLE lost")

    # -- sorted pieces --

    def unsorted(self) -> list[str]:
        """Return the tables with so many recent rows that they are worth sorting."""
        return [table for table, n in self._n_recent.items() if n >= self._sort_at[table]]

    def sort(self, table: str) -> None:
        """Move the oldest recent rows to the sorted table, as one piece."""
        recent = f"base.{table}_recent"
        piece = f"rowid < (SELECT min(rowid) FROM {recent}) + {PIECE_ROWS}"
        names = "LEFT JOIN (SELECT producer, run FROM base.identified) i USING (producer)" if table in SERIES else ""
        rows = f"SELECT f.* FROM (FROM {recent} WHERE {piece}) f {names} ORDER BY {ORDERS[table]}"
        self._connection.execute(f"INSERT INTO base.{table} {rows}")
        if table == "metrics":
            levels = levels_sql(f"FROM {recent} WHERE {piece}")
            self._connection.execute(f"INSERT INTO base.metric_levels {levels} ORDER BY width, key, producer, step")
        self._connection.execute(f"DELETE FROM {recent} WHERE {piece}")

    def sorted(self, table: str) -> None:
        """Count the recent rows again, after the commit of a sorted piece."""
        self._n_recent[table] = self._count(f"{table}_recent")
        self._sort_at[table] = PIECE_ROWS

    def postpone(self, table: str) -> None:
        """Note that a piece could not be sorted: there is neither the disk nor the memory for it now."""
        self._sort_at[table] = self._n_recent[table] + PIECE_ROWS // 4

    # -- rollups --

    def unmerged(self) -> list[str]:
        """Return the rollups with so many rows that they are worth merging."""
        return [series for series, n in self._n_series.items() if n >= self._merge_at[series]]

    def merge(self, series: str) -> None:
        """Make one row of the rows of each series."""
        several = f"SELECT producer FROM base.{series} GROUP BY producer HAVING count(*) > count(DISTINCT key)"
        merged = merged_series_sql(f"FROM base.{series} WHERE producer IN ({several})")
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE merged AS {merged}")
        self._connection.execute(f"DELETE FROM base.{series} WHERE producer IN (SELECT producer FROM merged)")
        self._connection.execute(f"INSERT INTO base.{series} FROM merged")
        self._connection.execute("DROP TABLE merged")

    def restore_series(self, found: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        """Make the rollups of the facts that are here, and of rows about those that are not."""
        execute = self._connection.execute
        for table, series in SERIES.items():
            facts = series_sql(f"FROM base.{table} UNION ALL FROM base.{table}_recent")
            execute(f"DELETE FROM base.{series}")
            execute(f"INSERT INTO base.{series} {facts} ORDER BY key, producer")
            rows = found[series]
            if not rows:
                continue
            types = SERIES_COLUMNS | {"producer": "VARCHAR", "key": "VARCHAR"}
            columns = ", ".join(f"unnest(?::{kind}[]) AS {name}" for name, kind in types.items())
            given = [list(column) for column in zip(*rows, strict=True)]
            execute(f"CREATE OR REPLACE TEMP TABLE found AS SELECT {columns}", given)
            execute("""INSERT INTO base.names (id, name, flush) SELECT row_number() OVER (ORDER BY key) - 1 +
                (SELECT coalesce(max(id) + 1, 0) FROM base.names), key, (SELECT max(flush) FROM base.dropped)
                FROM (SELECT DISTINCT key FROM found ANTI JOIN base.names n ON n.name = key)""")
            execute(f"""INSERT INTO base.{series} SELECT f.* REPLACE (p.producer AS producer, n.id AS key) FROM found f
                JOIN base.producers p ON lower(hex(p.uuid)) = f.producer JOIN base.names n ON n.name = f.key""")
            execute("DROP TABLE found")

    def merged(self, series: str) -> None:
        """Count the rows again, after the commit of a merge."""
        self._n_series[series] = self._count(series)
        self._merge_at[series] = self._merge_threshold(series)

    def postpone_merge(self, series: str) -> None:
        """Note that a rollup could not be merged: there is neither the disk nor the memory for it now."""
        self._merge_at[series] = self._n_series[series] + SERIES_ROWS

    def _merge_threshold(self, series: str) -> int:
        """Return how many rows a rollup may have: a tenth more than one for each series, or SERIES_ROWS more."""
        query = f"SELECT count(*) FROM (SELECT DISTINCT producer, key FROM base.{series})"
        n_series = int(self._connection.execute(query).fetchall()[0][0])
        return n_series + max(SERIES_ROWS, n_series // 10)

    def _count(self, table: str) -> int:
        return int(self._connection.execute(f"SELECT count(*) FROM base.{table}").fetchall()[0][0])
