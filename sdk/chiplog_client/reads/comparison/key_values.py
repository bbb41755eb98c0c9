"""Final, lowest, highest and best values of the metrics of several runs, mostly without reading their values."""

import math
from collections.abc import Sequence
from typing import Any

from chiplog_client.client import Client

KEYS_MAX = 10_000  # of a run: as many as it may have
_VALUES = f"""
SELECT run_id, key, count(*) AS labels, max(last_step) AS last_step, avg(last_value) AS final, min(min) AS min,
       max(max) AS max
FROM keys WHERE list_contains($runs::VARCHAR[], run_id) GROUP BY run_id, key
QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY starts_with(key, 'chiplog/'), key) <= {KEYS_MAX}
ORDER BY starts_with(key, 'chiplog/'), key
"""
# Of keys with infinite values: the rollups have no minimum and maximum of the others.
_FINITE = """
SELECT key, min(value) AS min, max(value) AS max FROM metrics
WHERE run_id = $run AND list_contains($keys::VARCHAR[], key) AND isfinite(value) GROUP BY key
"""
# A definition of a name wins over patterns, and a longer pattern over a shorter one.
_BEST = """
SELECT k.key, arg_max(d.summary, (d.name = k.key)::BIGINT * 1000000 + length(d.name)) AS best
FROM (SELECT unnest($keys::VARCHAR[]) AS key) k
JOIN metric_definitions d ON d.name = k.key OR k.key GLOB d.name
WHERE list_contains($runs::VARCHAR[], d.run_id) AND d.summary IN ('min', 'max') GROUP BY k.key
"""


def read_key_values(client: Client, runs: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each run and metric, in the order of names, those of chiplog itself last.

    Returns:
        `run_id`, `key`, the number of `labels`, `last_step`; `final`, the mean of the last values of the labels; `min`
        and `max` of all finite values of all labels, None without any. `best` is "min" or "max", as a definition of one
        of the runs says, else "min": it is the same for all of the runs.

    Raises:
        QueryError: A query has no result.
    """
    rows = client.sql(_VALUES, {"runs": list(runs)}).rows()
    infinite: dict[str, dict[str, dict[str, Any]]] = {}  # by run and key
    for row in rows:
        if any(row[name] in (math.inf, -math.inf) for name in ("min", "max")):
            infinite.setdefault(row["run_id"], {})[row["key"]] = row
    for run, by_key in infinite.items():
        finite = {row["key"]: row for row in client.sql(_FINITE, {"run": run, "keys": list(by_key)}).rows()}
        for key, row in by_key.items():
            row |= finite.get(key, {"min": None, "max": None})
    keys = list(dict.fromkeys(row["key"] for row in rows))
    best = {row["key"]: row["best"] for row in client.sql(_BEST, {"keys": keys, "runs": list(runs)}).rows()}
    return [{**row, "best": best.get(row["key"], "min")} for row in rows]
