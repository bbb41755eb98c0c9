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
SELECT coalesce(sum(n), 0)::BIGINT AS n, min(first_step) AS first_step, max(last_step) AS last_step,
       (epoch_us(max(last_ts)) - epoch_us(min(first_ts))) / 1e6 AS seconds
FROM reads.step_series WHERE run_id = $run
"""


def read_step_span(client: Client, run: str) -> dict[str, Any] | None:
    """Return `first_step`, `last_step`, the `seconds` between them, and `n` values of all nodes; None without a step.

    Raises:
        QueryError: The query has no result.
    """
    [found] = client.sql(_LONGEST, {"run": run}).rows()
    return dict(found) if found["n"] else None


def progress_sql(n_values: int) -> str:
    """Return a table of a WITH clause: `progress` with node, ts and step of the run `$run`.

    Args:
        n_values: As of `read_step_span`. Above ROWS_MAX steps are those of buckets.
    """
    level = next((level for level in (1, *sorted(LEVELS)) if n_values <= level * ROWS_MAX), max(LEVELS))
    return f"progress AS (FROM reads.node_steps($run, {level}))"
