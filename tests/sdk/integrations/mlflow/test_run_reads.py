"""Runs that MLflow reads: stored ones, and what this process has written and the database does not have yet."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


class _Runs:
    def __init__(self, own: list[Any]) -> None:
        self.own = own

    def list_all(self) -> list[Any]:
        return self.own


class _Stored:
    """A database with the runs of one experiment, which can be unreachable."""

    def __init__(self, runs: list[Any], points: list[Any]) -> None:
        self.runs = runs
        self.points = points
        self.is_reachable = True

    def _require(self) -> None:
        from mlflow.exceptions import MlflowException

        if not self.is_reachable:
            raise MlflowException("the collector does not answer")

    def find(self, run_id: str, wait_s: float) -> Any:
        self._require()
        return next((run for run in self.runs if run.run_id == run_id), None)

    def list_all(self, ids: list[str]) -> list[Any]:
        return self.runs

    def history(self, run_id: str, key: str, wait_s: float) -> tuple[str | None, list[Any]]:
        self._require()
        return None, list(self.points)


def _make(tmp_path: Path, own: list[Any], stored: list[Any], points: list[Any] | None = None) -> Any:
    from chiplog.integrations.mlflow.addresses import parse_address
    from chiplog.integrations.mlflow.run_reads import RunReads

    runs: Any = _Runs(own)
    database: Any = _Stored(stored, points or [])
    return RunReads(parse_address(f"chiplog://{tmp_path}"), runs, database)


def _record(run_id: str, **fields: Any) -> Any:
    from chiplog.integrations.mlflow.records import RunRecord

    return RunRecord(run_id, "0", **fields)


def test_a_run_that_is_neither_here_nor_stored_is_an_error(tmp_path: Path) -> None:
    from mlflow.exceptions import MlflowException

    reads = _make(tmp_path, [], [_record("stored")])
    assert reads.find("stored", None).run_id == "stored"
    with pytest.raises(MlflowException, match="not found"):
        reads.find("other", None)


def test_a_run_of_this_process_is_read_without_the_database(tmp_path: Path) -> None:
    from mlflow.exceptions import MlflowException

    reads = _make(tmp_path, [], [], [])
    reads._stored.is_reachable = False
    joined = _record("r")
    with pytest.raises(MlflowException, match="does not answer"):
        reads.find("r", joined)
    assert reads.history("r", "loss", _record("r", is_created=True)) == []


def test_the_list_has_stored_runs_and_new_ones_of_this_process_without_those_of_models(tmp_path: Path) -> None:
    own = [_record("both", is_created=True), _record("new", is_created=True), _record("joined")]
    reads = _make(tmp_path, own, [_record("both"), _record("stored"), _record("mlflow-models-0")])
    assert sorted(run.info.run_id for run in reads.list_all(["0"])) == ["both", "new", "stored"]


def test_the_history_of_a_run_of_others_is_that_of_the_database(tmp_path: Path) -> None:
    point = import_module("mlflow.entities").Metric("loss", 0.5, 1, 0)
    assert _make(tmp_path, [], [], [point]).history("r", "loss", None) == [point]
