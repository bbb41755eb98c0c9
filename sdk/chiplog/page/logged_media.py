"""Media that a run logged: their keys, those of a key at one step, and what describes a content."""

from collections.abc import Sequence
from typing import Any

import orjson

from chiplog.page.contents import shown_type
from chiplog.page.parameters import CHOSEN_LABELS
from chiplog.query.client import Client

ROWS_MAX = 200  # values of one key at one step
# A mask of an image, or a value in the row of a table, is shown with the whole.
_WHOLE = "kind <> 'mask' AND NOT json_exists(metadata, '$.row')"
_KEYS = f"""
SELECT key, kind, count(*) AS n, count(*) FILTER (is_stored) AS n_stored, count(DISTINCT label) AS n_labels,
       min(step) AS first_step, max(step) AS last_step
FROM media WHERE run_id = $run AND {_WHOLE} GROUP BY key, kind ORDER BY key, kind
"""
_STEPS = f"""
WITH steps AS (
    SELECT DISTINCT step FROM media
    WHERE run_id = $run AND key = $key AND kind = $kind AND {CHOSEN_LABELS} AND {_WHOLE}
), chosen AS (SELECT coalesce(max(step) FILTER (step <= $step), min(step)) AS step FROM steps)
SELECT count(*) AS n_steps, any_value(c.step) AS step,
       max(s.step) FILTER (s.step < c.step) AS before, min(s.step) FILTER (s.step > c.step) AS after
FROM steps s, chosen c
"""
# Of several attempts of a label the newest one counts, and of several values of a step the last one.
_ROWS = """
SELECT label, attempt, key, try_cast(metadata->>'$.item' AS BIGINT) AS item, metadata::VARCHAR AS metadata, bytes,
       sha256, is_stored
FROM media
WHERE run_id = $run AND {keys} AND kind = $kind AND step = $step AND {chosen} AND NOT json_exists(metadata, '$.row')
QUALIFY attempt = max(attempt) OVER (PARTITION BY label)
    AND row_number() OVER (PARTITION BY label, key, attempt, item ORDER BY ts DESC) = 1
ORDER BY length(label), label, item, key LIMIT {limit}
"""
_DESCRIBED = """
SELECT sha256, arg_max(kind, ts) AS kind, arg_max(metadata->>'$.format', ts) AS format,
       arg_max(bytes, ts) AS bytes
FROM media WHERE run_id = $run AND list_contains($digests::VARCHAR[], sha256) GROUP BY sha256
"""


def read_media_keys(client: Client, run: str) -> list[dict[str, Any]]:
    """Return a row for each key and kind of media of a run. Raises QueryError."""
    return client.sql(_KEYS, {"run": run}).rows()


def read_media(client: Client, run: str, key: str, kind: str, step: int, labels: Sequence[str] = ()) -> dict[str, Any]:
    """Return the media of a key at one step.

    Args:
        client: The collector.
        run: ID of the run.
        key: Its name.
        kind: Its kind, as in the view `media`.
        step: The last step with such media up to this one is chosen; the first one if there is none.
        labels: Only of these; of all if empty.

    Returns:
        `n_steps` with such media, the chosen `step` and those `before` and `after` it; `rows` of label, attempt, item
        (the place in a list), metadata, bytes, sha256, is_stored, type (as a browser shows it, else null) and masks.
        `is_cut`: whether there are more rows.

    Raises:
        QueryError: A query has no result.
    """
    named = {"run": run, "key": key, "kind": kind, "labels": list(labels)}
    [steps] = client.sql(_STEPS, {**named, "step": step}).rows()
    if not steps["n_steps"]:
        return {**steps, "rows": [], "is_cut": False}
    named["step"] = steps["step"]
    rows = _described(client, "key = $key", ROWS_MAX + 1, named)
    masks: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    if any("masks" in row["metadata"] for row in rows):
        for mask in _described(client, "starts_with(key, $key || '/')", 10 * ROWS_MAX, {**named, "kind": "mask"}):
            mask["name"] = mask["key"][len(key) + 1 :]
            masks.setdefault((mask["label"], mask["attempt"], mask["item"]), []).append(mask)
    for row in rows:
        names = row["metadata"].get("masks", ())
        of_row = masks.get((row["label"], row["attempt"], row["item"]), ())
        row["masks"] = [mask for mask in of_row if mask["name"] in names]
    return {**steps, "rows": rows[:ROWS_MAX], "is_cut": len(rows) > ROWS_MAX}


def _described(client: Client, keys: str, limit: int, named: dict[str, Any]) -> list[dict[str, Any]]:
    rows = client.sql(_ROWS.format(keys=keys, chosen=CHOSEN_LABELS, limit=limit), named).rows()
    for row in rows:
        row["metadata"] = orjson.loads(row["metadata"])
        row["type"] = shown_type(named["kind"], str(row["metadata"].get("format")))
    return rows


def describe_contents(client: Client, run: str, digests: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return kind, format, bytes and type of contents, by digest; only of those that the run logged."""
    rows = client.sql(_DESCRIBED, {"run": run, "digests": list(digests)}).rows() if digests else []
    return {row.pop("sha256"): {**row, "type": shown_type(row["kind"], row["format"])} for row in rows}
