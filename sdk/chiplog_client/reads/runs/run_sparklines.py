"""A metric of many runs as a few points each, for a column of a table."""

from collections.abc import Sequence

from chiplog_client.client import Client
from chiplog_schemas.sql import LEVELS


def read_sparklines(client: Client, key: str, runs: Sequence[str], buckets: int) -> dict[str, list[float | None]]:
    """Return the mean over all labels in each of equally many parts of a run's steps; of its time if all steps are one.

    Args:
        client: Where to read.
        key: Name of the metric.
        runs: IDs of runs; those that have not logged it are missing in the answer.
        buckets: Parts of the steps of a run.

    Returns:
        For each run a list of so many values: None for a part without points, NaN for a part without any number.

    Raises:
        QueryError: The query has no result.
    """
    found: dict[str, list[float | None]] = {}
    for point in client.sql(sparklines_sql(buckets), {"key": key, "runs": list(runs)}):
        found.setdefault(point["run_id"], [None] * buckets)[point["bucket"]] = point["value"]
    return found


def sparklines_sql(buckets: int) -> str:
    """Return the query of `read_sparklines`, with the parameters key and runs: run_id, bucket, value.

    Of long runs it reads the curves at lower resolution: their buckets are at most an eighth of a part.
    """
    only = "reads.of_runs($runs::VARCHAR[]) AND reads.of_keys([$key])"  # that series join
    place = "CASE WHEN w.is_one_step THEN epoch_us(f.ts) ELSE f.step END"
    return f"""
WITH wanted AS MATERIALIZED (
    SELECT run_id, producer, key, min(first_step) AS first_step, max(last_step) AS last_step,
           epoch_us(min(first_ts)) AS first_us, epoch_us(max(last_ts)) AS last_us, sum(n) AS n
    FROM reads.series WHERE is_metric AND name = $key AND list_contains($runs::VARCHAR[], run_id)
    GROUP BY run_id, producer, key
), ends AS (
    SELECT run_id, min(first_step) = max(last_step) AND max(n) > 1 AS is_one_step,
           CASE WHEN is_one_step THEN min(first_us) ELSE min(first_step) END AS least,
           CASE WHEN is_one_step THEN max(last_us) ELSE max(last_step) END AS most
    FROM wanted GROUP BY run_id
), spans AS (
    SELECT run_id, is_one_step, least, most::HUGEINT - least + 1 AS steps,
           CASE WHEN is_one_step THEN 1 WHEN steps >= {buckets * 8 * LEVELS[1]} THEN {LEVELS[1]}
                WHEN steps >= {buckets * 8 * LEVELS[0]} THEN {LEVELS[0]} ELSE 1 END AS level
    FROM ends
), series AS MATERIALIZED (
    SELECT * FROM wanted JOIN spans USING (run_id)
), parts AS (
    SELECT w.run_id, w.least, w.steps, {place} AS step, f.n, f.sum
    FROM reads.points f JOIN (FROM series WHERE level = 1) w ON w.producer = f.producer AND w.key = f.key
    WHERE f.level = 1 AND {only}
    UNION ALL
    SELECT w.run_id, w.least, w.steps, {place}, f.n, f.sum
    FROM reads.points f JOIN series w ON w.producer = f.producer AND w.key = f.key
    WHERE f.level = 0 AND {only}
    UNION ALL
    SELECT w.run_id, w.least, w.steps, f.step, f.n, f.sum
    FROM reads.points f JOIN series w ON w.producer = f.producer AND w.key = f.key AND w.level = f.level
    WHERE f.level > 1 AND {only}
)
SELECT run_id, ((greatest(step, least)::HUGEINT - least) * {buckets} // steps)::INTEGER AS bucket,
       coalesce(sum(sum) / nullif(sum(n), 0), 'nan') AS value
FROM parts GROUP BY ALL
"""
