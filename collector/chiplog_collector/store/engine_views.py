"""The statements that give another engine chiplog's names over a store: its tables, and views with the same columns."""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.resources import files

import duckdb
import sqlglot
from sqlglot import expressions

from chiplog_collector.store.published_tables import (
    COMPLETE,
    DELETIONS,
    PUBLISHED,
    UNOWNED,
    live_rows,
    published_query,
    rows_of,
)
from chiplog_schemas.sql import rollups_sql, series_sql, tables_sql

RAN = ("duckdb", "spark")  # engines that tests run; for the others the statements are parsed
_SOURCE = "duckdb"  # the dialect of engine_views.sql
# Small views that decide what counts; most others read them.
DECIDING = ("store_primaries", "store_identities", "store_newest_runs", "store_doubled")
_DOUBLED = "store_doubled_metrics"  # the view that reads what all others leave out
_ONCE = """NOT EXISTS (SELECT 1 FROM store_doubled d
    WHERE d.log = f.log AND d.producer = f.producer AND f.seq BETWEEN d.first_seq AND d.last_seq)"""
# Of the row that ends a piece: it is in no table of the index.
_COMPLETION = {
    "log": "VARCHAR",
    "number": "BIGINT",
    "after": "BIGINT",
    "host": "VARCHAR",
    "version": "VARCHAR",
    "cut_at": "TIMESTAMP WITH TIME ZONE",
    "n_rows": "BIGINT",
}
# The claims of a run, from the first one that takes over from its first claim; all of them if none does.
_TAKEN_OVER = """SELECT run_id, log, label, launch, restart, since, until, n FROM (
    SELECT c.*, min(CASE WHEN takes_over THEN n END) OVER (PARTITION BY run_id) AS next FROM (
        SELECT *, label <> first_value(label) OVER (PARTITION BY run_id ORDER BY n) AND CASE
                WHEN launch IS NOT DISTINCT FROM first_value(launch) OVER (PARTITION BY run_id ORDER BY n)
                THEN restart > first_value(restart) OVER (PARTITION BY run_id ORDER BY n)
                ELSE since >= first_value(until) OVER (PARTITION BY run_id ORDER BY n) END AS takes_over
        FROM {0}) c
    ) claimed WHERE next IS NULL OR n >= next"""
# What sqlglot does not translate: by function of engine_views.sql its text in each engine, for its arguments.
_SPARK = {
    "taken_over": _TAKEN_OVER,
    "epoch_us": "unix_micros({0})",
    "json_text": "substring(to_json(named_struct('v', {0})), 6, length(to_json(named_struct('v', {0}))) - 6)",
    "json_list": "to_json({0})",
    "list_slice": "slice({0}, {1}, {2})",
    "hashes_by_key": """SELECT producer, primary_label, is_whole, side, key, hash
        FROM {0} LATERAL VIEW explode(from_json(hashes, 'map<string,string>')) AS key, hash""",
}
_WRITTEN: dict[str, dict[str, str]] = {
    "duckdb": {
        "taken_over": _TAKEN_OVER,
        "json_text": "CAST(to_json({0}) AS VARCHAR)",
        "json_list": "CAST(to_json({0}) AS VARCHAR)",
        "hashes_by_key": """SELECT * EXCLUDE (entry), entry.key AS key, entry.value AS hash FROM (
            SELECT producer, primary_label, is_whole, side,
            unnest(map_entries(CAST(CAST(hashes AS JSON) AS MAP(VARCHAR, VARCHAR)))) AS entry FROM {0})""",
    },
    "spark": _SPARK,
    "databricks": _SPARK,
    "trino": {
        "taken_over": _TAKEN_OVER,
        "epoch_us": "CAST(round(to_unixtime({0}) * 1000000) AS BIGINT)",
        "json_text": "json_format(CAST({0} AS JSON))",
        "json_list": "json_format(CAST({0} AS JSON))",
        "list_slice": "slice({0}, {1}, {2})",
        "median": """(element_at(array_sort(array_agg({0})), (count({0}) + 1) / 2)
            + element_at(array_sort(array_agg({0})), (count({0}) + 2) / 2)) / 2""",
        "hashes_by_key": """SELECT producer, primary_label, is_whole, side, t.key, t.hash
            FROM {0} CROSS JOIN UNNEST(CAST(json_parse(hashes) AS MAP(VARCHAR, VARCHAR))) AS t (key, hash)""",
    },
}


def statements(engine: str, url: str, tables: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the statements for an engine, in order.

    Args:
        engine: One of ENGINES of published_tables.
        url: The address of the store.
        tables: The files of each of its tables, by address: DuckDB reads this snapshot of them.
    """
    for table, names in tables.items():
        yield _table(engine, url, table, names)
    yield from views(engine, tables).values()


def views(engine: str, tables: Collection[str]) -> dict[str, str]:
    """Return the statement of each view by its name, in order.

    Tables that a store lacks, because no row came, are empty in them.
    """
    text = (files("chiplog_collector.store") / "engine_views.sql").read_text(encoding="utf-8")
    lacking = {f"store_{name}": columns for name, columns in published_columns().items() if name not in tables}
    found = {}
    for statement in sqlglot.parse(text, dialect=_SOURCE):
        assert isinstance(statement, expressions.Create)
        statement.set("replace", True)
        if engine == "spark":
            statement.set("properties", expressions.Properties(expressions=[expressions.TemporaryProperty()]))
        written = statement.transform(_written_for(engine)).transform(_without(lacking))
        name = statement.this.name
        found[name] = _counted(written, tables, is_once=name != _DOUBLED).sql(dialect=engine, comments=False)
    return found


def spark_columns(table: str) -> str:
    """Return the columns of a table, and its partition, as a schema of Spark."""
    columns = published_columns()[table] | {"day": "DATE"}
    types = {name: expressions.DataType.build(kind, dialect=_SOURCE) for name, kind in columns.items()}
    return ", ".join(f"`{name}` {kind.sql(dialect='spark')}" for name, kind in types.items())


@functools.cache
def published_columns() -> dict[str, dict[str, str]]:
    """Return the columns of each table of a store, with their types in DuckDB."""
    columns = {COMPLETE: _COMPLETION}
    with duckdb.connect() as engine:
        engine.execute(tables_sql())
        engine.execute(rollups_sql())
        given = {"log": "", "after": 0, "until": 0}
        for table in PUBLISHED:
            rows = rows_of(table)
            types = _described(engine, rows, given)
            columns[table.name] = _described(
                engine, published_query(table, types, series_sql(rows) if table.is_series else rows), given
            )
    return columns


def _described(engine: duckdb.DuckDBPyConnection, query: str, given: Mapping[str, object]) -> dict[str, str]:
    used = {name: value for name, value in given.items() if f"${name}" in query}
    found = engine.execute(f"SELECT column_name, column_type FROM (DESCRIBE {query})", used)
    return dict(found.fetchall())


def _written_for(engine: str) -> Callable[[expressions.Expr], expressions.Expr]:
    """Return the replacement of the functions that have a text of their own in an engine."""
    written = _WRITTEN[engine]

    def replaced(node: expressions.Expr) -> expressions.Expr:
        if isinstance(node, expressions.Table) and isinstance(node.this, expressions.Anonymous):
            return _named(_parsed(written[node.this.name], node.this, engine), "written")
        name = node.name.lower() if isinstance(node, expressions.Anonymous) else node.key
        return _parsed(written[name], node, engine) if name in written else node

    return replaced


def _parsed(text: str, function: expressions.Expr, engine: str) -> expressions.Expr:
    given = function.expressions if isinstance(function, expressions.Anonymous) else [function.this]
    return sqlglot.parse_one(text.format(*(argument.sql(dialect=engine) for argument in given)), dialect=engine)


def _without(lacking: Mapping[str, Mapping[str, str]]) -> Callable[[expressions.Expr], expressions.Expr]:
    """Return the replacement of tables that a store lacks by a query of no row."""

    def replaced(node: expressions.Expr) -> expressions.Expr:
        if not isinstance(node, expressions.Table) or node.name not in lacking:
            return node
        nulls = [f'CAST(NULL AS {kind}) AS "{name}"' for name, kind in lacking[node.name].items()]
        return expressions.select(*nulls, dialect=_SOURCE).where("false").subquery(node.alias_or_name)

    return replaced


def _counted(statement: expressions.Expr, tables: Collection[str], *, is_once: bool) -> expressions.Expr:
    """Return a statement that reads no deleted row; is_once: and no event that a log with a smaller ID has, too."""
    for node in list(statement.find_all(expressions.Table)):  # a list: what replaces a table reads it, too
        table = node.name.removeprefix("store_")
        if table == node.name or table not in tables:
            continue
        conditions = []
        if DELETIONS in tables and table not in UNOWNED:
            conditions.append(live_rows(table, deletions=f"store_{DELETIONS}"))
        if is_once and {"producer", "seq"} <= published_columns()[table].keys():
            conditions.append(_ONCE)  # safeguard: engines-count-doubled-events-once
        if conditions:
            rows = f"SELECT f.* FROM {node.name} f WHERE {' AND '.join(conditions)}"
            node.replace(_named(sqlglot.parse_one(rows, dialect=_SOURCE), node.alias_or_name))
    return statement


def _named(query: expressions.Expr, name: str) -> expressions.Subquery:
    return expressions.Subquery(this=query, alias=expressions.TableAlias(this=expressions.to_identifier(name)))


def _table(engine: str, url: str, table: str, names: Sequence[str]) -> str:
    address = expressions.Literal.string(f"{url}/{table}").sql(dialect=engine)
    if engine == "duckdb":
        listed = ", ".join(expressions.Literal.string(name).sql(dialect=engine) for name in names)
        source = f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"
        # DuckDB 2.0 takes extremes that leave NaN out for those of all values. It has none of what TRY returns.
        numbers = [f"try({name}) AS {name}" for name, kind in published_columns()[table].items() if kind == "DOUBLE"]
        replaced = f" REPLACE ({', '.join(numbers)})" if numbers else ""  # safeguard: engines-find-nan
        return f"CREATE OR REPLACE VIEW store_{table} AS SELECT *{replaced} FROM {source}"
    if engine == "spark":
        return f"CREATE OR REPLACE TEMPORARY VIEW store_{table} USING delta OPTIONS (path {address})"
    if engine == "databricks":
        return f"CREATE TABLE IF NOT EXISTS store_{table} USING DELTA LOCATION {address}"
    return f"CALL system.register_table(CURRENT_SCHEMA, 'store_{table}', {address})"
