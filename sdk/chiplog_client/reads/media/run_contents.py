"""Which media and artifacts a run has: keys, names and versions, without what they contain."""

from typing import Any

from chiplog_client.client import Client

_KEYS = """
SELECT key, kind, count(*) AS n, min(step) AS first_step, max(step) AS last_step, any_value(sha256) AS one
FROM reads.media WHERE run_id = $run AND kind <> 'mask' GROUP BY key, kind ORDER BY key, kind
"""
# Values in the rows of tables.
_PARTS = """
SELECT DISTINCT key, kind FROM reads.media
WHERE run_id = $run AND sha256 IN (SELECT unnest($digests::VARCHAR[])) AND json_exists(metadata, '$.row')
"""
_KINDS = ("histograms", "texts")
_OF_KIND = """
SELECT key, count(*) AS n, count(DISTINCT label) AS n_labels, min(step) AS first_step, max(step) AS last_step
FROM {kind} WHERE run_id = $run GROUP BY key ORDER BY key
"""
_ARTIFACTS = """
SELECT project, name, 'v' || version AS version, type, aliases,
       list_contains(made_by, $run) AS is_made, list_contains(used_by, $run) AS is_used
FROM artifacts WHERE list_contains(made_by, $run) OR list_contains(used_by, $run)
ORDER BY project, name, artifacts.version
"""


def read_logged_keys(client: Client, run: str) -> dict[str, list[dict[str, Any]]]:
    """Return keys of `histograms`, `texts` and `media` of a run, each with its number and steps. Raises QueryError."""
    found = {kind: client.sql(_OF_KIND.format(kind=kind), {"run": run}).rows() for kind in _KINDS}
    return {**found, "media": read_media_keys(client, run)}


def read_media_keys(client: Client, run: str) -> list[dict[str, Any]]:
    """Return a row for each key and kind of media of a run, without the parts of others. Raises QueryError."""
    rows = client.sql(_KEYS, {"run": run}).rows()
    tables = tuple(f"{row['key']}/" for row in rows if row["kind"] == "table")
    digests = [row.pop("one") for row in rows]
    below = [one for row, one in zip(rows, digests, strict=True) if row["key"].startswith(tables)]
    parts = client.sql(_PARTS, {"run": run, "digests": below}).rows() if below else []
    return [row for row in rows if {"key": row["key"], "kind": row["kind"]} not in parts]


def read_artifacts(client: Client, run: str) -> list[dict[str, Any]]:
    """Return a row for each version that a run made or used. Raises QueryError."""
    return client.sql(_ARTIFACTS, {"run": run}).rows()
