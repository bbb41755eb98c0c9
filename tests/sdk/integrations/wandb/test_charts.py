"""Charts are their tables. The expected rows are what wandb 0.31.0 makes, with scikit-learn."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chiplog.integrations.wandb import charts

TRUE = [0, 1, 1, 0, 1]
SCORES = [[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [0.6, 0.4], [0.7, 0.3]]
NAMES = ["ham", "spam"]


def rows_of(chart: Any) -> tuple[list[str], list[list[Any]]]:
    return chart.table.columns, chart.table.data


def test_a_chart_keeps_its_table() -> None:
    table = object()
    made = [
        charts.plot_table("spec", table, {}, {}),
        charts.line(table, "x", "y"),
        charts.scatter(table, "x", "y"),
        charts.bar(table, "x", "y"),
        charts.histogram(table, "x"),
        charts.visualize("spec", table),
    ]
    assert all(chart.table is table and not chart.is_split for chart in made)
    assert charts.line(table, split_table=True).is_split
    assert [chart.key_of_table("k") for chart in made[4:]] == ["k_table", "k"]
    assert charts.line_series([0], [[1]], split_table=True).key_of_table("k") == "Custom Chart Tables/k_table"


@pytest.mark.parametrize("convert", [list, np.asarray])
def test_a_roc_curve_has_a_row_for_each_corner(convert: Callable[[Any], Any]) -> None:
    columns, rows = rows_of(charts.roc_curve(convert(TRUE), convert(SCORES), labels=NAMES))
    assert columns == ["class", "fpr", "tpr"]
    assert [row[1:] for row in rows if row[0] == "ham"] == [[0, 0], [0, 0.5], [0.333, 0.5], [0.333, 1], [1, 1]]
    spam = [[0, 0], [0, 0.333], [0, 0.667], [0.5, 0.667], [0.5, 1], [1, 1]]
    assert [row[1:] for row in rows if row[0] == "spam"] == spam


def test_a_precision_recall_curve_has_rows_at_equal_distances_and_only_falls() -> None:
    columns, rows = rows_of(charts.pr_curve(TRUE, SCORES, interp_size=4, classes_to_plot=[1]))
    assert columns == ["class", "precision", "recall"]
    assert rows == [[1, 0.75, 1.0], [1, 1.0, 0.667], [1, 1.0, 0.333], [1, 1.0, 0.0]]


def test_a_confusion_matrix_counts_each_pair_of_classes() -> None:
    columns, rows = rows_of(charts.confusion_matrix(probs=SCORES, y_true=TRUE, class_names=NAMES))
    assert columns == ["Actual", "Predicted", "nPredictions"]
    assert rows == [["ham", "ham", 2.0], ["ham", "spam", 0.0], ["spam", "ham", 1.0], ["spam", "spam", 2.0]]
    _, unnamed = rows_of(charts.confusion_matrix(preds=["a", "c"], y_true=["a", "b"]))
    assert [row[:2] for row in unnamed if row[2]] == [["Class_1", "Class_1"], ["Class_2", "Class_3"]]


def test_a_line_series_has_a_row_for_each_point() -> None:
    columns, rows = rows_of(charts.line_series([0, 1], [[2, 3], [4, 5]]))
    assert columns == ["step", "lineKey", "lineVal"]
    assert rows == [[0, "line_0", 2], [1, "line_0", 3], [0, "line_1", 4], [1, "line_1", 5]]
    assert rows_of(charts.line_series([[0], [7, 8]], [[1], [2, 3]], keys=["a", "b"]))[1][1:] == [
        [7, "b", 2],
        [8, "b", 3],
    ]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: charts.roc_curve(TRUE), "y_true or y_probas is None"),
        (lambda: charts.pr_curve([0, 1], [[float("nan"), 1], [0, 1]]), "NaN or infinity"),
        (lambda: charts.confusion_matrix(probs=SCORES, preds=TRUE, y_true=TRUE), "exclude each other"),
        (lambda: charts.confusion_matrix(preds=[1], y_true=TRUE), "1 predictions for 5 true classes"),
        (lambda: charts.confusion_matrix(preds=[2], y_true=[0], class_names=NAMES), "class 2 is none of the 2"),
        (lambda: charts.line_series([[0]], [[1], [2]]), "1 x-series"),
        (lambda: charts.roc_curve(object(), object()), "makes no chart"),
    ],
)
def test_what_makes_no_chart_is_one_line(make: Callable[[], Any], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert make() is None
    [line] = capsys.readouterr().err.splitlines()
    assert why in line
