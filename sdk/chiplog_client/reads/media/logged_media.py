"""Media that a run logged: those of a key at one step or at all, and what describes a content."""

from collections.abc import Sequence
from typing import Any

import orjson

from chiplog_client.client import Client
from chiplog_client.reads.media.shown_types import shown_type
from chiplog_client.reads.parameters import CHOSEN_LABELS, STEP_MAX

ROWS_MAX = 200  # values of one key at one step
MASKS_MAX = 10 * ROWS_MAX
_STORED = "EXISTS (FROM reads.stored_contents s WHERE s.sha256 = f.sha256 AND s.bytes = f.bytes)"
_STEPS = f"""
WITH steps AS (
    SELECT DISTINCT step FROM reads.media WHERE run_id = $run AND key = $key AND kind = $kind AND {CHOSEN_LABELS}
), chosen AS (SELECT coalesce(max(step) FILTER (step <= $step), min(step)) AS step FROM steps)
SELECT count(*) AS n_steps, any_value(c.step) AS step,
       max(s.step) FILTER (s.step < c.step) AS before, min(s.step) FILTER (s.step > c.step) AS after
FROM steps s, chosen c
"""
# Of several attempts of a label the newest one counts, and of several values of a step the last one.
_ROWS = f"""
SELECT label, attempt, step, key, try_cast(metadata->>'$.item' AS BIGINT) AS item, metadata, bytes, sha256,
       {_STORED} AS is_stored
FROM reads.media f
WHERE run_id = $run AND key IN (SELECT unnest($keys::VARCHAR[])) AND kind = $kind AND {{at}}
  AND {CHOSEN_LABELS} AND NOT json_exists(metadata, '$.row')
QUALIFY attempt = max(attempt) OVER (PARTITION BY label, step)
    AND row_number() OVER (PARTITION BY label, step, key, attempt, item ORDER BY seq DESC) = 1
ORDER BY step DESC, length(label), label, item, key LIMIT $limit
"""
_DESCRIBED = f"""
SELECT sha256, arg_max(kind, ts) AS kind, arg_max(metadata->>'$.format', ts) AS format, arg_max(bytes, ts) AS bytes,
       bool_or({_STORED}) AS is_stored
FROM reads.media f WHERE run_id = $run AND sha256 {{chosen}} GROUP BY sha256
"""


def read_media(
    client: Client,
    run: str,
    key: str,
    kind: str,
    step: int | None,
    labels: Sequence[str] = (),
    *,
    limit: int = ROWS_MAX,
) -> dict[str, Any]:
    """Return the media of a key at one step, or those of all steps, the newest first.

    Args:
        client: The collector.
        run: ID of the run.
        key: Its name.
        kind: Its kind, as in the view `media`.
        step: The last step with such media up to this one is chosen; the first one if there is none. None for all
            steps.
        labels: Only of these; of all if empty.
        limit: Media at most.

    Returns:
        `n_steps` with such media, the chosen `step` and those `before` and `after` it; `rows` of label, attempt, step,
        item (the place in a list), metadata, bytes, sha256, is_stored, type (as a browser shows it, else null) and,
        of one step, masks. `is_cut`: whether there are more rows.

    Raises:
        QueryError: A query has no result.
    """
    named: dict[str, Any] = {"run": run, "kind": kind, "labels": list(labels)}
    [steps] = client.sql(_STEPS, {**named, "key": key, "step": STEP_MAX if step is None else step}).rows()
    if not steps["n_steps"]:
        return {**steps, "rows": [], "is_cut": False}
    if step is not None:
        named["step"] = steps["step"]
    rows = _described(client, [key], limit + 1, named)
    if step is None:
        return {**steps, "rows": rows[:limit], "is_cut": len(rows) > limit}
    layers = {f"{key}/{name}": name for row in rows for name in row["metadata"].get("masks", ())}
    masks: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for mask in _described(client, list(layers), MASKS_MAX, {**named, "kind": "mask"}) if layers else ():
        place = mask["label"], mask["attempt"], mask["item"]
        masks.setdefault(place, []).append({**mask, "name": layers[mask["key"]]})
    for row in rows:
        row["masks"] = masks.get((row["label"], row["attempt"], row["item"]), [])
    return {**steps, "rows": rows[:limit], "is_cut": len(rows) > limit}


def _described(client: Client, keys: list[str], limit: int, named: dict[str, Any]) -> list[dict[str, Any]]:
    at = "step = $step" if "step" in named else "true"
    rows = client.sql(_ROWS.format(at=at), {**named, "keys": keys, "limit": limit}).rows()
    for row in rows:
        row["metadata"] = orjson.loads(row["metadata"])
        row["type"] = shown_type(named["kind"], str(row["metadata"].get("format")))
    return rows


def describe_contents(client: Client, run: str, digests: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return kind, format, bytes, is_stored and type of contents, by digest; only of those that the run logged."""
    # A single digest is a filter of the scan, which takes a quarter of the time of a join.
    chosen = "= ($digests::VARCHAR[])[1]" if len(digests) == 1 else "IN (SELECT unnest($digests::VARCHAR[]))"
    named = {"run": run, "digests": list(digests)}
    rows = client.sql(_DESCRIBED.format(chosen=chosen), named).rows() if digests else []
    return {row.pop("sha256"): {**row, "type": shown_type(row["kind"], row["format"])} for row in rows}
