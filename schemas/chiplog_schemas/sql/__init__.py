"""The SQL text of the database's tables and views, and their migration number."""

from importlib.resources import files

MIGRATION = 5  # grows with every change of tables.sql; a database of a lower one is rebuilt from the log


def tables_sql() -> str:
    """Return the statements that make an empty database of this migration."""
    return (files("chiplog_schemas.sql") / "tables.sql").read_text(encoding="utf-8")


def views_sql() -> str:
    """Return the statements that make or replace the views."""
    return (files("chiplog_schemas.sql") / "views.sql").read_text(encoding="utf-8")
