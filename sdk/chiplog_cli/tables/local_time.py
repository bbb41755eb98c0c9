"""Queries in this machine's time zone: the views' times get a zone, and a literal without one is local.

The query reads copies of the views, built with WITH, whose times are TIMESTAMP WITH TIME ZONE, in a session of this
zone. So a comparison, `now()`, `date_trunc` and a cast to DATE all use local time.
"""

import re
from datetime import UTC, datetime

import click

from chiplog_client.client import Client

_TIMES = """
SELECT table_name AS view, list(column_name ORDER BY column_index) AS times, current_setting('TimeZone') AS zone
FROM duckdb_columns() WHERE database_name = current_database() AND schema_name = 'main' AND data_type = 'TIMESTAMP'
GROUP BY table_name
"""
# These describe a query or a table; their rows hold no times.
_IS_PLAIN = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:describe|show|explain|summarize)\b", re.IGNORECASE | re.DOTALL)


def zone_name() -> str:
    """Return the IANA name of this machine's time zone, as DuckDB finds it. Raises UsageError."""
    import duckdb

    moments = [datetime(datetime.now().year, month, 1, 12, tzinfo=UTC) for month in (1, 7)]  # winter and summer
    query = "SELECT current_setting('TimeZone'), timezone(current_setting('TimeZone'), ?::TIMESTAMPTZ)"
    with duckdb.connect() as connection:
        rows = [connection.execute(query, [moment.isoformat()]).fetchone() for moment in moments]
    name = ""
    for moment, row in zip(moments, rows, strict=True):
        name, local = row or ("", None)
        if local != moment.astimezone().replace(tzinfo=None):
            message = "--local: the database does not know the time zone of this machine; set TZ to an IANA name, "
            raise click.UsageError(message + "as in TZ=Europe/Berlin")
    return name


def localized(client: Client, query: str, zone: str) -> str:
    """Return the query over views whose times have a zone. Raises ClickException if the collector lacks zones."""
    if _IS_PLAIN.match(query):
        return query
    rows = client.sql(_TIMES, time_zone=zone).rows()
    if any(row["zone"] != zone for row in rows):
        message = "--local needs a collector of this release; install the same one there, or ask in UTC"
        raise click.ClickException(message)
    words = {word.lower() for word in re.findall(r"\w+", query)}
    copies = []
    for row in rows:
        if row["view"].lower() in words:
            times = ", ".join(f"timezone('UTC', {name}) AS {name}" for name in row["times"])
            copies.append(f"{row['view']} AS (SELECT * REPLACE ({times}) FROM main.{row['view']})")
    if not copies:  # safeguard: literal-is-local
        return query
    return f"WITH {', '.join(copies)}\nSELECT * FROM (\n{_without_end(query)}\n)"


def _without_end(query: str) -> str:
    """Return a query without the semicolon and the comments at its end."""
    import duckdb

    starts = [start for start, kind in duckdb.tokenize(query) if kind != duckdb.token_type.comment]
    while starts and query[starts[-1]] == ";":
        query = query[: starts.pop()]
    return query
