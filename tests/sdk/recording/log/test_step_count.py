"""The count of steps: what `log()` without a step logs to, after steps given by the script, a resume and `step()`."""

from types import SimpleNamespace

from chiplog.recording.log.loop_calls import NO_STEP, STEP_MAX
from chiplog.recording.log.step_count import StepCount


def count() -> tuple[StepCount, SimpleNamespace, list[str]]:
    reported: list[str] = []
    calls = SimpleNamespace()
    return StepCount(calls, lambda bad: reported.append(bad.kind)), calls, reported  # type: ignore[arg-type]


def test_the_next_step_follows_the_largest_logged_one() -> None:
    steps, calls, _ = count()
    assert steps.parse(None) == 0 and steps.to_keep == 0
    steps.note(7)
    steps.note(3)
    assert steps.parse(None) == 8 and steps.to_keep == 8
    assert calls._top_step == 7


def test_a_resumed_count_only_moves_forward() -> None:
    steps, _, _ = count()
    steps.continue_from(5)
    steps.continue_from(2)
    assert (steps.parse(None), steps.starting_step, steps.to_keep) == (5, 5, 5)


def test_a_step_that_is_not_usable_is_reported_and_counted_by_the_label() -> None:
    steps, _, reported = count()
    steps.note(1)
    assert steps.parse(1 << 70) == 2 and reported == ["bad_step"]


def test_the_count_stays_at_the_last_step() -> None:
    steps, calls, reported = count()
    steps.note(STEP_MAX)
    assert calls._next_step == STEP_MAX and reported == ["last_step"]


def test_a_call_that_is_not_committed_is_repeated() -> None:
    steps, calls, _ = count()
    calls._last_step = steps.parse(None)
    steps.note(0)
    steps.repeat()
    assert (steps.parse(None), calls._top_step) == (0, -1)


def test_the_first_block_takes_back_the_step_that_the_call_before_it_counted() -> None:
    steps, calls, _ = count()
    steps.note_former()
    steps.end_step(0, is_block=False)
    assert calls._next_step == 1
    steps.begin_first_block()
    assert (calls._next_step, calls._last_step, calls._top_step) == (0, 0, NO_STEP)


def test_a_value_logged_after_a_block_leaves_its_step_to_it() -> None:
    steps, calls, _ = count()
    steps.end_step(4, is_block=True)
    calls._last_step = 4  # logged again after the block
    steps.begin_block()
    assert calls._last_step == 5
