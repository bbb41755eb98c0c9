"""The files of step counts: a damaged one costs the count only, and old ones are removed."""

from dataclasses import replace

from chiplog.identity.identity import Identity
from chiplog.recording.resume.step_counter import FILES_MAX, StepCounterFile, label_to_resume

LONE = Identity("r", "host-word", "launch")


RANK0 = replace(LONE, label="rank0", rank=0)


def test_a_file_that_is_damaged_or_cannot_be_written_costs_the_count_only(tmp_path) -> None:
    steps = tmp_path / "steps"
    lone, count = StepCounterFile(steps), StepCounterFile(steps)
    assert lone.load(LONE, False) == count.load(RANK0, False) == 0
    lone.save(1)
    assert label_to_resume(steps, "r") == "host-word"
    count.save(1_000)
    assert StepCounterFile(steps).load(RANK0, False) == 1_000
    count.save(9)
    assert StepCounterFile(steps).load(RANK0, False) == 9
    for file in steps.iterdir():
        file.write_bytes(b"\xff\x00 garbage")
    assert StepCounterFile(steps).load(RANK0, False) == 0
    assert label_to_resume(steps, "r") is None
    (tmp_path / "file").write_text("")
    blocked = StepCounterFile(tmp_path / "file")
    assert blocked.load(LONE, False) == 0
    blocked.save(5)


def test_the_files_of_old_runs_go(tmp_path) -> None:
    steps = tmp_path / "steps"
    steps.mkdir(mode=0o700)
    for number in range(FILES_MAX + 1):
        (steps / f"{number:032x}").write_text("1")
    count = StepCounterFile(steps)
    count.load(RANK0, False)
    count.save(1)
    assert FILES_MAX // 2 < len(list(steps.iterdir())) < FILES_MAX
