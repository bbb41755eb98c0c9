"""Texts of a run: those of a step, or those that contain some words."""

from collections.abc import Sequence
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.parameters import CHOSEN_LABELS, STEP_MAX

CHARS_MAX = 4_000  # of a text among others; a single label's text is sent whole
ROWS_MAX = 100
# Of several attempts of a label the newest one counts.
_TEXTS = f"""
WITH found AS (
    SELECT label, attempt, rank, step, ts, value FROM texts
    WHERE run_id = $run AND key = $key AND {CHOSEN_LABELS}
      AND ($search = '' OR contains(lower(value), lower($search)))
    QUALIFY row_number() OVER (PARTITION BY label, step ORDER BY attempt DESC, seq DESC) = 1
)
"""
_STEPS = (
    _TEXTS
    + """
, steps AS (SELECT DISTINCT step FROM found),
chosen AS (SELECT coalesce(max(step) FILTER (step <= $step), min(step)) AS step FROM steps)
SELECT count(*) AS n_steps, min(s.step) AS first_step, max(s.step) AS last_step, any_value(c.step) AS step,
       max(s.step) FILTER (s.step < c.step) AS before, min(s.step) FILTER (s.step > c.step) AS after
FROM steps s, chosen c
"""
)
_ROWS = (
    _TEXTS
    + """
SELECT label, attempt, step, ts, length(value) AS n_chars, start AS n_before, substr(value, start + 1, $chars) AS value
FROM (
    SELECT *, CASE WHEN length(value) <= $chars OR $search = '' THEN 0
                   ELSE greatest(instr(lower(value), lower($search)) - $chars // 4, 0) END AS start
    FROM found WHERE $step IS NULL OR step = $step
) ORDER BY step DESC, rank NULLS LAST, length(label), label LIMIT $limit
"""
)


def read_texts(
    client: Client,
    run: str,
    key: str,
    step: int | None,
    labels: Sequence[str] = (),
    search: str = "",
    *,
    limit: int = ROWS_MAX,
) -> dict[str, Any]:
    """Return the texts of a key at one step, or those of all steps, the newest first.

    Args:
        client: The collector.
        run: ID of the run.
        key: Name of the texts.
        step: The last step with texts up to this one is chosen; the first one if there is none. None for all steps.
        labels: Only of these; of all if empty. The texts of a single one are whole.
        search: Only texts with these words, in any case, of all steps.
        limit: Texts at most.

    Returns:
        `n_steps` with texts, `first_step`, `last_step`, the chosen `step` and those `before` and `after` it; `rows` of
        label, attempt, step, ts, value and n_chars, the whole length; n_before, the characters before the part that is
        sent. `is_cut`: whether there are more rows.

    Raises:
        QueryError: A query has no result.
    """
    named = {"run": run, "key": key, "labels": list(labels), "search": search}
    [steps] = client.sql(_STEPS, {**named, "step": STEP_MAX if step is None else step}).rows()
    chosen = None if search or step is None else steps["step"]
    if not steps["n_steps"]:
        return {**steps, "rows": [], "is_cut": False}
    chars = CHARS_MAX if search or len(labels) != 1 else 1 << 20
    rows = client.sql(_ROWS, {**named, "step": chosen, "chars": chars, "limit": limit + 1}).rows()
    return {**steps, "rows": rows[:limit], "is_cut": len(rows) > limit}
