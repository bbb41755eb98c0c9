"""What a reader keeps of a store: its small tables, and which files of the large ones there are.

They are in a second DuckDB database, attached as `store` to the one that answers queries. `store.held` has the rows of
other logs as the tables of the schema `base` have them: with integers for producers, and with the names of metrics.
Their integers are beyond OTHERS_FROM, unless the own collector has given one to the same producer.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path

import duckdb

from chiplog_collector.spanning.spread_tables import TABLES as SPREAD_TABLES
from chiplog_collector.spanning.spread_tables import VERSIONS, SpreadTables, newest_rows
from chiplog_collector.store.delta_store import StoredFile
from chiplog_collector.store.published_tables import COMPLETE, DELETIONS, ORDERS, PUBLISHED, UNOWNED
from chiplog_collector.transaction import transaction
from chiplog_schemas.sql import LARGE, MIGRATION, SERIES, merged_series_sql

CATALOG = "store"
DIMENSIONS = ("producers", "runs", "losses")  # a later row replaces an earlier one of the same log
OTHERS_FROM = 1 << 30  # integers of producers, runs and names of other logs; an index gives none that are as large
PLACED = {table.name for table in PUBLISHED if table.is_placed}
FORMAT = 5  # of these tables, and of the columns of files; tables of another number are made again
_SERIES_ROWS_MAX = 200_000  # above this and twice their last number, the rows of a series become one
_UNREAD = {"changes"}  # tables of which a reader needs nothing
_OWN_TOO = {
    *DIMENSIONS,
    "artifact_versions",
    DELETIONS,
    COMPLETE,
}  # tables of which the rows of the own log are loaded, too
_log = logging.getLogger("chiplog.index")


def quoted(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def small_tables() -> list[str]:
    """Return the tables that a reader loads whole."""
    return [table for table in ORDERS if table not in LARGE and table not in _UNREAD]


class HeldRows:
    """The tables of `store.held`.

    Args:
        connection: A cursor of the DuckDB that answers queries, with `store` attached.
        main: The name of its own database, which has the schema `base`.
        log: The ID of its own log, whose rows are in `base`; 32 hex digits.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, main: str, log: str, url: str) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._main = f'"{main}"'
        self._log_id = log
        self._spread = SpreadTables(connection, self._main, log)
        self._passed: dict[str, int] | None = None
        self._made_for = f"{FORMAT} {MIGRATION} {log} {url}"
        self._prepare()

    def _prepare(self) -> None:
        self._execute(f"CREATE SCHEMA IF NOT EXISTS {CATALOG}.held")
        self._execute(f"CREATE TABLE IF NOT EXISTS {CATALOG}.held.made_for (made_for VARCHAR)")
        if self._execute(f"FROM {CATALOG}.held.made_for").fetchall() != [(self._made_for,)]:
            self.clear()

    def clear(self) -> None:
        """Begin again with empty tables."""
        with transaction(self._connection):
            self._execute(f"DROP SCHEMA {CATALOG}.held CASCADE")
            self._execute(f"CREATE SCHEMA {CATALOG}.held")
            for statement in _tables(self._main, small_tables()):
                self._execute(statement)
            self._execute(f"INSERT INTO {CATALOG}.held.made_for VALUES (?)", [self._made_for])

    def is_renumbered(self) -> bool:
        """Return True if the index has given an integer to a producer that has another one here: its agent moved."""
        query = f"""SELECT exists(FROM {CATALOG}.held.producer_ids h
            JOIN {self._main}.base.producers b ON b.uuid = unhex(h.uuid) WHERE b.producer <> h.producer)"""
        return self._execute(query).fetchall() == [(True,)]

    def note_silent(self, silent: Sequence[tuple[str, str, datetime]]) -> None:
        """Note which collectors are silent: the ID of the log, the host, and since when in UTC."""
        with transaction(self._connection):
            self._execute(f"DELETE FROM {CATALOG}.held.silent")
            for row in silent:
                self._execute(f"INSERT INTO {CATALOG}.held.silent VALUES (?, ?, ?)", list(row))
            self._derive()
            self._count_refresh()

    def note_heard(self, heard: Sequence[tuple[str, str, datetime]]) -> None:
        """Note up to when the rows of each collector are here: the ID of the log, the host, and a time in UTC."""
        hosts = Counter(host for _, host, _ in heard)
        with transaction(self._connection):
            self._execute(f"DELETE FROM {CATALOG}.held.heard")
            for log, host, seen_at in heard:
                collector = host if hosts[host] == 1 else f"{host}/{log[:6]}"
                self._execute(f"INSERT INTO {CATALOG}.held.heard VALUES (?, ?, ?)", [log, collector, seen_at])
            self._count_refresh()

    def _derive(self) -> None:
        """Compute again what depends on the newest rows of the dimensions."""
        for table, query in _derived(self._main, self._log_id):
            # A table that is replaced is not checkpointed while a query of the old one runs, and the log grows.
            self._execute(f"DELETE FROM {CATALOG}.held.{table}")  # safeguard: cache-checkpointed-beside-queries
            self._execute(f"INSERT INTO {CATALOG}.held.{table} {query}")

    def _count_refresh(self) -> None:
        # No UPDATE: see `Database._write`.
        [(n,)] = self._execute(f"DELETE FROM {CATALOG}.held.refreshes RETURNING n").fetchall()
        self._execute(f"INSERT INTO {CATALOG}.held.refreshes VALUES (?)", [n + 1])

    def has_open_versions(self) -> bool:
        """Return True if versions of artifacts that are published have no number yet."""
        query = f"SELECT exists(FROM {CATALOG}.held.spread_versions WHERE version IS NULL)"
        return self._execute(query).fetchall() == [(True,)]

    def note_live(self, logs: set[str], finish: Callable[[], None] = lambda: None) -> None:
        """Note which logs live: a version of an artifact waits for each. finish: called within the transaction."""
        self._passed = {log: (self._passed or {}).get(log, 0) for log in logs}
        with transaction(self._connection):
            self._spread.write_versions(self._passed)
            self._count_refresh()
            finish()

    def note_passed(self, passed: dict[str, int]) -> None:
        """Number versions of artifacts again. passed: by log that lives, see `numbered`."""
        self._passed = passed
        with transaction(self._connection):
            self._spread.write_versions(passed)
            self._count_refresh()  # pages ask again only if it has changed

    def has_others(self) -> bool:
        """Return True if another log has published a piece, or lives.

        A file of the table that ends pieces may be damaged.
        """
        tables = ("awaited", COMPLETE, "producers", "runs")
        query = " OR ".join(f"exists(FROM {CATALOG}.held.{table} WHERE log <> $log)" for table in tables)
        return self._execute(f"SELECT {query}", {"log": self._log_id}).fetchall() == [(True,)]

    def is_spread(self) -> bool:
        """Return True if some runs or producers are in several logs."""
        tables = [table.partition(" ")[0] for table in SPREAD_TABLES]
        query = " OR ".join(f"exists(FROM {CATALOG}.held.{table})" for table in tables)
        return self._execute(f"SELECT {query}").fetchall() == [(True,)]

    def has_deleted(self) -> bool:
        """Return True if files may have rows that were deleted."""
        query = f"SELECT exists(FROM {CATALOG}.held.deleted_rows) OR exists(FROM {CATALOG}.held.deleted_samples)"
        return self._execute(query).fetchall() == [(True,)]

    def doubled(self) -> list[tuple[int, str, int, int]]:
        """Return the closed ranges of seq that a smaller log has, too: producer, log, first and last seq."""
        found: list[tuple[int, str, int, int]] = self._execute(f"FROM {CATALOG}.held.doubled ORDER BY ALL").fetchall()
        return found

    def loaded(self, table: str) -> set[str]:
        """Return the paths of the files whose rows are here."""
        query = f"SELECT path FROM {CATALOG}.held.loaded WHERE name = ?"
        return {path for (path,) in self._execute(query, [table]).fetchall()}

    def load(
        self,
        new: dict[str, list[tuple[StoredFile, Path]]],
        replaced: Iterable[str],
        *,
        renumbers: bool = False,
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the rows of new files, all or none.

        Args:
            new: By table, files with their copies on this disk.
            replaced: Tables of which `new` has all files, because some were merged or rewritten.
            renumbers: Give integers again; then all tables are replaced.
            finish: Called at the end of the transaction.
        """
        with transaction(self._connection):
            self._execute(f"CREATE OR REPLACE TEMP TABLE known_deletions AS FROM {CATALOG}.held.{DELETIONS}")
            if renumbers:
                self._execute(f"DELETE FROM {CATALOG}.held.producer_ids")
            for table in replaced:
                self._execute(f"DELETE FROM {CATALOG}.held.{table}")
                self._execute(f"DELETE FROM {CATALOG}.held.loaded WHERE name = ?", [table])
            for table, files in new.items():
                if files:
                    self._load(table, [str(copy) for _, copy in files])
                    paths = [file.path for file, _ in files]
                    self._execute(f"INSERT INTO {CATALOG}.held.loaded SELECT ?, unnest(?)", [table, paths])
            self._hide([table for table, files in new.items() if files])
            for table in SERIES.values():
                self._merge(table)
            self._count_refresh()
            self._spread.write()
            self._spread.write_versions(self._passed)
            self._derive()
            finish()

    def _load(self, table: str, copies: list[str]) -> None:
        source = "read_parquet($files, union_by_name = true, hive_partitioning = false)"
        query = f"SELECT column_name FROM (DESCRIBE FROM {source})"
        found = {name for (name,) in self._execute(query, {"files": copies}).fetchall()}
        if "producer" in found:
            self._number("producer_ids", "producer", "uuid", "producer", source, copies)
        if table == "names":
            self._number("names", "id", "name", "name", source, copies)
            return
        if table == "runs":
            self._number("run_ids", "run", "run_id", "run_id", source, copies)
        types = dict(
            self._execute(
                "SELECT column_name, data_type FROM duckdb_columns() WHERE database_name = ? AND schema_name = 'held' "
                "AND table_name = ? ORDER BY column_index",
                [CATALOG, table],
            ).fetchall()
        )
        selected = [
            f'{expression} AS "{name}"'
            for name, kind in types.items()
            if (expression := _expression(table, name, kind, found)) is not None
        ]
        joins = f" LEFT JOIN {CATALOG}.held.producer_ids p ON p.uuid = f.producer" if "producer" in found else ""
        own = "" if table in _OWN_TOO else " WHERE f.log <> $log"
        given = {"files": copies} | ({"log": self._log_id} if own else {})
        self._execute(
            f"INSERT INTO {CATALOG}.held.{table} BY NAME SELECT {', '.join(selected)} FROM {source} f{joins}{own}",
            given,
        )

    def _hide(self, loaded: list[str]) -> None:
        """Remove the rows that were deleted, as `live_rows` has it. loaded: the tables with new rows."""
        held = f"{CATALOG}.held"
        columns = "SELECT log, flush, uuid, run_id FROM"
        new = f"{columns} {held}.{DELETIONS} EXCEPT {columns} known_deletions"
        is_new = self._execute(f"SELECT exists({new})").fetchall() == [(True,)]
        for table in small_tables():
            if table in UNOWNED or not (is_new or table in loaded):
                continue
            deletions = f"{held}.{DELETIONS} d JOIN {held}.producer_ids p ON p.uuid = lower(hex(d.uuid))"
            concerns = "p.producer = h.producer"
            if table == "runs":
                deletions, concerns = f"{held}.{DELETIONS} d", "d.uuid IS NULL AND d.run_id = h.run_id"
            earlier = "d.log = h.log AND d.flush > h.flush"
            # safeguard: deleted-rows-not-read
            self._execute(f"DELETE FROM {held}.{table} h USING {deletions} WHERE {earlier} AND {concerns}")
        for table in SERIES.values() if is_new else ():  # rows of merged pieces have no log: they are of earlier ones
            deletions = f"({new}) d JOIN {held}.producer_ids p ON p.uuid = lower(hex(d.uuid))"
            self._execute(
                f"DELETE FROM {held}.{table} h USING {deletions} WHERE h.log = '' AND p.producer = h.producer"
            )
        self._execute("DROP TABLE known_deletions")

    def _number(self, table: str, number: str, name: str, column: str, source: str, copies: list[str]) -> None:
        """Give an integer beyond those of the index to each name that has none."""
        held = f"{CATALOG}.held.{table}"
        own = {
            "producer_ids": f"SELECT lower(hex(uuid)) AS {name}, producer AS {number} FROM {self._main}.base.producers",
            "run_ids": f"SELECT NULL::VARCHAR AS {name}, NULL::INTEGER AS {number}",
            "names": f"SELECT NULL::VARCHAR AS {name}, NULL::INTEGER AS {number}",
        }[table]
        self._execute(
            f"""INSERT INTO {held} ({number}, {name})
            SELECT coalesce(o.{number}, (SELECT greatest(coalesce(max({number}), 0), {OTHERS_FROM}) FROM {held})
                   + row_number() OVER (ORDER BY n.{name})), n.{name}
            FROM (SELECT DISTINCT {column} AS {name} FROM {source} WHERE {column} IS NOT NULL) n
            ANTI JOIN {held} h ON h.{name} = n.{name} LEFT JOIN ({own}) o ON o.{name} = n.{name}""",
            {"files": copies},
        )

    def _merge(self, table: str) -> None:
        """Make one row of each series, once there are many."""
        [(n, n_merged)] = self._execute(
            f"SELECT count(*), count(*) FILTER (flush = 0) FROM {CATALOG}.held.{table}"
        ).fetchall()
        if n > max(_SERIES_ROWS_MAX, 2 * n_merged):
            merged = merged_series_sql(f"SELECT * EXCLUDE (log, flush) FROM {CATALOG}.held.{table}")
            self._execute(f"CREATE TEMP TABLE merged_series AS {merged}")
            self._execute(f"DELETE FROM {CATALOG}.held.{table}")
            self._execute(
                f"INSERT INTO {CATALOG}.held.{table} BY NAME SELECT *, '' AS log, 0 AS flush FROM merged_series"
            )
            self._execute("DROP TABLE merged_series")


def _tables(main: str, tables: Sequence[str]) -> Iterable[str]:
    """Yield the statements that make the empty tables of `held`."""
    held = f"{CATALOG}.held"
    yield f"CREATE TABLE {held}.made_for (made_for VARCHAR)"
    yield f"CREATE TABLE {held}.loaded (name VARCHAR, path VARCHAR)"
    yield f"CREATE TABLE {held}.producer_ids (producer INTEGER, uuid VARCHAR)"
    yield f"CREATE TABLE {held}.run_ids (run INTEGER, run_id VARCHAR)"
    yield f"CREATE TABLE {held}.names (id INTEGER, name VARCHAR)"
    for table in (*SPREAD_TABLES, VERSIONS):
        yield f"CREATE TABLE {held}.{table}"
    yield f"CREATE TABLE {held}.awaited (log VARCHAR)"  # other logs that live
    yield f"CREATE TABLE {held}.refreshes (n BIGINT)"
    yield f"INSERT INTO {held}.refreshes VALUES (0)"
    for table in tables:
        if table == "names":
            continue
        if table == COMPLETE:
            yield f"CREATE TABLE {held}.{COMPLETE} (log VARCHAR, flush BIGINT, host VARCHAR, cut_at TIMESTAMP)"
            continue
        source = f"SELECT * FROM {main}.base.{table} LIMIT 0"
        if table in SERIES.values() or table == "media":
            source = f"SELECT * REPLACE (key::VARCHAR AS key) FROM {main}.base.{table} LIMIT 0"
        if table in SERIES.values():
            source = f"SELECT *, 0::BIGINT AS flush FROM ({source})"
        named = ", NULL::VARCHAR AS run_id_of" if table == "producers" else ""
        placed = ", NULL::BIGINT AS place" if table in PLACED else ""
        yield f"CREATE TABLE {held}.{table} AS SELECT *, NULL::VARCHAR AS log{named}{placed} FROM ({source})"
    for table in SERIES.values():  # subtracted, because two logs have it
        yield f"CREATE TABLE {held}.doubled_{table} AS FROM {held}.{table} LIMIT 0"
    yield f"CREATE TABLE {held}.silent (log VARCHAR, host VARCHAR, since TIMESTAMP)"
    yield f"CREATE TABLE {held}.heard (log VARCHAR, collector VARCHAR, seen_at TIMESTAMP)"
    for table, query in _derived(main, ""):
        yield f"CREATE TABLE {held}.{table} AS {query}"


def _derived(main: str, log: str) -> Iterable[tuple[str, str]]:
    """Yield the tables that depend on the newest rows of the dimensions, in order, each with its query."""
    held = f"{CATALOG}.held"
    newest = newest_rows("producers", "producer", quoted(log))
    # What a silent collector has and did not publish is unknown: produced and pending are NULL, as for a lost node.
    # safeguard: silent-collector-is-unknown, silent-collector-pending-unknown
    yield (
        "newest_producers",
        f"""SELECT h.* EXCLUDE (log) REPLACE (
            n.run AS run, coalesce(l.attempt, h.attempt) AS attempt,
            coalesce(l.is_primary, h.is_primary) AS is_primary,
            CASE WHEN h.role = 'rank' AND s.log IS NOT NULL THEN coalesce(h.state, 'unknown') ELSE h.state END AS state,
            h.is_presumed OR (h.role = 'rank' AND s.log IS NOT NULL AND h.state IS NULL) AS is_presumed
        )
        FROM ({newest}) h LEFT JOIN {held}.placed l ON l.producer = h.producer
        LEFT JOIN {held}.run_ids n ON n.run_id = h.run_id_of
        LEFT JOIN {held}.silent s ON s.log = h.log
        WHERE coalesce(l.log = h.log, h.producer > {OTHERS_FROM})
        QUALIFY row_number() OVER (
            PARTITION BY h.producer ORDER BY h.state IS NOT NULL DESC, h.flush DESC, h.log
        ) = 1""",
    )
    yield (
        "run_parts",
        f"""SELECT run_id_of AS run_id, log, count(DISTINCT label) AS n_labels FROM ({newest})
        WHERE role = 'rank' AND run_id_of IS NOT NULL GROUP BY ALL""",
    )
    yield (
        "newest_runs",
        f"""SELECT r.* EXCLUDE (log) REPLACE (n.run AS run)
        FROM ({newest_rows("runs", "run_id", quoted(log))}) r
        JOIN {held}.run_ids n USING (run_id)
        QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY r.primary_label IS NOT NULL DESC, r.log) = 1""",
    )
    yield (
        "newest_losses",
        f"""SELECT * EXCLUDE (log) FROM {held}.losses WHERE log <> {quoted(log)}
        QUALIFY flush = max(flush) OVER (PARTITION BY log, producer)""",
    )
    yield (
        "deleted_rows",
        f"""SELECT log, lower(hex(uuid)) AS producer, max(flush) AS until FROM {held}.{DELETIONS}
        WHERE uuid IS NOT NULL GROUP BY ALL""",
    )
    yield (
        "deleted_samples",
        f"""SELECT log, flush, samples_until FROM {held}.{DELETIONS}
        WHERE samples_until IS NOT NULL""",
    )
    yield (
        "silent_events",
        f"""SELECT * FROM {held}.events WHERE false UNION ALL BY NAME
        SELECT min(h.producer) AS producer, s.since AS ts, 'collector_silent' AS kind, 'warning' AS level, h.log,
               format('the collector on {{}} is silent since {{}} UTC: labels that may have ended: {{}}',
                      s.host, strftime(s.since, '%Y-%m-%d %H:%M:%S'), count(*)) AS message
        FROM ({newest}) h JOIN {held}.silent s ON s.log = h.log
        WHERE h.state IS NULL AND h.role = 'rank' AND h.run_id_of IS NOT NULL
        GROUP BY h.log, h.run_id_of, s.host, s.since""",
    )
    # As rollups.sql computes it.
    yield (
        "identified",
        f"""SELECT p.producer, w.run, w.run_id_of AS run_id, w.label, w.attempt, w.rank,
               p.node, p.is_primary, coalesce(p.is_coauthor, false) AS is_coauthor,
               w.producer AS owner, p.role, w.run_id_of
        FROM {held}.newest_producers p
        LEFT JOIN {held}.newest_producers o ON p.role = 'console' AND o.producer = p.owner AND o.role = 'rank'
            AND coalesce(o.agent_node, o.node) = coalesce(p.agent_node, p.node)
        JOIN {held}.newest_producers w ON w.producer = coalesce(o.producer, p.producer)""",
    )
    # The names under which the facts of a producer may have been published: a piece has those of its moment.
    yield (
        "published_names",
        f"""SELECT DISTINCT p.producer, lower(hex(p.uuid)) AS uuid, p.log, w.run_id_of AS run_id, w.label
        FROM {held}.producers p
        LEFT JOIN {held}.producers w ON w.producer = p.owner OR w.producer = p.producer""",
    )
    yield (
        "named_producers",
        f"""SELECT i.run_id, i.label, i.attempt, i.rank, lower(hex(p.uuid)) AS uuid
        FROM {held}.identified i JOIN {held}.newest_producers p ON p.producer = i.producer""",
    )
    yield "published", f"SELECT * FROM {published_sql(f'{held}.identified')}"


def published_sql(identified: str) -> str:
    """Return a FROM: the names of producers, each with all under which their facts may have been published.

    To read it takes a quarter of the time that the query of `merged.identified` takes to plan.
    """
    return f"""(SELECT i.run_id, i.label, n.log, n.run_id AS published_run_id, n.label AS published_label, n.uuid
        FROM {identified} i JOIN {CATALOG}.held.published_names n ON n.producer = i.producer)"""


def _expression(table: str, name: str, kind: str, found: set[str]) -> str | None:
    """Return how a column of `base` is made of the columns of a store; None if the store has none."""
    if name == "run_id_of":
        return "f.run_id"
    if name in ("log", "flush"):
        return "f.log" if name == "log" else "f.number"
    if name == "producer":
        return "p.producer"
    if (table, name) in {("producers", "uuid"), (DELETIONS, "uuid")}:
        return "unhex(f.producer)"
    if (table, name) == ("producers", "owner"):
        return f"(SELECT o.producer FROM {CATALOG}.held.producer_ids o WHERE o.uuid = f.owner)"
    if (table, name) in {("producers", "run"), ("runs", "run"), ("runs", "alias_of")}:
        return "NULL::INTEGER"
    if name not in found:
        return None
    if kind == "BLOB":
        return f"unhex(f.{name})"
    if kind == "TIMESTAMP":
        return f"f.{name} AT TIME ZONE 'UTC'"
    return f'f."{name}"'
