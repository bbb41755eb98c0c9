"""`wandb.plot.*` and `plot_table`: the table of a chart is stored; charts themselves are drawn by W&B's page only."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from chiplog.integrations.wandb.errors import warn
from chiplog.safety.diagnostics import error_line
from chiplog_schemas.interrupts import unless_interrupt

_Chart = TypeVar("_Chart", bound=Callable[..., Any])
_DIGITS = 3  # W&B rounds curves to them


class CustomChart:
    """A chart that was made of a table. `log({"key": chart})` stores the table under `key_table`."""

    def __init__(self, table: Any, *, is_split: bool = False) -> None:
        self.table = table
        self.is_split = is_split

    def key_of_table(self, key: str) -> str:
        """Return the key of the table, for that of the chart."""
        return f"Custom Chart Tables/{key}_table" if self.is_split else f"{key}_table"


class Visualize(CustomChart):
    """A table with a chart of W&B's page. `log({"key": value})` stores the table under `key`."""

    def key_of_table(self, key: str) -> str:
        """Return the key of the table, which is that of the chart."""
        return key


def _never_raises(chart: _Chart) -> _Chart:
    """Make a function return None, with one line, where W&B's raises."""

    @wraps(chart)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return chart(*given, **named)
        except unless_interrupt(Exception) as error:
            warn(f"wandb.plot.{chart.__name__}() makes no chart: {error_line(error)}")
            return None

    return call  # type: ignore[return-value]  # of the same arguments


def plot_table(
    vega_spec_name: str,
    data_table: Any,
    fields: Any = None,
    string_fields: Any = None,
    split_table: bool = False,
) -> CustomChart:
    """Return a chart of a table, by W&B's arguments. The name and the fields are not used."""
    return CustomChart(data_table, is_split=split_table)


def visualize(id: str, value: Any) -> Visualize:
    """Return a chart of a table. The name is not used."""
    return Visualize(value)


def line(
    table: Any, x: str = "", y: str = "", stroke: Any = None, title: str = "", split_table: bool = False
) -> CustomChart:
    """Return a chart of two columns of a table."""
    return CustomChart(table, is_split=split_table)


def scatter(table: Any, x: str = "", y: str = "", title: str = "", split_table: bool = False) -> CustomChart:
    """Return a chart of two columns of a table."""
    return CustomChart(table, is_split=split_table)


def bar(table: Any, label: str = "", value: str = "", title: str = "", split_table: bool = False) -> CustomChart:
    """Return a chart of two columns of a table."""
    return CustomChart(table, is_split=split_table)


def histogram(table: Any, value: str = "", title: str = "", split_table: bool = False) -> CustomChart:
    """Return a chart of one column of a table."""
    return CustomChart(table, is_split=split_table)


@_never_raises
def line_series(
    xs: Sequence[Any],
    ys: Sequence[Sequence[Any]],
    keys: Sequence[str] | None = None,
    title: str = "",
    xname: str = "x",
    split_table: bool = False,
) -> CustomChart | None:
    """Return a chart of several lines: the columns step, lineKey and lineVal.

    Args:
        xs: The x values of all lines, or those of each.
        ys: The y values of each line.
        keys: The names of the lines. Default: line_0, line_1 …
        title: Not used.
        xname: Not used.
        split_table: Store the table under `Custom Chart Tables/`.

    """
    if not isinstance(xs[0], Iterable) or isinstance(xs[0], str | bytes):
        xs = [xs] * len(ys)
    names = [f"line_{number}" for number in range(len(ys))] if keys is None else keys
    if not len(xs) == len(ys) == len(names):
        raise ValueError(f"{len(xs)} x-series and {len(names)} keys for {len(ys)} y-series; give one for each")
    rows = [[x, name, y] for name, some, others in zip(names, xs, ys, strict=True) for x, y in zip(some, others)]  # noqa: B905
    return _chart(["step", "lineKey", "lineVal"], rows, split_table)


@_never_raises
def confusion_matrix(
    probs: Any = None,
    y_true: Any = None,
    preds: Any = None,
    class_names: Sequence[str] | None = None,
    title: str = "",
    split_table: bool = False,
) -> CustomChart | None:
    """Return how often each class was taken for each: the columns Actual, Predicted and nPredictions.

    Args:
        probs: Probabilities of the shape (n, classes), in place of `preds`.
        y_true: The true classes.
        preds: The predicted classes.
        class_names: Names of the classes 0, 1 … Default: Class_1, Class_2 … of those that occur.
        title: Not used.
        split_table: Store the table under `Custom Chart Tables/`.

    """
    import numpy as np  # importing chiplog must not cost it

    if probs is not None and preds is not None:
        raise ValueError("probs and preds exclude each other; give one of them")
    found = np.argmax(probs, axis=1).tolist() if probs is not None else np.asarray(preds).tolist()
    true = np.asarray(y_true).tolist()
    if len(found) != len(true):
        raise ValueError(f"{len(found)} predictions for {len(true)} true classes; give one for each")
    classes = sorted(set(found) | set(true)) if class_names is None else range(len(class_names))
    names = [f"Class_{number + 1}" for number in range(len(classes))] if class_names is None else list(class_names)
    places = {value: place for place, value in enumerate(classes)}
    if unknown := {*found, *true} - set(places):
        raise ValueError(f"class {min(unknown)} is none of the {len(names)} in class_names; name each")
    counts = np.zeros((len(classes), len(classes)))
    np.add.at(counts, ([places[value] for value in true], [places[value] for value in found]), 1)
    rows = [[names[i], names[j], count] for (i, j), count in zip(np.ndindex(counts.shape), counts.flat, strict=True)]
    return _chart(["Actual", "Predicted", "nPredictions"], rows, split_table)


@_never_raises
def roc_curve(
    y_true: Any,
    y_probas: Any = None,
    labels: Sequence[str] | None = None,
    classes_to_plot: Sequence[Any] | None = None,
    title: str = "",
    split_table: bool = False,
) -> CustomChart | None:
    """Return the true positive rate over the false one, of each class: the columns class, fpr and tpr.

    Args:
        y_true: The true classes.
        y_probas: Scores of the shape (n, classes).
        labels: Names of the classes 0, 1 …
        classes_to_plot: Only these classes.
        title: Not used.
        split_table: Store the table under `Custom Chart Tables/`.

    """
    import numpy as np

    curves = {}
    for label, is_true, scores in _by_class(y_true, y_probas, labels, classes_to_plot):
        false, true = _counts(is_true, scores)
        if len(false) > 2:  # points on a straight line are left out, as by scikit-learn
            is_corner = np.r_[True, np.diff(false, 2).astype(bool) | np.diff(true, 2).astype(bool), True]
            false, true = false[is_corner], true[is_corner]
        curves[label] = _shares(np.r_[0, false]), _shares(np.r_[0, true])
    return _chart(["class", "fpr", "tpr"], _curve_rows(curves), split_table)


@_never_raises
def pr_curve(
    y_true: Any = None,
    y_probas: Any = None,
    labels: Sequence[str] | None = None,
    classes_to_plot: Sequence[Any] | None = None,
    interp_size: int = 21,
    title: str = "",
    split_table: bool = False,
) -> CustomChart | None:
    """Return the precision over the recall, of each class: the columns class, precision and recall.

    Args:
        y_true: The true classes.
        y_probas: Scores of the shape (n, classes).
        labels: Names of the classes 0, 1 …
        classes_to_plot: Only these classes.
        interp_size: Points of each curve, at equal distances of the recall.
        title: Not used.
        split_table: Store the table under `Custom Chart Tables/`.

    """
    import numpy as np

    curves = {}
    wanted = np.linspace(0, 1, interp_size)[::-1]
    for label, is_true, scores in _by_class(y_true, y_probas, labels, classes_to_plot):
        false, true = _counts(is_true, scores)
        precision, recall = np.r_[1, true / (false + true)], np.r_[0, _shares(true)]
        # The precision only falls with the recall: the best one at this recall or above.
        falling = np.maximum.accumulate(precision[::-1])[::-1]
        curves[label] = falling[np.searchsorted(recall, wanted, side="left")], wanted
    return _chart(["class", "precision", "recall"], _curve_rows(curves), split_table)


def _by_class(y_true: Any, y_probas: Any, labels: Any, classes_to_plot: Any) -> Iterable[tuple[Any, Any, Any]]:
    """Yield the label of each class that is shown, which samples are of it, and their scores for it."""
    import numpy as np

    if y_true is None or y_probas is None:
        raise ValueError("y_true or y_probas is None; give both")
    true, scores = np.asarray(y_true), np.asarray(y_probas)
    if not np.isfinite(scores).all():
        raise ValueError("y_probas has NaN or infinity; give finite scores")
    classes = np.unique(true)
    for place, value in enumerate(classes):
        if classes_to_plot is None or value in classes_to_plot:
            is_named = labels is not None and isinstance(value, np.integer)
            yield labels[value] if is_named else value.item(), true == value, scores[..., place]


def _counts(is_true: Any, scores: Any) -> tuple[Any, Any]:
    """Return how many samples are taken wrongly and rightly for the class, from the highest threshold on."""
    import numpy as np

    order = np.argsort(scores, kind="stable")[::-1]
    hits, ranked = is_true[order], scores[order]
    ends = np.r_[np.nonzero(np.diff(ranked))[0], len(ranked) - 1]  # of samples with the same score
    true = np.cumsum(hits)[ends]
    return 1 + ends - true, true


def _shares(counts: Any) -> Any:
    """Return counts as shares of the last one, which is that of all; NaN if that is 0."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        return counts / counts[-1]


def _curve_rows(curves: Mapping[Any, tuple[Any, Any]]) -> list[list[Any]]:
    return [
        [label, *point]
        for label, columns in curves.items()
        for point in zip(*(column.round(_DIGITS).tolist() for column in columns), strict=True)
    ]


def _chart(columns: list[str], rows: list[list[Any]], is_split: bool) -> CustomChart:
    from chiplog.integrations.wandb.media import Table  # media are imported when one is used

    return CustomChart(Table(columns=columns, data=rows), is_split=is_split)
