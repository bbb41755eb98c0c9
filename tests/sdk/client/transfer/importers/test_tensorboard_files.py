"""Event files are guessed, and read by TensorBoard's loader; tests/integrations compares the values with it."""

import sys
from pathlib import Path

import pytest
from tensorboardX import SummaryWriter

from chiplog_client.transfer.importers.formats import guess_format
from chiplog_client.transfer.importers.imported_run import ImporterError
from tests.support.imported_runs import import_path, open_index


@pytest.fixture
def log_directory(tmp_path: Path) -> Path:
    with SummaryWriter(str(tmp_path / "logs" / "run")) as writer:
        for step in range(3):
            writer.add_scalar("loss", step / 4, step)
    return tmp_path / "logs"


def test_event_files_and_their_directories_are_guessed(log_directory: Path) -> None:
    [file] = log_directory.glob("run/*")
    assert [guess_format(path) for path in (log_directory, log_directory / "run", file)] == ["tensorboard"] * 3


def test_without_tensorboard_one_line_names_the_extra(log_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["tensorboard", *(name for name in sys.modules if name.startswith("tensorboard."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with open_index() as index, pytest.raises(ImporterError, match=r"logs: .*pip install 'chiplog\[tensorboard\]'"):
        import_path(index, "tensorboard", log_directory)


def test_the_runs_of_a_log_directory_are_imported(log_directory: Path) -> None:
    with open_index() as index:
        [run] = import_path(index, "tensorboard", log_directory)
        assert (run.run.project, run.run.name) == ("logs", "run")
        assert index.sql("SELECT key, step, value FROM metrics ORDER BY step") == [
            ("loss", step, step / 4) for step in range(3)
        ]
