"""Names to choose from: those in the config and summary of runs, of metrics, of views. And the number of runs."""

from chiplog_client.client import Client
from chiplog_client.reads.runs.runs_query import MAPS

NAMES_MAX = 2_000
_NAMES = f"SELECT key, count(*) AS n FROM {{view}} GROUP BY key ORDER BY n DESC, key LIMIT {NAMES_MAX}"
_METRICS = f"""
SELECT name AS key FROM reads.series WHERE is_metric
GROUP BY name ORDER BY count(DISTINCT run_id) DESC, name LIMIT {NAMES_MAX}
"""
_VIEW_COLUMNS = """
SELECT table_name AS view, list(column_name ORDER BY column_index) AS columns FROM duckdb_columns()
WHERE schema_name = 'main' AND NOT internal GROUP BY table_name ORDER BY table_name
"""


def read_known_names(client: Client) -> dict[str, list[str]]:
    """Return the names in `config`, in `summary` and of metrics (`curve`), those of most runs first.

    Raises:
        QueryError: A query has no result.
    """
    queries = {name: _NAMES.format(view=view) for name, view in MAPS.items()} | {"curve": _METRICS}
    return {name: [row["key"] for row in client.sql(query).rows()] for name, query in queries.items()}


def count_runs(client: Client) -> int:
    """Return how many runs there are. Raises QueryError."""
    [counted] = client.sql("SELECT count(*) AS n FROM runs").rows()
    n: int = counted["n"]
    return n


def read_view_columns(client: Client) -> dict[str, list[str]]:
    """Return the names of the columns of each documented view. Raises QueryError."""
    return {row["view"]: row["columns"] for row in client.sql(_VIEW_COLUMNS).rows()}
