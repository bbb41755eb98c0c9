"""The metric over which another one is drawn, as `define_metric(step_metric=…)` says."""

from collections.abc import Sequence

from chiplog_client.client import Client

# A definition of a name wins over patterns, and a longer pattern over a shorter one. A pattern such as `train/*` also
# matches its own step metric, which is a curve over steps.
STEP_METRICS = """
SELECT k.key, arg_min(d.step_metric, (d.name <> k.key, -length(d.name), d.label)) AS step_metric
FROM (SELECT unnest($keys::VARCHAR[]) AS key) k
JOIN metric_definitions d ON d.name = k.key OR k.key GLOB d.name
WHERE d.run_id = $run AND d.step_metric <> k.key GROUP BY k.key
"""


def read_step_metrics(client: Client, run: str, keys: Sequence[str]) -> dict[str, str]:
    """Return the step metric of each of these keys that has one. Raises QueryError."""
    rows = client.sql(STEP_METRICS, {"run": run, "keys": list(keys)}).rows()
    return {row["key"]: row["step_metric"] for row in rows}
