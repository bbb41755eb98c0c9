"""The points of one key of a run for a picture: what there is, then a mean and both extremes for each column of it.

x is the step, the time since the start of the run, or another key at the same step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chiplog_client.client import Client

STEP, TIME = "step", "time"

# The points (label, attempt, x, y) of each kind of x, and of a key as x.
_X = {
    STEP: """
    SELECT m.label, m.attempt, m.step::DOUBLE AS x, m.value AS y
    FROM metrics m WHERE m.run_id = $run AND m.key = $key
    """,
    TIME: """
    SELECT m.label, m.attempt, (epoch_us(m.ts) - epoch_us(r.created_at)) / 1e6 AS x, m.value AS y
    FROM metrics m, (SELECT created_at FROM runs WHERE run_id = $run) r WHERE m.run_id = $run AND m.key = $key
    """,
}
_X_KEY = """
    SELECT m.label, m.attempt, p.x, m.value AS y
    FROM metrics m JOIN (
        SELECT label, attempt, step, arg_max(value, seq) AS x FROM metrics WHERE run_id = $run AND key = $x
        GROUP BY label, attempt, step
    ) p ON p.label = m.label AND p.attempt = m.attempt AND p.step = m.step
    WHERE m.run_id = $run AND m.key = $key
"""
_OF_LABELS = "AND list_contains($labels, m.label)"
# Of a step that was done twice the newest attempt counts; in time both were.
_NEWEST = "QUALIFY m.attempt = max(m.attempt) OVER (PARTITION BY m.label, m.step)"
_SURVEY = """
SELECT label, count(*) AS n, count(*) FILTER (isfinite(y) AND isfinite(x)) AS n_finite,
       count(*) FILTER (isfinite(y) AND isfinite(x) AND {is_drawn}) AS n_drawn,
       min(x) FILTER (isfinite(y) AND isfinite(x) AND {is_drawn}) AS low,
       max(x) FILTER (isfinite(y) AND isfinite(x) AND {is_drawn}) AS high
FROM points GROUP BY label
"""
# Per bucket of x its mean, and both extremes at their own x: a spike of one step stays at its height and its place.
# safeguard: spikes-stay
_CURVES = """
SELECT label, bucket, count(*) AS n, avg(x) AS x, avg(y) AS mean, arg_min(x, y) AS low_x, min(y) AS low,
       arg_max(x, y) AS high_x, max(y) AS high
FROM drawn GROUP BY label, bucket ORDER BY label, bucket
"""
_BAND = """
SELECT bucket, count(*) AS n, avg(x) AS x, min(low) AS low, median(mid) AS mid, max(high) AS high
FROM ({per_x}) GROUP BY bucket ORDER BY bucket
"""
_AT_SAME_X = "SELECT bucket, x, min(y) AS low, median(y) AS mid, max(y) AS high FROM drawn GROUP BY bucket, x"
_AT_ANY_X = "SELECT bucket, x, y AS low, y AS mid, y AS high FROM drawn"  # labels do not share their times


@dataclass(frozen=True)
class PointsRequest:
    """Which points.

    Attributes:
        run: ID of the run.
        key: Name of the metric.
        x: `step`, `time`, in seconds since the start of the run, or the name of another metric.
        labels: Only these; all if empty.
        is_log_x: Only points whose x is above 0; columns are equally wide in its logarithm.
        is_log_y: Only points above 0.
    """

    run: str
    key: str
    x: str = STEP
    labels: Sequence[str] = ()
    is_log_x: bool = False
    is_log_y: bool = False

    @property
    def is_over_key(self) -> bool:
        """Return True if x is another metric."""
        return self.x not in _X


def read_survey(client: Client, request: PointsRequest) -> list[dict[str, Any]]:
    """Return a row for each label with points: `n`, `n_finite`, and `n_drawn` with the `low` and `high` x of these.

    Raises:
        QueryError: The query has no result.
    """
    query = f"WITH points AS ({_points_of(request)}) {_SURVEY.format(is_drawn=_is_drawn(request))}"
    return client.sql(query, _params(request)).rows()


def read_plotted(
    client: Client, request: PointsRequest, x_range: tuple[float, float], n_columns: int
) -> dict[str, list[dict[str, Any]]]:
    """Return for each label the columns with points, in their order.

    Args:
        client: Where to read.
        request: Which points.
        x_range: Least and greatest x of the picture.
        n_columns: Columns of the picture.

    Returns:
        For each column with finite points their number `n`, their means `x` and `mean`, the lowest value and its x,
        `low` and `low_x`, and the highest one, `high` and `high_x`.

    Raises:
        QueryError: The query has no result.
    """
    text, params = _columns_of(request, x_range, n_columns)
    found: dict[str, list[dict[str, Any]]] = {}
    for row in client.sql(text + _CURVES, params).rows():
        found.setdefault(row["label"], []).append(row)
    return found


def read_plotted_band(
    client: Client, request: PointsRequest, x_range: tuple[float, float], n_columns: int
) -> list[dict[str, Any]]:
    """Return the columns of a band over all labels: `n`, `x`, `low`, `high`, and `mid`, the median of their medians.

    Raises:
        QueryError: The query has no result.
    """
    text, params = _columns_of(request, x_range, n_columns)
    per_x = _AT_ANY_X if request.x == TIME else _AT_SAME_X
    return client.sql(text + _BAND.format(per_x=per_x), params).rows()


def _columns_of(request: PointsRequest, x_range: tuple[float, float], n_columns: int) -> tuple[str, dict[str, Any]]:
    """Return the query of the drawn points with their columns, and its parameters."""
    low, high = x_range
    bucket, params = "0", _params(request)
    if high > low:
        place = "(ln(x) - ln($low)) / (ln($high) - ln($low))" if request.is_log_x else "(x - $low) / ($high - $low)"
        bucket = f"least(floor({place} * $n), $n - 1)::BIGINT"
        params |= {"low": low, "high": high, "n": n_columns}
    text = (
        f"WITH points AS ({_points_of(request)}), drawn AS ("
        f"SELECT *, {bucket} AS bucket FROM points WHERE isfinite(x) AND isfinite(y) AND {_is_drawn(request)}) "
    )
    return text, params


def _params(request: PointsRequest) -> dict[str, Any]:
    params: dict[str, Any] = {"run": request.run, "key": request.key}
    if request.is_over_key:
        params["x"] = request.x
    if request.labels:
        params["labels"] = list(request.labels)
    return params


def _points_of(request: PointsRequest) -> str:
    labels, newest = _OF_LABELS if request.labels else "", "" if request.x == TIME else _NEWEST
    return f"{_X.get(request.x, _X_KEY)} {labels} {newest}"


def _is_drawn(request: PointsRequest) -> str:
    return " AND ".join([*["x > 0"] * request.is_log_x, *["y > 0"] * request.is_log_y]) or "true"
