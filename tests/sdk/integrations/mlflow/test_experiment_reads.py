"""Experiments that MLflow reads: of this host, of the database, and of both."""

import json
from pathlib import Path
from typing import Any

import pytest


class _Stored:
    """A database with two projects, which can be unreachable."""

    def __init__(self) -> None:
        self.waited: list[float] = []
        self.is_reachable = True

    def projects(self, wait_s: float) -> list[dict[str, Any]]:
        from mlflow.exceptions import MlflowException

        self.waited.append(wait_s)
        if not self.is_reachable:
            raise MlflowException("the collector does not answer")
        return [{"project": "a", "first": 5, "last": 9}, {"project": "b", "first": 6, "last": 7}]

    def experiment_tags(self, prefix: str, wait_s: float) -> list[dict[str, Any]]:
        return [{"project": "a", "key": f"{prefix}team", "value": json.dumps("x")}]


@pytest.fixture
def reads(tmp_path: Path) -> Any:
    from chiplog.integrations.mlflow.addresses import parse_address
    from chiplog.integrations.mlflow.experiment_reads import ExperimentReads
    from chiplog.integrations.mlflow.experiments import ExperimentBook

    stored: Any = _Stored()
    return ExperimentReads(parse_address(f"chiplog://{tmp_path}"), ExperimentBook(tmp_path), stored)


def _id_of(name: str) -> str:
    from chiplog.integrations.mlflow.experiments import experiment_id_of

    return experiment_id_of(name)


def _tags_of(experiment: Any) -> dict[str, str]:
    tags = experiment.tags  # MLflow makes a dict of them, the stand-in does not
    return tags if isinstance(tags, dict) else {tag.key: tag.value for tag in tags}


def test_an_experiment_of_the_database_is_found_and_not_known_here(reads: Any) -> None:
    found = reads.find(_id_of("a"))
    assert (found.name, _tags_of(found)["team"]) == ("a", "x")
    assert reads.find_here(_id_of("a")) is None and reads.find(_id_of("c")) is None


def test_a_tag_of_this_host_wins_over_the_stored_one(reads: Any) -> None:
    reads._book.make("a", {"team": "y"})
    found = reads.find(_id_of("a"))
    assert _tags_of(found)["team"] == "y"


def test_an_experiment_that_is_known_here_needs_no_answer(reads: Any) -> None:
    from mlflow.exceptions import MlflowException

    reads._book.make("a", {})
    reads._stored.is_reachable = False
    assert reads.find(_id_of("a")).name == "a"
    with pytest.raises(MlflowException):
        reads.find(_id_of("b"))
    assert reads._stored.waited[0] < reads._stored.waited[1]


def test_the_list_has_each_experiment_once(reads: Any) -> None:
    reads._book.make("a", {})
    names = [experiment.name for experiment in reads.list_all()]
    assert sorted(name for name in names if name != "Default") == ["a", "b"]
