"""The curves of a plot: down-sampled by SQL, so that no spike is lost, then smoothed."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from chiplog_cli.options import require_key, require_label
from chiplog_client.client import Client
from chiplog_client.reads.rank_states import label_order
from chiplog_client.reads.runs.label_names import read_label_names

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
_STEP_METRIC = """
SELECT step_metric FROM metric_definitions
WHERE run_id = $run AND step_metric IS NOT NULL AND (name = $key OR $key GLOB name)
ORDER BY name = $key DESC, length(name) DESC, label LIMIT 1
"""


@dataclass
class Curve:
    """One line: points in the order of x, and for a band the extremes around it."""

    name: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None  # of a band, at each x
    high: list[float] | None = None
    raw: "Curve | None" = None  # before smoothing

    @property
    def last(self) -> float:
        """Return the last value."""
        return self.y[-1]


@dataclass
class Panel:
    """Curves with common axes."""

    title: str
    x_title: str
    curves: list[Curve]
    is_time: bool = False  # x is the time since the start of a run

    def x_range(self) -> tuple[float, float]:
        """Return the least and the greatest x."""
        values = [x for curve in self.curves for x in curve.x]
        return min(values), max(values)

    def y_range(self) -> tuple[float, float]:
        """Return the least and the greatest y, also of bands."""
        values = [y for curve in self.curves for part in (curve.y, curve.low, curve.high) for y in part or ()]
        return min(values), max(values)


@dataclass(frozen=True)
class PlotRequest:
    """What to plot. n_buckets: of x, about one per column of dots or pixels."""

    runs: Sequence[str]
    keys: Sequence[str]
    n_buckets: int
    x: str | None = None  # step, time or a key; None: as define_metric says, else step, or time if all steps are one
    labels: Sequence[str] = ()
    is_log_x: bool = False
    is_log_y: bool = False
    smooth: float = 0.0
    curves_max: int = 8
    is_together: bool = False


@dataclass
class _Series:
    """One key of one run: what was found before it is drawn."""

    run: str
    key: str
    x: str
    params: dict[str, Any]
    survey: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)

    @property
    def only_step(self) -> int | None:
        """Return the step that all of several values have; None if x is not the step, or the steps differ."""
        low, high = min(row["low"] for row in self.survey), max(row["high"] for row in self.survey)
        is_one = self.x == STEP and low == high and max(row["n_drawn"] for row in self.survey) > 1
        return int(low) if is_one else None


def read_panels(client: Client, request: PlotRequest) -> tuple[list[Panel], list[str]]:
    """Return the panels of a plot, and notes about what they leave out. Raises UsageError."""
    series = [[_find(client, request, run, key) for run in request.runs] for key in request.keys]
    notes = [note for of_key in series for one in of_key for note in one.notes]
    panels: list[Panel] = []
    groups = [[one for of_key in series for one in of_key]] if request.is_together else series
    for group in groups:
        x_title = group[0].x
        still = next((one for one in group if one.only_step is not None), None)
        if still is not None and request.x is None:  # by step it would be a vertical line
            group = [_find(client, request, one.run, one.key, TIME) if one.x == STEP else one for one in group]
            of = f" of {still.run if len(request.runs) > 1 else still.key}" if len(group) > 1 else ""
            x_title = f"{TIME} (all steps{of} are {still.only_step})"
        names = {one.x for one in group}
        if len(names) > 1:
            raise click.UsageError(f"the keys have different x axes: {', '.join(sorted(names))}; give one by --x")
        rows = [row for one in group for row in one.survey]
        low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
        has_key, has_run = len({one.key for one in group}) > 1, len(request.runs) > 1
        title = ", ".join(dict.fromkeys(one.key for one in group))
        panel = Panel(title, x_title, [], is_time=group[0].x == TIME)
        for one in group:
            prefix = [one.run] * has_run + [one.key] * has_key
            panel.curves += _curves_of(client, request, one, (low, high), prefix)
        panels.append(panel)
    return panels, notes


def _find(client: Client, request: PlotRequest, run: str, key: str, x: str | None = None) -> _Series:
    """Find out which labels logged a key, and over which range of x. Raises UsageError if there is nothing to plot."""
    params: dict[str, Any] = {"run": run, "key": key}
    x = x or request.x or _step_metric(client, params) or STEP
    is_key = x not in _X
    if is_key:
        params["x"] = x
    if request.labels:
        params["labels"] = list(request.labels)
    survey_query = f"WITH points AS ({_points_of(x, request)}) {_SURVEY.format(is_drawn=_is_drawn(request))}"
    survey = client.sql(survey_query, params).rows()
    if not survey:
        require_key(client, run, key)
        for label in request.labels:
            require_label(client, run, label)
        if is_key:
            require_key(client, run, x)
            raise click.UsageError(f"key {key!r} of run {run!r} has no step with {x!r}; give another --x")
        raise click.UsageError(f"key {key!r} of run {run!r} has no value of label {', '.join(request.labels)}")
    what = f"key {key!r} of run {run!r}"
    n, n_finite, n_drawn = (sum(row[name] for row in survey) for name in ("n", "n_finite", "n_drawn"))
    if not n_finite:
        raise click.UsageError(f"{what} has no finite value: all {n} are NaN or infinite; there is nothing to plot")
    if not n_drawn:
        raise click.UsageError(f"{what} has no point above 0; a logarithmic axis shows none, leave it out")
    series = _Series(run, key, x, params, [row for row in survey if row["n_drawn"]])
    if n_finite < n:
        series.notes.append(f"{n - n_finite} of {n} values of {what} are NaN or infinite, and left out")
    if n_drawn < n_finite:
        series.notes.append(
            f"{n_finite - n_drawn} of {n} points of {what} are not above 0 on a logarithmic axis, and left out"
        )
    return series


def _step_metric(client: Client, params: dict[str, Any]) -> str | None:
    rows = client.sql(_STEP_METRIC, params).rows()
    return str(rows[0]["step_metric"]) if rows else None


def _points_of(x: str, request: PlotRequest) -> str:
    """Return the query of the points of the wanted labels."""
    labels, newest = _OF_LABELS if request.labels else "", "" if x == TIME else _NEWEST
    return f"{_X.get(x, _X_KEY)} {labels} {newest}"


def _is_drawn(request: PlotRequest) -> str:
    return " AND ".join([*["x > 0"] * request.is_log_x, *["y > 0"] * request.is_log_y]) or "true"


def _curves_of(
    client: Client, request: PlotRequest, series: _Series, x_range: tuple[float, float], prefix: Sequence[str]
) -> list[Curve]:
    """Read the curves of one key of one run: one per label, or a band if there are many."""
    low, high = x_range
    bucket, params = "0", series.params
    if high > low:
        place = "(ln(x) - ln($low)) / (ln($high) - ln($low))" if request.is_log_x else "(x - $low) / ($high - $low)"
        bucket = f"least(floor({place} * $n), $n - 1)::BIGINT"
        params = params | {"low": low, "high": high, "n": request.n_buckets}
    source = (
        f"WITH points AS ({_points_of(series.x, request)}), drawn AS ("
        f"SELECT *, {bucket} AS bucket FROM points WHERE isfinite(x) AND isfinite(y) AND {_is_drawn(request)}) "
    )
    n_labels = len(series.survey)
    if n_labels > request.curves_max:
        rows = client.sql(source + _BAND.format(per_x=_AT_ANY_X if series.x == TIME else _AT_SAME_X), params).rows()
        return [_band(rows, " ".join([*prefix, f"{n_labels} labels: min, median, max"]), request.smooth)]
    by_label: dict[str, list[dict[str, Any]]] = {}
    for row in client.sql(source + _CURVES, params).rows():
        by_label.setdefault(row["label"], []).append(row)
    curves = []
    names = read_label_names(client, series.run) if n_labels == 1 and not prefix else {}
    for label in sorted(by_label, key=label_order):
        name = " ".join([*prefix, names.get(label, label)]) if n_labels > 1 or not prefix else " ".join(prefix)
        curves.append(_curve(by_label[label], name, request.smooth))
    return curves


def _curve(rows: list[dict[str, Any]], name: str, smooth: float) -> Curve:
    curve = Curve(name, [], [])
    for row in rows:
        ends = [(row["low_x"], row["low"]), (row["high_x"], row["high"])]
        for x, y in sorted(set(ends)):
            curve.x.append(x)
            curve.y.append(y)
    if not smooth:
        return curve
    ys = smoothed([row["mean"] for row in rows], smooth, [row["n"] for row in rows])
    return Curve(name, [row["x"] for row in rows], ys, raw=curve)


def _band(rows: list[dict[str, Any]], name: str, smooth: float) -> Curve:
    middle = [row["mid"] for row in rows]
    if smooth:
        middle = smoothed(middle, smooth, [row["n"] for row in rows])
    return Curve(
        name, [row["x"] for row in rows], middle, low=[row["low"] for row in rows], high=[row["high"] for row in rows]
    )


def smoothed(values: Sequence[float], weight: float, counts: Iterable[int] | None = None) -> list[float]:
    """Return the exponential moving average of values, without the bias towards 0 at the start.

    s(i) = weight * s(i-1) + (1 - weight) * v(i), with s(0) = 0; shown is s(i) / (1 - weight^i). This is the formula of
    TensorBoard (tf_line_chart_data_layer: resmoothDataset) and of W&B ("exponential moving average"). A value that is
    the mean of `count` points counts as that many points.
    """
    shown = []
    average = missing = 0.0
    left = 1.0  # of the start, which is 0
    for value, count in zip(values, counts if counts is not None else [1] * len(values), strict=True):
        kept = weight**count
        average = kept * average + (1 - kept) * value
        left *= kept
        missing = 1 - left
        shown.append(average / missing if missing > 0 and not math.isclose(left, 1.0) else value)
    return shown
