"""The artifacts of a run, with the events that each call emits; what a disabled and a finished run leave out."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog.recording.sharing.artifacts import ArtifactStorage
from chiplog.recording.sharing.run_artifacts import RunArtifacts
from chiplog_schemas.model.events import EventKind


class Calls:
    """A `RunArtifacts` with the real storage of a run, and what it emits and reports."""

    def __init__(self, run: Any) -> None:
        self.kinds: list[EventKind] = []
        self.errors: list[str] = []
        self.refused: list[str] = []
        self.is_open = True
        self.settings = run._settings
        self.artifacts = RunArtifacts(
            ArtifactStorage(run._files.saver, emit=self.emit, report_fault=run._diagnostics.report),
            lambda: self.settings,
            self.emit,
            lambda where, error: self.errors.append(where),
            is_open=self.admit,
            ensure_recording=lambda: True,
        )

    def emit(self, kind: EventKind, *fields: Any) -> None:
        self.kinds.append(kind)

    def admit(self, call: str) -> bool:
        if not self.is_open:
            self.refused.append(call)
        return self.is_open


@pytest.fixture
def calls(chiplog_dir: Path) -> Iterator[Calls]:
    with chiplog.init("gpt", mode="offline", run_id="r", label="rank0", capture_console=False) as run:
        yield Calls(run)


@pytest.fixture
def model(tmp_path: Path) -> Any:
    (tmp_path / "weights").write_bytes(b"1234")
    artifact = chiplog.Artifact("model", "model")
    artifact.add_file(str(tmp_path / "weights"))
    return artifact


def test_an_artifact_that_is_used_first_is_logged_first(calls: Calls, model: Any) -> None:
    assert calls.artifacts.use(model, None, None, None) is model
    assert calls.kinds == [EventKind.ARTIFACT_FILE, EventKind.ARTIFACT, EventKind.ARTIFACT_USE]
    calls.artifacts.use(model, None, ["best"], None)
    assert calls.kinds[3:] == [EventKind.ARTIFACT_USE, EventKind.ARTIFACT_ALIAS]


def test_a_finished_run_refuses_each_call_by_its_name(calls: Calls, model: Any) -> None:
    calls.artifacts.log(model, None)
    calls.is_open = False
    calls.artifacts.log(model, None)
    calls.artifacts.use(model, None, ["best"], None)
    assert calls.refused == ["log_artifact()", "use_artifact()", "artifact.save()"]
    assert len(calls.kinds) == 2


def test_a_disabled_run_emits_nothing_and_an_error_is_reported(calls: Calls, model: Any) -> None:
    calls.artifacts.log(None, None)  # type: ignore[arg-type]  # a bad argument
    assert calls.errors == ["log_artifact"]
    calls.settings = replace(calls.settings, mode="disabled")
    calls.artifacts.use(model, None, None, None)
    assert (calls.kinds, calls.refused) == ([], [])
