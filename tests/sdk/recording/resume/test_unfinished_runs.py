"""Which run `resume="auto"` continues: that of the same launch, else the last one that did not finish."""

import os
from pathlib import Path

import pytest

from chiplog.recording.resume import unfinished_runs
from chiplog.recording.resume.unfinished_runs import UNFINISHED, UnfinishedRun, key_of, last_unfinished


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "local" / UNFINISHED


def begin(directory: Path, run_id: str, launch: str = "l", *, at_s: int = 0, key: str = "k") -> UnfinishedRun:
    run = UnfinishedRun(directory, key)
    run.note(run_id, launch, directory.parent / run_id)
    for path in directory.iterdir():
        if f'"{run_id}"' in path.read_text():
            os.utime(path, (at_s, at_s))
    return run


def test_there_is_none_before_the_first(directory: Path) -> None:
    assert last_unfinished(directory, "k", "l") is None


def test_the_last_one_that_began_and_did_not_finish_is_found(directory: Path) -> None:
    runs = [begin(directory, f"run{n}", at_s=1000 + n) for n in range(3)]
    assert last_unfinished(directory, "k", "another launch") == "run2"
    runs[2].clear("run2")
    assert last_unfinished(directory, "k", "another launch") == "run1"


def test_that_of_the_same_launch_comes_before_later_ones(directory: Path) -> None:
    begin(directory, "mine", "launch1", at_s=1000)
    begin(directory, "later", "launch2", at_s=2000)
    assert last_unfinished(directory, "k", "launch1") == "mine"


def test_runs_of_another_directory_project_or_group_are_not_found(directory: Path) -> None:
    begin(directory, "run", key=key_of("/data", "gpt", None))
    assert last_unfinished(directory, key_of("/data", "gpt", "group"), "l") is None
    assert last_unfinished(directory, key_of("/data", "gpt", None), "l") == "run"


def test_a_run_with_a_new_name_leaves_one_file_and_a_finished_one_writes_none(directory: Path) -> None:
    run = begin(directory, "first")
    run.note("second", "l", directory.parent / "second")
    assert len(list(directory.iterdir())) == 1
    run.clear("second")
    run.note("third", "l", directory.parent / "third")
    assert list(directory.iterdir()) == []


def test_a_damaged_file_is_passed_over(directory: Path) -> None:
    begin(directory, "run", at_s=1000)
    (directory / "k-damaged").write_text("{")
    (directory / "k-other").write_text("[]")
    assert last_unfinished(directory, "k", "l") == "run"


def test_a_disk_that_refuses_costs_the_file_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "local").write_text("no directory")
    UnfinishedRun(tmp_path / "local" / UNFINISHED, "k").note("run", "l", tmp_path)
    assert last_unfinished(tmp_path / "local" / UNFINISHED, "k", "l") is None


def test_a_run_that_finishes_while_its_file_is_written_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender thread writes the file, and the training's thread finishes the run."""
    run = unfinished_runs.UnfinishedRun(tmp_path / "unfinished", "key")
    write = unfinished_runs.atomic_write

    def finish_and_write(path: Path, content: bytes) -> None:
        run.clear("r1")
        write(path, content)

    monkeypatch.setattr(unfinished_runs, "atomic_write", finish_and_write)
    run.note("r1", "launch", tmp_path)
    assert list((tmp_path / "unfinished").iterdir()) == []
