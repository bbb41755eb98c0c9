"""Seconds per step of the phases of several runs, for runs beside each other."""

from collections.abc import Sequence
from typing import Any

from chiplog_client.client import Client

# Of all steps of all labels that had the phase. The share is of the steps whose length is known.
_PHASES = """
WITH per_label AS (
    SELECT run_id, phase, label, sum(n_steps) AS n_steps, sum(seconds) AS seconds, sum(known_s) AS known_s
    FROM phase_times WHERE list_contains($runs::VARCHAR[], run_id) GROUP BY run_id, phase, label
), per_phase AS (
    SELECT run_id, phase, sum(seconds) / sum(n_steps) AS mean_s, median(seconds / n_steps) AS median_s,
           avg(seconds) AS label_s, sum(known_s) AS known_s, sum(seconds) AS seconds
    FROM per_label GROUP BY run_id, phase
)
SELECT run_id, phase, mean_s, median_s, label_s, CASE WHEN phase <> 'step' THEN
           known_s / nullif(sum(known_s) FILTER (phase = 'step') OVER (PARTITION BY run_id), 0) END AS share
FROM per_phase ORDER BY seconds DESC, phase
"""


def read_phase_means(client: Client, runs: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each run and phase, the longest first.

    Returns:
        `run_id`, `phase`; `mean_s` and `median_s`, seconds per step of the mean and of the median label; `label_s`,
        seconds of a label in the whole run; `share`, its part of the steps, None for `step`.

    Raises:
        QueryError: The query has no result.
    """
    return client.sql(_PHASES, {"runs": list(runs)}).rows()
