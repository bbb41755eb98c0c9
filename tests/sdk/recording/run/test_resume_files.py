"""What a run leaves on its node for the next attempt: its step count, and whether it has finished."""

from typing import Any

from chiplog.recording.resume.unfinished_runs import UNFINISHED


def notes(run: Any) -> list[str]:
    return sorted(path.name for path in (run._settings.places.local / UNFINISHED).glob("*"))


def next_step_of_the_next_attempt(run: Any) -> int:
    run._count.reset()
    run._resume_files.load()
    return int(run._next_step)


def test_a_run_is_noted_as_unfinished_until_it_ends_well(run: Any) -> None:
    run._resume_files.save()
    assert len(notes(run)) == 1
    run._resume_files.note_end(is_normal=False)
    assert len(notes(run)) == 1
    run._resume_files.note_end(is_normal=True)
    assert notes(run) == []


def test_the_saved_count_is_loaded_by_the_next_attempt(run: Any) -> None:
    run.log({"loss": 1.0}, step=41)
    run._resume_files.save()
    assert next_step_of_the_next_attempt(run) == 42


def test_nothing_is_written_after_the_last_count(run: Any) -> None:
    run.log({"loss": 1.0}, step=1)
    run._resume_files.save_last()
    run.log({"loss": 1.0}, step=9)
    run._resume_files.save()
    assert next_step_of_the_next_attempt(run) == 2


def test_a_child_writes_no_count(run: Any) -> None:
    run._resume_files.begin_in_child()
    run.log({"loss": 1.0}, step=7)
    run._resume_files.save()
    assert next_step_of_the_next_attempt(run) == 0
