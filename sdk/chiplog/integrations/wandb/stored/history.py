"""Values of a stored run by step, as W&B's history has them: one label for each key, the last value of each step."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any

from chiplog.integrations.adapter import reads
from chiplog.integrations.wandb.errors import CommError

# The label of a key is the primary, else that of the lowest rank that has it, as in the view run_summary.
_QUERY = """
WITH chosen AS (
    SELECT key, arg_min(label, (label IS DISTINCT FROM $primary, coalesce(rank, 2147483647), label)) AS label
    FROM keys WHERE run_id = $run GROUP BY key
), others AS (
    FROM (
        SELECT key, label, rank, step, ts, attempt, seq, to_json(value)::VARCHAR AS other FROM texts WHERE run_id = $run
        UNION ALL
        SELECT key, label, rank, step, ts, attempt, seq,
               to_json({{'_type': 'histogram', 'values': counts, 'bins': edges}})::VARCHAR AS other
        FROM histograms WHERE run_id = $run
    )
    QUALIFY dense_rank() OVER (
        PARTITION BY key ORDER BY label IS DISTINCT FROM $primary, coalesce(rank, 2147483647), label
    ) = 1
), found AS (
    SELECT m.key, m.step, m.ts, m.attempt, m.seq, m.value, NULL AS other
    FROM metrics m JOIN chosen c ON c.key = m.key AND c.label = m.label WHERE m.run_id = $run
    UNION ALL
    SELECT key, step, ts, attempt, seq, NULL, other FROM others
), asked AS (
    FROM found WHERE step >= $first AND step < $end AND ($n_keys = 0 OR list_contains($keys, key))
), steps AS (
    SELECT step, row_number() OVER (ORDER BY step) - 1 AS n, count(*) OVER () AS n_all
    FROM (SELECT step FROM asked GROUP BY step HAVING count(DISTINCT key) >= $n_keys)
)
SELECT a.step, a.ts, a.key, a.value, a.other FROM asked a JOIN steps s ON s.step = a.step WHERE {kept}
ORDER BY a.step, a.attempt, a.seq
"""
_SAMPLED = "s.n_all <= $n OR s.n = 0 OR s.n * $n // s.n_all <> (s.n - 1) * $n // s.n_all"
_PAGE = "s.n < $n"
_FIRST, _END = -(2**63), 2**63 - 1
_PAGE_STEPS_MIN = 10_000  # of one query: a page of W&B's 1,000 would cost a query for each thousand steps
_OWN = ("_step", "_timestamp", "_runtime")  # in each row


def ask(query: str, params: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a SELECT. Raises CommError."""
    try:
        return reads.rows(query, params)
    except Exception as error:
        raise CommError(f"runs cannot be read: {error}") from error


def sampled(run_id: str, run: Mapping[str, Any], keys: Sequence[str] | None, samples: int) -> list[dict[str, Any]]:
    """Return at most `samples` steps, at even distances. run: its row of the view `runs`."""
    return _read(_SAMPLED, run_id, run, keys, max(1, int(samples)), _FIRST, _END)


def scanned(
    run_id: str,
    run: Mapping[str, Any],
    keys: Sequence[str] | None,
    page_steps: int,
    first: int | None,
    end: int | None,
) -> Iterator[dict[str, Any]]:
    """Yield all steps from `first` to below `end`. run: its row of the view `runs`."""
    n, at = max(int(page_steps), _PAGE_STEPS_MIN), _FIRST if first is None else int(first)
    asked = None if keys is None else [*keys, "_step"]
    while rows := _read(_PAGE, run_id, run, asked, n, at, _END if end is None else int(end)):
        at = rows[-1]["_step"] + 1
        yield from (row if keys is None else {key: row[key] for key in keys if key in row} for row in rows)
        if len(rows) < n:
            return


def _read(
    kept: str, run_id: str, run: Mapping[str, Any], keys: Sequence[str] | None, n: int, first: int, end: int
) -> list[dict[str, Any]]:
    logged = [] if keys is None else [key for key in keys if key not in _OWN]
    params = {"run": run_id, "primary": run["primary_label"], "first": first, "end": end, "n": n}
    rows = ask(_QUERY.format(kept=kept), {**params, "keys": logged, "n_keys": len(set(logged))})
    began = run["created_at"].replace(tzinfo=UTC).timestamp()
    found: list[dict[str, Any]] = []
    for row in rows:
        if not found or found[-1]["_step"] != row["step"]:
            found.append({"_step": row["step"]})
        at = row["ts"].replace(tzinfo=UTC).timestamp()
        value = row["value"] if row["other"] is None else json.loads(row["other"])
        found[-1].update({row["key"]: value, "_step": row["step"], "_timestamp": at, "_runtime": at - began})
    return found if keys is None else [{key: row[key] for key in keys if key in row} for row in found]
