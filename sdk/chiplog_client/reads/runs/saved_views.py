"""What people saved under a name on the page: views of the table of runs and of a run, and queries."""

import json
from typing import Any
from urllib.parse import quote, unquote

from chiplog_client.client import Client

RUNS, RUN, SQL = "runs", "run", "sql"  # the first part of a name
_VIEWS = "SELECT name, view, ts FROM saved_views WHERE starts_with(name, $prefix) ORDER BY name"


def read_saved_views(client: Client, prefix: str = "") -> list[dict[str, Any]]:
    """Return `name`, `view` and `ts` of the saved views whose names begin with a text. Raises QueryError."""
    return [{**row, "view": json.loads(row["view"])} for row in client.sql(_VIEWS, {"prefix": prefix}).rows()]


def describe_view(row: dict[str, Any]) -> dict[str, Any]:
    """Return what a row of `read_saved_views` is, as the page names it.

    Returns:
        `kind`, RUNS, RUN or SQL, or "" for another; `project` of a run's view, else None; `name` without these;
        `address` below that of the page, with RUN for the run; None if the page does not know such a view.
    """
    kind, _, name = row["name"].partition("/")
    view = row["view"] if isinstance(row["view"], dict) else {}
    project, address = None, None
    if kind == RUNS:
        address = _address("runs", view.get("query"))
    elif kind == RUN:
        folder, _, name = name.partition("/")
        project = unquote(folder)
        tab = view.get("tab")
        address = _address(f"run/RUN/{tab}", view.get("query")) if isinstance(tab, str) else None
    elif kind == SQL and isinstance(view.get("query"), str):
        address = f"#/sql?q={quote(view['query'])}"
    elif kind != SQL:
        kind, name = "", row["name"]
    return {"kind": kind, "project": project, "name": name, "address": address}


def _address(path: str, query: Any) -> str:
    return f"#/{path}?{query}" if query else f"#/{path}"
