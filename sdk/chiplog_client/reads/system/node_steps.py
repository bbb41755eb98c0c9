"""The step of each node over time, so that samples of machines can be placed beside curves.

A node's step is the last one that its label had logged by then: the primary if it is on the node, else the lowest rank.
If that label has several metrics, the one with the most values decides; without metrics, its phase with the most
values.
"""

from typing import Any

from chiplog_client.client import Client
from chiplog_schemas.sql import LEVELS

ROWS_MAX = 400_000  # of (node, time, step); longer runs are read in buckets of 16 or 256 steps
_LONGEST = """
WITH {keepers}
SELECT coalesce(sum(n), 0)::BIGINT AS n, min(first_step) AS first_step, max(last_step) AS last_step,
       (epoch_us(max(last_ts)) - epoch_us(min(first_ts))) / 1e6 AS seconds
FROM best
"""
_KEEPERS = """
keepers AS (
    SELECT DISTINCT k.node, i.producer
    FROM base.keepers k JOIN base.identified i ON i.run_id = k.run_id AND i.label = k.label AND i.node = k.node
    WHERE k.run_id = $run AND i.role = 'rank'
), series AS (
    SELECT k.node, k.producer, s.key, s.is_metric, sum(s.n) AS n, min(s.first_step) AS first_step,
           max(s.last_step) AS last_step, min(s.first_ts) AS first_ts, max(s.last_ts) AS last_ts
    FROM keepers k JOIN (
        SELECT producer, key, n, first_step, last_step, first_ts, last_ts, true AS is_metric FROM base.metric_series
        UNION ALL
        SELECT producer, key, n, first_step, last_step, first_ts, last_ts, false FROM base.phase_series
    ) s ON s.producer = k.producer GROUP BY ALL
), best AS (
    FROM series QUALIFY row_number() OVER (PARTITION BY producer ORDER BY is_metric DESC, n DESC, key) = 1
)"""
_PROGRESS = """, progress AS (
    SELECT b.node, f.ts, f.step FROM (
        {metrics}
    ) f JOIN best b ON b.producer = f.producer AND b.key = f.key AND b.is_metric
    UNION ALL
    SELECT b.node, f.ts, f.step FROM base.phase_facts f
    JOIN best b ON b.producer = f.producer AND b.key = f.key AND NOT b.is_metric
)"""


def read_step_span(client: Client, run: str) -> dict[str, Any] | None:
    """Return `first_step`, `last_step`, the `seconds` between them, and `n` values of all nodes; None without a step.

    Raises:
        QueryError: The query has no result.
    """
    [found] = client.sql(_LONGEST.format(keepers=_KEEPERS), {"run": run}).rows()
    return dict(found) if found["n"] else None


def progress_sql(n_values: int) -> str:
    """Return the tables of a WITH clause, of which `progress` has node, ts and step of the run `$run`.

    Args:
        n_values: As of `read_step_span`. Above ROWS_MAX steps are those of buckets.
    """
    level = next((level for level in (1, *sorted(LEVELS)) if n_values <= level * ROWS_MAX), max(LEVELS))
    parts = ["SELECT producer, key, ts, step FROM base.metrics_recent"]
    if level == 1:
        parts.append("SELECT producer, key, ts, step FROM base.metrics")
    else:
        parts.append(f"SELECT producer, key, ts, step FROM base.metric_levels WHERE width = {level}")
    return _KEEPERS + _PROGRESS.format(metrics=" UNION ALL ".join(parts))
