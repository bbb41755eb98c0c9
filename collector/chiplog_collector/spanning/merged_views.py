"""The views over a collector's own rows and those of a store, with the text of the usual ones.

The usual views read the schema `base` alone. Here they read `merged`, which has the same tables: the rows of `base`,
and after them those of other logs; of the large tables those in files of a store. All of it is in the database
`store`, so that the file of the index stays as it is without a store.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import duckdb

from chiplog_collector.spanning.held_rows import (
    CATALOG,
    FORMAT,
    OTHERS_FROM,
    PLACED,
    published_sql,
    quoted,
    small_tables,
)
from chiplog_collector.spanning.spread_runs import DESCRIBING
from chiplog_collector.store.published_tables import COMPLETE, PIECE_ROWS_MAX
from chiplog_collector.view_definitions import define_views
from chiplog_schemas.sql import LARGE, SERIES, WITH_RECENT, views_sql

# Large tables by the table of `base` after whose rows those of files stand, so that curves read them as they are.
_LARGE_OF = {f"{name}_recent" if name in WITH_RECENT else name: name for name in LARGE}
_SPREAD = (*DESCRIBING, "primary_label", "primary_launch", "primary_restart")
# DuckDB 2.0 takes the extremes of a row group, which leave NaN out, for those of all values: no NaN would be found, nor
# be larger than a number. It has no extremes of what TRY returns.
_NUMBER = "try(f.value)"  # safeguard: nan-in-files-is-found
_BY_RECEIPT = ("artifacts", "artifact_aliases")  # tables whose last row counts
_NAMED_RUN = {"producers": "newest_producers", "identified": "identified"}  # tables of `held`, with `run_id_of`
_NAMED = ("key", "device")  # columns with an integer for a name
# What the view `reached_steps` reads of series. It needs no key, and the join by its name takes half of its time.
_LAST_STEPS = "SELECT producer, last_step, last_step_ts FROM"
_LAST_STEPS_OF = f"{_LAST_STEPS} merged."
# In place of the row ID: rows in files come before those of the index, piece by piece.
_PLACE = f"{{}} * {PIECE_ROWS_MAX} + place - 4611686018427387904"


@dataclass(frozen=True, slots=True)
class Shape:
    """What the views join. Each join costs each query some time, so what does not occur is left out.

    Attributes:
        has_own: False if the index never has a row: that of a reader without a collector.
        has_others: True if the index may have rows, and another log has published something, or lives.
        has_spread: True if some runs or producers are in several logs.
        has_doubled: True if some events are in two logs.
        has_deleted: True if rows that files still have may be deleted.
    """

    has_own: bool = True
    has_others: bool = True
    has_spread: bool = True
    has_doubled: bool = False
    has_deleted: bool = True


def make_views(connection: duckdb.DuckDBPyConnection, main: str, log: str, shape: Shape = Shape()) -> None:
    """Make the views in the database `store`, which then is the connection's own. Variables of files must be set.

    Call it within a transaction. main: the name of the connection's own database. log: the ID of the log in it.
    """
    connection.execute(f"USE {CATALOG}")
    connection.execute("CREATE SCHEMA IF NOT EXISTS merged")
    for statement in merged_tables(connection, f'"{main}"', log, shape):
        connection.execute(statement)
    # These read them by name, and their columns are the same in each shape.
    text = views_sql().replace("base.", "merged.").replace(_LAST_STEPS_OF, f"{_LAST_STEPS_OF}last_steps_of_")
    views = [text, _run_places(f'"{main}"', log)]
    if not shape.has_doubled:
        views.append(_metrics(f'"{main}"', log, shape))
    define_views(connection, views, f"{CATALOG}.held {FORMAT}")


def variable_of(table: str) -> str:
    """Return the name of the variable that says which files of a large table a query reads."""
    return f"cold_{table}"


def merged_tables(connection: duckdb.DuckDBPyConnection, main: str, log: str, shape: Shape) -> Iterable[str]:
    """Yield the statements that make a view for each table of `base`."""
    query = """SELECT table_name, list(column_name ORDER BY column_index) FROM duckdb_columns()
        JOIN duckdb_tables() USING (database_name, schema_name, table_name)
        WHERE database_name = ? AND schema_name = 'base' GROUP BY ALL ORDER BY ALL"""
    tables = dict(connection.execute(query, [main.strip('"')]).fetchall())
    names = _after(
        f"SELECT id, name FROM {main}.base.names",
        f"SELECT id, name FROM {CATALOG}.held.names h",
        f"ANTI JOIN {main}.base.names b ON b.name = h.name",
        shape,
    )
    yield f"CREATE OR REPLACE VIEW merged.names AS {names}"
    runs = _after(
        f"FROM {main}.base.runs",
        f"FROM {CATALOG}.held.newest_runs h",
        f"ANTI JOIN {main}.base.runs b ON b.run_id = h.run_id",
        shape,
    )
    if shape.has_spread:
        replaced = ", ".join(
            f"CASE WHEN s.run_id IS NULL THEN r.{name} ELSE s.{name} END AS {name}" for name in _SPREAD
        )
        runs = f"""SELECT r.* REPLACE ({replaced})
            FROM ({runs}) r LEFT JOIN {CATALOG}.held.spread_runs s ON s.run_id = r.run_id"""
    yield f"CREATE OR REPLACE VIEW merged.runs AS {runs}"
    yield f"""CREATE OR REPLACE VIEW merged.uuids AS
        SELECT producer, lower(hex(uuid)) AS uuid FROM {main}.base.producers
        UNION ALL SELECT h.producer, h.uuid FROM {CATALOG}.held.producer_ids h
        ANTI JOIN {main}.base.producers b ON b.uuid = unhex(h.uuid) WHERE h.producer > {OTHERS_FROM}"""
    published = _after(f"FROM {published_sql(f'{main}.base.identified')}", f"FROM {CATALOG}.held.published", "", shape)
    yield f"CREATE OR REPLACE VIEW merged.published AS {published}"
    # The state of both databases, each number once or not at all. A join of them would take twice as long.
    yield f"""CREATE OR REPLACE VIEW merged.versions AS
        SELECT 'index' AS name, next_number AS n FROM {main}.base.position
        UNION ALL SELECT 'store', n FROM {CATALOG}.held.refreshes
        UNION ALL SELECT 'dropped', flush FROM {main}.base.dropped"""
    yield from _last_steps(main, shape)
    for table, columns in tables.items():
        if table in ("names", "runs"):
            continue
        own = f"FROM {main}.base.{table}"
        if table == "console":
            own = f'SELECT *, rowid AS "rowid" {own}'
        if table in _BY_RECEIPT:
            own = _by_receipt(own, log)
        if table == "position":
            refreshes = f"(SELECT n FROM {CATALOG}.held.refreshes)"
            own = f"SELECT * REPLACE (next_number + {refreshes} AS next_number) {own}"
        if shape.has_spread and table in ("producers", "identified"):
            own = _placed(table, own)
        if shape.has_others and table == "artifact_versions":
            # One that is not published yet has no number where another log has the artifact, or may have it before.
            # safeguard: unpublished-version-waits
            own = f"""SELECT b.* REPLACE (CASE WHEN s.n IS NULL AND (
                    p.n IS NOT NULL OR NOT exists(FROM {CATALOG}.held.awaited)) THEN b.version END AS version)
                {own} b
                LEFT JOIN (SELECT DISTINCT project, name, 1 AS n FROM {CATALOG}.held.artifact_versions
                           WHERE log <> {quoted(log)}) s
                USING (project, name)
                LEFT JOIN (SELECT project, name, digest, 1 AS n FROM {CATALOG}.held.artifact_versions
                           WHERE log = {quoted(log)}) p
                USING (project, name, digest) ANTI JOIN {CATALOG}.held.spread_versions v
                ON v.project = b.project AND v.name = b.name AND v.digest = b.digest"""
        if shape.has_spread and table == "intervals":
            own = f"{own} b ANTI JOIN {CATALOG}.held.kept_intervals k ON k.producer = b.producer"
        if _is_event(columns, shape):
            own = f"SELECT b.* FROM ({own}) b {_without_doubled('b', quoted(log))}"
        has_beside = shape.has_others or not shape.has_own or table in _LARGE_OF
        beside = _others(table, columns, main, log, shape) if has_beside else ""
        if not shape.has_own and "producer" in columns:
            yield f"CREATE OR REPLACE VIEW merged.{table} AS {beside or f'SELECT * FROM ({own}) WHERE false'}"
        else:
            yield f"CREATE OR REPLACE VIEW merged.{table} AS {own}{f' UNION ALL {beside}' if beside else ''}"


def _last_steps(main: str, shape: Shape) -> Iterable[str]:
    for series in SERIES.values():
        steps = _after(f"{_LAST_STEPS} {main}.base.{series}", f"{_LAST_STEPS} {CATALOG}.held.{series}", "", shape)
        yield f"CREATE OR REPLACE VIEW merged.last_steps_of_{series} AS {steps}"


def _is_event(columns: list[str], shape: Shape) -> bool:
    """Return True for a table of which two logs may have some rows."""
    return shape.has_doubled and {"producer", "seq"} <= set(columns)


def _after(own: str, others: str, unless_own: str, shape: Shape) -> str:
    """Return the query of rows of the index, and after them those of others, as far as there are any.

    unless_own: the join that leaves out those of others that the index has.
    """
    if not shape.has_own:
        return others
    return f"{own} UNION ALL {others} {unless_own}" if shape.has_others else own


def _run_places(main: str, log: str) -> str:
    """Return the statement of the view that tells which collectors have a run, and up to when its rows are here."""
    held = f"{CATALOG}.held"
    return f"""CREATE OR REPLACE VIEW run_places AS
        WITH parts AS (
            SELECT i.run_id, {quoted(log)} AS log, count(DISTINCT i.label) AS n_labels FROM {main}.base.identified i
            WHERE i.role = 'rank' AND i.run_id IS NOT NULL GROUP BY i.run_id
            UNION ALL SELECT run_id, log, n_labels FROM {held}.run_parts
        ), pieces AS (
            SELECT log, max_by(host, flush) AS host, max(cut_at) AS cut_at FROM {held}.{COMPLETE} GROUP BY log
        )
        SELECT p.run_id, coalesce(h.collector, c.host) AS collector, p.log, p.log = {quoted(log)} AS is_here,
               p.n_labels, s.log IS NOT NULL AS is_silent,
               CASE WHEN p.log <> {quoted(log)} THEN coalesce(h.seen_at, c.cut_at) END AS seen_at
        FROM parts p LEFT JOIN {held}.heard h ON h.log = p.log LEFT JOIN pieces c ON c.log = p.log
        LEFT JOIN (SELECT DISTINCT log FROM {held}.silent) s ON s.log = p.log"""


def _placed(table: str, own: str) -> str:
    """Return the query of the own rows of producers, as they count where a run is in several logs."""
    held = f"{CATALOG}.held"
    names_of = "b.producer" if table == "producers" else "b.owner"  # a console has the names of its owner
    return f"""SELECT b.* REPLACE (
            coalesce(n.attempt, b.attempt) AS attempt, coalesce(l.is_primary, b.is_primary) AS is_primary
        ) FROM ({own}) b ANTI JOIN {held}.newest_producers h ON h.producer = b.producer
        LEFT JOIN {held}.placed n ON n.producer = {names_of} LEFT JOIN {held}.placed l ON l.producer = b.producer"""


def _by_receipt(own: str, log: str) -> str:
    """Return the query of own rows in the order in which their pieces were cut, which all readers know."""
    place = f"{{'at': coalesce(c.cut_at, 'infinity'::TIMESTAMP), 'log': {quoted(log)}, 'place': b.rowid}}"
    return f"""SELECT b.*, {place} AS "rowid" {own} b
        ASOF LEFT JOIN (SELECT flush, cut_at FROM {CATALOG}.held.collectors WHERE log = {quoted(log)}) c
        ON b.flush <= c.flush"""


def _files_of(table: str) -> str:
    """Return the source of the rows of a large table in the files that were chosen for the query."""
    return f"read_parquet(getvariable('{variable_of(table)}').files, hive_partitioning = false)"


def _has_left(table: str, log: str) -> str:
    """Return the condition that a row of a file is not in the index: what still is there is read there alone."""
    of = f"getvariable('{variable_of(table)}')"
    return f"({of}.has_left OR f.log <> {quoted(log)} OR f.number <= {of}.dropped)"


def _without_doubled(row: str, log: str, producer: str = "") -> str:
    """Return the join that leaves out the events that a smaller log has, too."""
    producer = producer or f"{row}.producer"
    # safeguard: doubled-events-left-out
    return f"""ANTI JOIN {CATALOG}.held.doubled d
        ON d.log = {log} AND d.producer = {producer} AND {row}.seq BETWEEN d.first_seq AND d.last_seq"""


def doubled_facts(table: str, main: str, log: str) -> str:
    """Return the query of the facts of a series that merged views leave out, with the names of their keys."""
    recent = f"(FROM {main}.base.{table} UNION ALL FROM {main}.base.{table}_recent)"
    on = "d.log = {} AND d.producer = {} AND f.seq BETWEEN d.first_seq AND d.last_seq"
    return f"""SELECT f.producer, n.name AS key, f.step, f.seq, f.ts, f.value FROM {recent} f
        JOIN {main}.base.names n ON n.id = f.key
        JOIN {CATALOG}.held.doubled d ON {on.format(quoted(log), "f.producer")}
        UNION ALL
        SELECT p.producer, f.key, f.step, f.seq, f.ts AT TIME ZONE 'UTC', {_NUMBER} FROM {_files_of(table)} f
        JOIN merged.uuids p ON p.uuid = f.producer JOIN {CATALOG}.held.doubled d ON {on.format("f.log", "p.producer")}
        WHERE {_has_left(table, log)}"""


def _others(table: str, columns: list[str], main: str, log: str, shape: Shape) -> str:
    """Return the query of the rows that stand after those of a table of `base`, with its columns.

    No column is named where `*` will do: a macro takes it for its parameter of that name.
    """
    held = f"{CATALOG}.held"
    if table in _LARGE_OF:
        return _in_files(_LARGE_OF[table], columns, log, shape)
    if table in _NAMED_RUN:
        source, joined = f"{held}.{_NAMED_RUN[table]} h", ""
        if shape.has_own:
            source += f" LEFT JOIN {main}.base.runs b ON b.run_id = h.run_id_of"
            joined = "REPLACE (coalesce(b.run, h.run) AS run)"
        return f"SELECT h.* EXCLUDE (run_id_of) {joined} FROM {source}"
    if table == "losses":
        return f"FROM {held}.newest_losses"
    if table == "intervals" and shape.has_spread:
        return f"""SELECT h.* EXCLUDE (log) FROM {held}.intervals h
            ANTI JOIN {held}.kept_intervals k ON k.producer = h.producer
            UNION ALL SELECT k.* EXCLUDE (log), NULL FROM {held}.kept_intervals k"""
    if table in SERIES.values():
        doubled = f"UNION ALL FROM {held}.doubled_{table}" if shape.has_doubled else ""
        return f"""SELECT h.* EXCLUDE (log, flush) REPLACE (n.id AS key)
            FROM (FROM {held}.{table} {doubled}) h JOIN merged.names n ON n.name = h.key"""
    once = _without_doubled("h", "h.log") if _is_event(columns, shape) else ""
    if table == "media":
        return f"""SELECT h.* EXCLUDE (log) REPLACE (n.id AS key) FROM {held}.{table} h
            JOIN merged.names n ON n.name = h.key {once}"""
    if table == "events":
        return f"""SELECT h.* EXCLUDE (log) FROM {held}.{table} h {once}
            UNION ALL SELECT h.* EXCLUDE (log) FROM {held}.silent_events h"""
    if table in _BY_RECEIPT:
        place = f"{{'at': c.cut_at, 'log': h.log, 'place': {_PLACE.format('h.flush')}}}"
        return f"""SELECT h.* EXCLUDE (log, place), {place} AS "rowid" FROM {held}.{table} h {once}
            LEFT JOIN {held}.collectors c ON c.log = h.log AND c.flush = h.flush"""
    if table == "artifact_versions":
        return f"""SELECT h.* EXCLUDE (log) FROM {held}.artifact_versions h
            ANTI JOIN {held}.spread_versions s USING (project, name) WHERE h.log <> {quoted(log)}
            UNION ALL SELECT s.*, NULL FROM {held}.spread_versions s"""
    if table in small_tables():
        return f"SELECT h.* EXCLUDE (log) FROM {held}.{table} h {once}"
    return ""


def _in_files(table: str, columns: list[str], log: str, shape: Shape) -> str:
    """Return the query of the rows of a large table that are in files of the store."""
    # Their rows are of producers that were published: the integers of these are known here.
    selected, joined = [], f"JOIN {CATALOG}.held.producer_ids p ON p.uuid = f.producer"
    for column in columns:
        if column in _NAMED:
            selected.append(f"{column}_name.id AS {column}")
            joined += f" JOIN merged.names {column}_name ON {column}_name.name = f.{column}"
        else:
            given = {"producer": "p.producer", "flush": "f.number", "ts": "f.ts AT TIME ZONE 'UTC'"}
            if column == "value" and table in WITH_RECENT:
                given[column] = _NUMBER
            selected.append(f"{given.get(column, f'f.{column}')} AS {column}")
    if table in PLACED:
        selected.append(f'{_PLACE.format("f.number")} AS "rowid"')
    gone, conditions = _chosen(table, columns, log, shape)
    joined += gone
    of = f"getvariable('{variable_of(table)}')"
    conditions += f" AND ({of}.producer_from IS NULL OR f.producer BETWEEN {of}.producer_from AND {of}.producer_to)"
    if shape.has_doubled:
        joined += f" {_without_doubled('f', 'f.log', 'p.producer')}"
    return f"SELECT {', '.join(selected)} FROM {_files_of(table)} f {joined} WHERE {conditions}"


def _chosen(table: str, columns: list[str], log: str, shape: Shape) -> tuple[str, str]:
    """Return a join and the conditions for the rows of files that a query may need, and that are not deleted."""
    of = f"getvariable('{variable_of(table)}')"
    joined = ""
    conditions = [
        _has_left(table, log),
        f"({of}.run_from IS NULL OR f.run_id BETWEEN {of}.run_from AND {of}.run_to)",
    ]
    # What was deleted is hidden until maintenance has removed it; what came after the producer was restored is not.
    if shape.has_deleted:
        joined += f" LEFT JOIN {CATALOG}.held.deleted_rows gone ON gone.log = f.log AND gone.producer = f.producer"
        conditions.append("(gone.until IS NULL OR gone.until <= f.number)")  # safeguard: deleted-facts-not-read
    if shape.has_deleted and table == "system":
        conditions.append(
            f"NOT EXISTS (SELECT 1 FROM {CATALOG}.held.deleted_samples d "
            "WHERE d.log = f.log AND d.flush > f.number AND d.samples_until > f.ts AT TIME ZONE 'UTC')"
        )
    if "key" in columns:
        conditions.append(f"({of}.key_from IS NULL OR f.key BETWEEN {of}.key_from AND {of}.key_to)")
    return joined, " AND ".join(conditions)


def _metrics(main: str, log: str, shape: Shape) -> str:
    """Return the statement of the view `metrics` where no event is in two logs.

    The usual text makes integers of producers and keys in files, and names of these again: 320,000 points take a fifth
    longer. The join by producer restricts what is read of them as `_chosen` would.
    """
    joined, conditions = _chosen("metrics", ["key"], log, shape)
    in_files = f"""SELECT i.run_id, i.label, i.attempt, i.rank, f.key, f.step, f.seq, f.ts AT TIME ZONE 'UTC' AS ts,
               {_NUMBER} AS value
        FROM {_files_of("metrics")} f JOIN ({_named_producers(main, shape)}) i ON i.uuid = f.producer {joined}
        WHERE {conditions}"""
    if not shape.has_own:
        return f"CREATE OR REPLACE VIEW metrics AS {in_files}"
    identified = "merged.identified" if shape.has_spread else f"{main}.base.identified"
    return f"""CREATE OR REPLACE VIEW metrics AS
        SELECT i.run_id, i.label, i.attempt, i.rank, n.name AS key, f.step, f.seq, f.ts, f.value
        FROM (FROM {main}.base.metrics UNION ALL FROM {main}.base.metrics_recent) f
        JOIN {identified} i ON i.producer = f.producer JOIN {main}.base.names n ON n.id = f.key
        UNION ALL {in_files}"""


def _named_producers(main: str, shape: Shape) -> str:
    """Return the query of the names of producers whose facts may be in files, by their IDs there."""
    others = f"FROM {CATALOG}.held.named_producers"
    if not shape.has_own:
        return others
    own = f"FROM {main}.base.identified"
    own = f"""SELECT b.run_id, b.label, b.attempt, b.rank, p.uuid
        FROM ({_placed("identified", own) if shape.has_spread else own}) b
        JOIN {CATALOG}.held.producer_ids p ON p.producer = b.producer"""
    return f"{own} UNION ALL {others}" if shape.has_others else own
