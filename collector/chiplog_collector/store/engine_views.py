"""The statements that give another engine chiplog's names over a store: its tables, and views with the same columns."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

import sqlglot
from sqlglot import expressions

RAN = ("duckdb", "spark")  # engines that tests run; for the others the statements are parsed


def statements(engine: str, url: str, tables: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the statements for an engine, in order.

    Args:
        engine: One of ENGINES of published_tables.
        url: The address of the store.
        tables: The files of each of its tables, by address: DuckDB reads this snapshot of them.
    """
    for table, names in tables.items():
        yield _table(engine, url, table, names)
    yield from views(engine, tables)


def views(engine: str, tables: Mapping[str, object]) -> Iterator[str]:
    """Yield the statements of those views whose tables the store has."""
    known = {f"store_{table}" for table in tables}
    text = (files("chiplog_collector.store") / "engine_views.sql").read_text(encoding="utf-8")
    for statement in sqlglot.parse(text, dialect="duckdb"):
        assert isinstance(statement, expressions.Create)
        own = {common.alias for common in statement.find_all(expressions.CTE)}
        if {table.name for table in statement.find_all(expressions.Table)} - own - {statement.this.name} <= known:
            known.add(statement.this.name)
            statement.set("replace", True)
            if engine == "spark":
                properties = expressions.Properties(expressions=[expressions.TemporaryProperty()])
                statement.set("properties", properties)
            yield statement.sql(dialect=engine, comments=False)


def _table(engine: str, url: str, table: str, names: Sequence[str]) -> str:
    address = expressions.Literal.string(f"{url}/{table}").sql(dialect=engine)
    if engine == "duckdb":
        listed = ", ".join(expressions.Literal.string(name).sql(dialect=engine) for name in names)
        source = f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"
        return f"CREATE OR REPLACE VIEW store_{table} AS SELECT * FROM {source}"
    if engine == "spark":
        return f"CREATE OR REPLACE TEMPORARY VIEW store_{table} USING delta OPTIONS (path {address})"
    if engine == "databricks":
        return f"CREATE TABLE IF NOT EXISTS store_{table} USING DELTA LOCATION {address}"
    return f"CALL system.register_table(CURRENT_SCHEMA, 'store_{table}', {address})"
