"""Experiments: an ID that all nodes agree on, and what this host knows of them."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def module() -> Any:
    from chiplog.integrations.mlflow import experiments

    return experiments


def test_an_id_has_18_digits_of_the_name_and_names_itself(module: Any) -> None:
    known = module.experiment_id_of("/Users/me/mnist")
    assert known == "718537833323374273"  # of every version: runs of many nodes meet there
    assert module.experiment_id_of(known) == known
    assert [module.experiment_id_of(name) for name in (None, "", "Default")] == ["0", "0", "0"]


def test_what_one_process_makes_another_one_finds(module: Any, tmp_path: Path) -> None:
    made = module.ExperimentBook(tmp_path).make("a", {"team": "x"})
    other = module.ExperimentBook(tmp_path)
    assert (other.name_of(made), other.find(made).tags, other.name_of("0")) == ("a", {"team": "x"}, "Default")
    other.change(made, is_deleted=True)
    assert module.ExperimentBook(tmp_path).list_all()[made].is_deleted
    assert other.name_of("123456789012345678") == "123456789012345678"


def test_a_file_that_is_not_an_experiment_and_a_directory_that_cannot_be_written_cost_nothing(
    module: Any, tmp_path: Path
) -> None:
    book = module.ExperimentBook(tmp_path)
    made = book.make("a")
    (tmp_path / "mlflow/experiments" / f"{made}.json").write_text('{"other": 1}')
    assert book.name_of(made) == "a"
    (tmp_path / "file").write_text("")
    blocked = module.ExperimentBook(tmp_path / "file")
    assert blocked.name_of(blocked.make("b")) == "b"
