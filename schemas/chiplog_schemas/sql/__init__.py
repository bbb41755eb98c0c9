"""The SQL text of the database's tables, views and macros, and their migration number."""

from importlib.resources import files

MIGRATION = 14  # grows with every change of tables.sql; a database of a lower one is rebuilt from the log
ROLLUPS = 1  # grows with every change of the rollups' SQL; those of another number are computed again from the tables
READS = 5  # grows with every change of reads.sql: a client asks only a collector that has its number
LEVELS = (16, 256)  # steps in a bucket of base.metric_levels; curves.sql has them, too
LARGE = ("metrics", "phases", "system", "texts", "histograms", "console")  # by far the most rows: a store has the old
WITH_RECENT = LARGE[:3]  # those whose last rows are in a table of another name
SERIES = {"metrics": "metric_series", "phases": "phase_series"}  # the tables that have a row for each series of others
# Each file reads from those before it.
# safeguard: macros-replaced-at-start
_REPLACED = ("views.sql", "analysis.sql", "curves.sql", "macros.sql", "reads.sql")


def tables_sql() -> str:
    """Return the statements that make an empty database of this migration."""
    return _text("tables.sql")


def rollups_sql() -> str:
    """Return the statements that compute the rollups from the tables."""
    return _text("rollups.sql").format(
        version=ROLLUPS,
        metric_series=series_sql("FROM base.metrics UNION ALL FROM base.metrics_recent"),
        phase_series=series_sql("FROM base.phases UNION ALL FROM base.phases_recent"),
        metric_levels=levels_sql("FROM base.metrics"),
    )


def series_sql(facts: str) -> str:
    """Return the query that sums up the series of a query of facts: (producer, key, step, seq, ts, value)."""
    return f"WITH facts AS ({facts})\n{_text('series.sql')}"


def merged_series_sql(parts: str) -> str:
    """Return the query that merges several rows of a series into one."""
    return f"WITH parts AS ({parts})\n{_text('series_merged.sql')}"


def levels_sql(facts: str) -> str:
    """Return the query that makes curves of lower resolution of a query of facts."""
    levels = "UNION ALL\n".join(f"({_text('levels.sql').format(width=width)})\n" for width in LEVELS)
    return f"WITH facts AS ({facts})\n{levels}"


def views_sql() -> str:
    """Return the statements that make or replace the views and macros."""
    return "\n".join(map(_text, _REPLACED))


def _text(name: str) -> str:
    return (files("chiplog_schemas.sql") / name).read_text(encoding="utf-8")
