"""Artifacts of a run: what is saved, what is refused, and what this process reads at once."""

import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from chiplog_schemas.model.events import EventKind

Offline = Callable[..., list[Any]]
Repository = Callable[..., Any]


@pytest.fixture
def repository(chiplog_dir: Path) -> Any:
    """The artifacts of a run of this process."""
    plugin = import_module("chiplog.integrations.mlflow.plugin")
    run = plugin.tracking_store(f"chiplog://{chiplog_dir}").create_run("0", "me", 1_000, [], "calm-fox-1")
    return plugin.artifact_repository(run.info.artifact_uri)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "here" / "a.txt"
    path.parent.mkdir()
    path.write_text("a")
    return path


def test_files_are_listed_and_read_right_after_they_were_logged(
    repository: Any, file: Path, tmp_path: Path, offline: Offline
) -> None:
    repository.log_artifact(file)
    repository.log_artifact(str(file), "deep/er")
    file.write_text("changed")
    repository.log_artifacts(file.parent, "all")
    assert [(e.path, e.is_dir, e.file_size) for e in repository.list_artifacts()] == [
        ("a.txt", False, 1),
        ("all", True, None),
        ("deep", True, None),
    ]
    assert [entry.path for entry in repository.list_artifacts("deep/er")] == ["deep/er/a.txt"]
    assert repository.list_artifacts("a.txt") == []
    for path, text in (("a.txt", "a"), ("all/a.txt", "changed")):
        repository._download_file(path, tmp_path / "target")
        assert (tmp_path / "target").read_text() == text
    paths = [event.fields["path"] for event in offline(EventKind.FILE)]
    assert paths == ["mlflow/artifacts/a.txt", "mlflow/artifacts/deep/er/a.txt", "mlflow/artifacts/all/a.txt"]


def test_a_path_that_leaves_the_run_is_one_line_and_nothing_is_stored(
    repository: Any, file: Path, offline: Offline, caplog: pytest.LogCaptureFixture
) -> None:
    exceptions = import_module("mlflow.exceptions")
    with caplog.at_level(logging.WARNING, "chiplog"):
        repository.log_artifact(file, "../../other")
        repository.log_artifacts(file.parent, "/etc")
    assert [record.getMessage().count("\n") for record in caplog.records] == [0, 0]
    assert (
        "'artifacts/../../other/a.txt' is refused: it must be relative, without '..'; nothing is stored" in caplog.text
    )
    assert offline(EventKind.FILE) == []
    for read in (repository.list_artifacts, lambda path: repository._download_file(path, file)):
        with pytest.raises(exceptions.MlflowException, match="is refused"):
            read("../secret")


def test_a_missing_file_costs_a_line_and_is_not_found_later(
    repository: Any, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exceptions = import_module("mlflow.exceptions")
    repository.log_artifact(file.parent / "gone.txt")
    assert "gone.txt" in caplog.text
    with pytest.raises(exceptions.MlflowException, match=r"No such artifact: 'gone\.txt'"):
        repository._download_file("gone.txt", file)
    with pytest.raises(exceptions.MlflowNotImplementedException, match="chiplog rm"):
        repository.delete_artifacts("a.txt")


def test_a_uri_without_a_run_is_refused(chiplog_dir: Path) -> None:
    plugin, exceptions = import_module("chiplog.integrations.mlflow.plugin"), import_module("mlflow.exceptions")
    with pytest.raises(exceptions.MlflowException, match="names no run"):
        plugin.artifact_repository("chiplog://")
