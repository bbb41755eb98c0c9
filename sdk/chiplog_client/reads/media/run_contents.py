"""Which media and artifacts a run has: keys, names and versions, without what they contain."""

from typing import Any

from chiplog_client.client import Client

# The view `media` reads the metadata of all rows, and whether each content is stored: with 100,000 images a second.
MEDIA = "base.media f JOIN base.identified i ON i.producer = f.producer JOIN base.names n ON n.id = f.key"
_KEYS = f"""
SELECT n.name AS key, kind, count(*) AS n, min(step) AS first_step, max(step) AS last_step, any_value(sha256) AS one
FROM {MEDIA} WHERE run_id = $run AND kind <> 'mask' GROUP BY n.name, kind ORDER BY n.name, kind
"""
# Values in the rows of tables.
_PARTS = f"""
SELECT DISTINCT n.name AS key, kind FROM {MEDIA}
WHERE run_id = $run AND sha256 IN (SELECT unnest($digests::VARCHAR[])) AND json_exists(metadata, '$.row')
"""
_ARTIFACTS = """
SELECT project, name, 'v' || version AS version, type, aliases,
       list_contains(made_by, $run) AS is_made, list_contains(used_by, $run) AS is_used
FROM artifacts WHERE list_contains(made_by, $run) OR list_contains(used_by, $run)
ORDER BY project, name, artifacts.version
"""


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
