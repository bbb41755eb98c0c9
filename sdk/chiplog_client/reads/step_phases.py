"""The phases of one step: how long each label took, beside the median of all labels."""

from collections.abc import Sequence
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.parameters import CHOSEN_LABELS
from chiplog_client.reads.verdict import OUTSIDE

LABELS_MAX = 64  # bars in one picture
# The marked label first, then those that took longest without waiting. The newest attempt of a step counts. The time
# outside of shared phases has a row without the phases that most labels do not have: they have rows.
_STEP = f"""
WITH named AS MATERIALIZED (
    SELECT label, phase, sum(seconds) AS seconds, max(ts) AS ts, reads.may_wait(phase) AS may_wait FROM (
        FROM phases WHERE run_id = $run AND step = $step QUALIFY attempt = max(attempt) OVER (PARTITION BY label)
    ) GROUP BY label, phase
), times AS MATERIALIZED (
    FROM named UNION ALL
    SELECT l.label, '{OUTSIDE}', greatest(any_value(o.seconds) - coalesce(sum(t.seconds) FILTER (t.phase IN (
               SELECT name FROM reads.uncommon_phases WHERE run_id = $run
           )), 0), 0), max(t.ts), false
    FROM reads.outside({{step}}, {{step}}) o JOIN reads.labels l ON l.run_id = o.run_id AND l.place = o.place
    JOIN named t ON t.label = l.label WHERE o.run_id = $run AND t.phase NOT IN ('step', 'gc') GROUP BY l.label
), shown AS (
    SELECT label, coalesce(sum(seconds) FILTER (NOT may_wait AND phase NOT IN ('step', 'gc')), 0) AS work
    FROM times WHERE {CHOSEN_LABELS} GROUP BY label ORDER BY label <> $mark, work DESC, label LIMIT {LABELS_MAX}
)
SELECT t.label, t.phase, t.may_wait, t.seconds, m.typical_s, t.ts FROM times t JOIN shown s ON s.label = t.label
JOIN (SELECT phase, median(seconds) AS typical_s FROM times GROUP BY phase) m ON m.phase = t.phase
ORDER BY t.label <> $mark, s.work DESC, length(t.label), t.label, t.phase
"""
_N_LABELS = f"SELECT count(DISTINCT label) AS n FROM phases WHERE run_id = $run AND step = $step AND {CHOSEN_LABELS}"


def read_step(client: Client, run: str, step: int, *, mark: str = "", labels: Sequence[str] = ()) -> dict[str, Any]:
    """Return the phases of one step, of the labels that worked longest, at most 64.

    Args:
        client: The collector.
        run: ID of the run.
        step: The step. Of a label that did it twice the newest attempt counts.
        mark: A label that comes first.
        labels: Only these; all if empty. The medians are those of all labels.

    Returns:
        `n_labels` with phases at this step; `rows` of label, phase, may_wait (it may contain waiting for other ranks),
        seconds, typical_s (the median) and ts. The phase `outside` has time in no phase.

    Raises:
        QueryError: A query has no result.
    """
    named: dict[str, Any] = {"run": run, "step": step, "labels": list(labels)}
    rows = client.sql(_STEP.format(step=step), {**named, "mark": mark}).rows()
    [counted] = client.sql(_N_LABELS, named).rows()
    return {"n_labels": counted["n"], "rows": rows}
