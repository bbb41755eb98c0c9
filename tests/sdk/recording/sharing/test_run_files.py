"""The files of a run: which label may save them, and what a disabled or finished run does."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from chiplog.recording.sharing import run_files
from chiplog_schemas.model.events import EventKind


def test_only_the_primary_saves_and_any_label_saves_below_its_folder(run: Any, offline: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    run._membership.identity = replace(run._membership.identity, primary=False)
    assert run.save(tmp_path / "a.txt") == [] and run._diagnostics.counts["save_not_primary"] == 1
    [saved] = run._files.save_for_any_label(tmp_path / "a.txt", "mlflow/artifacts/a.txt")
    run.finish()
    assert [event.fields["path"] for event in offline(EventKind.FILE)] == [saved.path]


def test_a_name_outside_the_folder_of_any_label_is_an_internal_error(run: Any, tmp_path: Path) -> None:
    assert run._files.save_for_any_label(tmp_path, "other") == []
    assert run._diagnostics.counts["internal_error"] == 1


def test_a_finished_run_saves_nothing(run: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    run.finish()
    assert run.save(tmp_path / "a.txt") == [] and run._diagnostics.counts["after_finish"] == 1


def test_a_directory_that_cannot_be_created_is_replaced(run: Any, monkeypatch: Any, caplog: Any) -> None:
    own = Path(run.dir)
    assert own.is_dir() and own.parts[-2:] == (run.id, run.label)

    def fails(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_files, "ensure_private_dir", fails)
    assert run.dir == tempfile.gettempdir() and "No space left" in caplog.text
