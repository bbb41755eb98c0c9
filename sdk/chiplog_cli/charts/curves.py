"""The curves of a plot: their axes, what they leave out, and smoothing."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from chiplog_cli.options import require_key, require_label
from chiplog_client.client import Client
from chiplog_client.reads.curves.plotted_points import (
    STEP,
    TIME,
    PointsRequest,
    read_plotted,
    read_plotted_band,
    read_survey,
)
from chiplog_client.reads.curves.step_metrics import read_step_metrics
from chiplog_client.reads.rank_states import label_order
from chiplog_client.reads.runs.label_names import read_label_names


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

    points: PointsRequest
    survey: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)

    @property
    def only_step(self) -> int | None:
        """Return the step that all of several values have; None if x is not the step, or the steps differ."""
        low, high = min(row["low"] for row in self.survey), max(row["high"] for row in self.survey)
        is_one = self.points.x == STEP and low == high and max(row["n_drawn"] for row in self.survey) > 1
        return int(low) if is_one else None


def read_panels(client: Client, request: PlotRequest) -> tuple[list[Panel], list[str]]:
    """Return the panels of a plot, and notes about what they leave out. Raises UsageError."""
    series = [[_find(client, request, run, key) for run in request.runs] for key in request.keys]
    notes = [note for of_key in series for one in of_key for note in one.notes]
    panels: list[Panel] = []
    groups = [[one for of_key in series for one in of_key]] if request.is_together else series
    for group in groups:
        x_title = group[0].points.x
        still = next((one for one in group if one.only_step is not None), None)
        if still is not None and request.x is None:  # by step it would be a vertical line
            group = [_over_time(client, request, one) for one in group]
            name = still.points.run if len(request.runs) > 1 else still.points.key
            x_title = f"{TIME} (all steps{f' of {name}' if len(group) > 1 else ''} are {still.only_step})"
        names = {one.points.x for one in group}
        if len(names) > 1:
            raise click.UsageError(f"the keys have different x axes: {', '.join(sorted(names))}; give one by --x")
        rows = [row for one in group for row in one.survey]
        low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
        has_key, has_run = len({one.points.key for one in group}) > 1, len(request.runs) > 1
        title = ", ".join(dict.fromkeys(one.points.key for one in group))
        panel = Panel(title, x_title, [], is_time=group[0].points.x == TIME)
        for one in group:
            prefix = [one.points.run] * has_run + [one.points.key] * has_key
            panel.curves += _curves_of(client, request, one, (low, high), prefix)
        panels.append(panel)
    return panels, notes


def _over_time(client: Client, request: PlotRequest, series: _Series) -> _Series:
    points = series.points
    return _find(client, request, points.run, points.key, TIME) if points.x == STEP else series


def _find(client: Client, request: PlotRequest, run: str, key: str, x: str | None = None) -> _Series:
    """Find out which labels logged a key, and over which range of x. Raises UsageError if there is nothing to plot."""
    x = x or request.x or read_step_metrics(client, run, [key]).get(key, STEP)
    points = PointsRequest(run, key, x, request.labels, request.is_log_x, request.is_log_y)
    survey = read_survey(client, points)
    if not survey:
        require_key(client, run, key)
        for label in request.labels:
            require_label(client, run, label)
        if points.is_over_key:
            require_key(client, run, x)
            raise click.UsageError(f"key {key!r} of run {run!r} has no step with {x!r}; give another --x")
        raise click.UsageError(f"key {key!r} of run {run!r} has no value of label {', '.join(request.labels)}")
    what = f"key {key!r} of run {run!r}"
    n, n_finite, n_drawn = (sum(row[name] for row in survey) for name in ("n", "n_finite", "n_drawn"))
    if not n_finite:
        raise click.UsageError(f"{what} has no finite value: all {n} are NaN or infinite; there is nothing to plot")
    if not n_drawn:
        raise click.UsageError(f"{what} has no point above 0; a logarithmic axis shows none, leave it out")
    series = _Series(points, [row for row in survey if row["n_drawn"]])
    if n_finite < n:
        series.notes.append(f"{n - n_finite} of {n} values of {what} are NaN or infinite, and left out")
    if n_drawn < n_finite:
        series.notes.append(
            f"{n_finite - n_drawn} of {n} points of {what} are not above 0 on a logarithmic axis, and left out"
        )
    return series


def _curves_of(
    client: Client, request: PlotRequest, series: _Series, x_range: tuple[float, float], prefix: Sequence[str]
) -> list[Curve]:
    """Read the curves of one key of one run: one per label, or a band if there are many."""
    n_labels = len(series.survey)
    if n_labels > request.curves_max:
        rows = read_plotted_band(client, series.points, x_range, request.n_buckets)
        return [_band(rows, " ".join([*prefix, f"{n_labels} labels: min, median, max"]), request.smooth)]
    by_label = read_plotted(client, series.points, x_range, request.n_buckets)
    curves = []
    names = read_label_names(client, series.points.run) if n_labels == 1 and not prefix else {}
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
