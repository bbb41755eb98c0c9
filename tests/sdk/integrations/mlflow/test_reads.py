"""Reads of the database: rows, none where nothing was recorded, and one line where none come in time."""

import time
from pathlib import Path
from typing import Any

import pytest

from chiplog_client.results.result import QueryError


@pytest.fixture
def module() -> Any:
    from chiplog.integrations.mlflow import reads

    return reads


@pytest.fixture
def stored(module: Any, tmp_path: Path) -> Any:
    from chiplog.integrations.mlflow.addresses import Address

    return module.StoredRuns(Address(str(tmp_path / "none")))


def test_where_nothing_was_recorded_there_is_nothing(stored: Any) -> None:
    assert (stored.find("r"), stored.list_all(["0"]), stored.projects()) == (None, [], [])
    assert stored.history("r", "a") == (None, [])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda: time.sleep(5), "did not answer within 0.1 s"),
        (lambda: _raise(QueryError("busy", "try later")), "try later"),
    ],
)
def test_a_collector_that_does_not_answer_is_mlflows_error(
    module: Any, stored: Any, monkeypatch: pytest.MonkeyPatch, answer: Any, words: str
) -> None:
    from mlflow.exceptions import MlflowException

    monkeypatch.setattr(module.chiplog, "connect", lambda *given, **named: answer())
    with pytest.raises(MlflowException, match=words):
        stored.find("r", 0.1)


def _raise(error: Exception) -> None:
    raise error
