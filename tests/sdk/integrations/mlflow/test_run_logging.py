"""What MLflow's calls log: values grouped by step and time, a param that changes, and the texts among the tags."""

from importlib import import_module
from typing import Any

import pytest


class _Inner:
    is_primary = True
    label = "rank0"
    _finished = False

    def __init__(self) -> None:
        self.name = self.notes = ""
        self.logged: list[tuple[int, int, dict[str, float]]] = []
        self.reported: list[str] = []

    def _log_at(self, step: int, ts: int, numbers: dict[str, float]) -> None:
        self.logged.append((step, ts, numbers))

    def _set_tag(self, key: str, value: str | None) -> None:
        pass

    def _report_fault(self, bad: Any) -> None:
        self.reported.append(bad.kind)


def _entity(name: str, *given: Any) -> Any:
    return getattr(import_module("mlflow.entities"), name)(*given)


def _make(is_strict: bool = False) -> tuple[Any, Any, _Inner, list[str]]:
    from chiplog.integrations.mlflow.records import RunRecord
    from chiplog.integrations.mlflow.run_logging import RunLogging

    inner, warned = _Inner(), list[str]()
    record: Any = RunRecord("r", "0", inner=inner)  # type: ignore[arg-type]
    return RunLogging(is_strict, lambda name, error: warned.append(name)), record, inner, warned


def test_values_of_one_step_and_time_are_one_event_and_a_bad_one_costs_itself() -> None:
    logging, record, inner, warned = _make()
    points = [("a", 1.0, 1, 0), ("b\n", 9.0, 1, 0), ("b", 2.0, 1, 0), ("a", 3.0, 1, 0), ("a", 4.0, 2, 1)]
    logging.log_metrics(record, [_entity("Metric", *point) for point in points])
    assert inner.logged == [(0, 1000, {"a": 1.0, "b": 2.0}), (0, 1000, {"a": 3.0}), (1, 2000, {"a": 4.0})]
    assert warned == ["log_metric"]


@pytest.mark.parametrize("is_strict", [False, True])
def test_the_first_value_of_a_param_counts(is_strict: bool) -> None:
    from mlflow.exceptions import MlflowException

    logging, record, inner, _ = _make(is_strict)
    logging.log_param(record, _entity("Param", "lr", "0.1"))
    if is_strict:
        with pytest.raises(MlflowException, match="not allowed"):
            logging.log_param(record, _entity("Param", "lr", "0.2"))
    else:
        logging.log_param(record, _entity("Param", "lr", "0.2"))
        assert inner.reported == ["param_changed"]
    assert record.params == {"lr": "0.1"}


def test_the_name_and_notes_of_the_run_follow_its_tags() -> None:
    logging, record, inner, _ = _make()
    logging.set_tags(record, {"mlflow.runName": "fox", "mlflow.note.content": "a note"})
    assert (inner.name, inner.notes) == ("fox", "a note")
    logging.set_tags(record, {"mlflow.runName": "owl"}, is_emitted=False)
    assert inner.name == "fox" and record.tag("mlflow.runName") == "owl"
