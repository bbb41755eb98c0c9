"""Means of the samples of machines over the whole of several runs, for runs beside each other."""

from collections.abc import Sequence
from typing import Any

from chiplog_client.client import Client

SYSTEM_NAMES = (
    "hw.gpu.utilization",
    "hw.gpu.memory.usage",
    "hw.power",
    "system.cpu.utilization",
    "system.memory.usage",
    "process.cpu.utilization",
    "process.memory.usage",
)
_MEANS = f"""
SELECT run_id, name, avg(value) AS mean FROM system
WHERE list_contains($runs::VARCHAR[], run_id) AND name IN {SYSTEM_NAMES} GROUP BY run_id, name
"""


def read_machine_means(client: Client, runs: Sequence[str]) -> list[dict[str, Any]]:
    """Return `run_id`, `name` and `mean` for each run and name of a sample, in the order of SYSTEM_NAMES.

    Raises:
        QueryError: The query has no result.
    """
    rows = client.sql(_MEANS, {"runs": list(runs)}).rows()
    return sorted(rows, key=lambda row: SYSTEM_NAMES.index(row["name"]))
