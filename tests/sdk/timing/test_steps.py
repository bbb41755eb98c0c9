"""Whole steps: their numbers, what each took, the waiting for data and the collector's pauses."""

import gc
import sys
import threading
import time
import weakref

import pytest

from chiplog.native.loader import hot_path
from chiplog.timing.phases import Timing
from chiplog_schemas.model.events import EventKind
from tests.support.safeguard import proves
from tests.support.sdk_events import numbers, phases
from tests.support.waiting import wait_until


def named(events) -> list[tuple[int, list[str]]]:
    """Return (step, names of phases) without the collector's pauses, which come when they come."""
    return [(step, [name for name in seconds if name != "gc"]) for step, seconds in phases(events)]


def test_a_call_behind_each_step_counts_them_and_gathers_their_phases(run, offline) -> None:
    for number in range(3):
        with run.phase("forward"):
            pass
        run.log({"loss": number})
        with run.phase("backward"):
            time.sleep(0.002)
        run.log({"lr": 0.1}) if number else None
        run.step()
    run.finish()
    assert numbers(offline()) == [("loss", 0, 0.0), ("loss", 1, 1.0), ("lr", 1, 0.1), ("loss", 2, 2.0), ("lr", 2, 0.1)]
    assert named(offline()) == [
        (0, ["forward"]),  # before the first call it was not known that steps are marked
        (0, ["backward"]),
        (1, ["forward", "backward", "step"]),
        (2, ["forward", "backward", "step"]),
    ]
    assert all(seconds["step"] >= seconds["backward"] >= 0.002 for _, seconds in phases(offline())[2:])


def test_a_step_has_the_number_that_was_logged_in_it(run, offline) -> None:
    for number in (100, 110, 120):
        run.log({"loss": 1.0}, step=number)
        run.step()
    run.log({"loss": 1.0})
    run.finish()
    assert [step for step, _ in named(offline())] == [100, 110, 120][1:]
    assert [step for _, step, _ in numbers(offline())] == [100, 110, 120, 121]


def test_with_around_each_step_leaves_out_what_is_between_them(run, offline) -> None:
    measured = []
    for _ in range(3):
        began = time.perf_counter()
        with run.step():
            with run.phase("forward"):
                time.sleep(0.001)
            run.log({"loss": 1.0})
        measured.append(time.perf_counter() - began)
        time.sleep(0.05)  # for example an evaluation
    run.finish()
    assert [step for _, step, _ in numbers(offline())] == [0, 1, 2]
    assert named(offline()) == [(step, ["forward", "step"]) for step in range(3)]
    took = [seconds["step"] for _, seconds in phases(offline())]
    # Without what is between them, which would make each longer than measured.
    assert all(0.001 <= ours <= outer for ours, outer in zip(took, measured, strict=True)), (took, measured)


def test_what_is_logged_to_a_step_after_its_block_does_not_put_the_next_block_into_it(run, offline) -> None:
    for number in (0, 1, 7, 8):
        with run.step(), run.phase("forward"):
            if number == 7:
                run.log({"x": 1.0}, step=number)
        run.log({"loss": 1.0}, step=number)
    run.finish()
    assert [step for step, _ in named(offline())] == [0, 1, 7, 8]
    assert [step for _, step, _ in numbers(offline())] == [0, 1, 7, 7, 8]


def test_an_exception_ends_its_step_and_goes_on(run, offline) -> None:
    with pytest.raises(ZeroDivisionError), run.step():
        raise ZeroDivisionError
    with run.step():
        run.log({"x": 1.0})
    run.finish()
    assert [step for step, _ in named(offline())] == [0, 1]
    assert [step for _, step, _ in numbers(offline())] == [1]


def test_waiting_for_data_is_a_phase_and_part_of_its_step(run, offline) -> None:
    class Loader:
        dataset = "a dataset"

        def __len__(self) -> int:
            return 3

        def __iter__(self):
            for number in range(3):
                time.sleep(0.004)
                yield number

    loader = run.data(Loader())
    assert (len(loader), loader.dataset) == (3, "a dataset")
    for epoch in range(2):
        for number in loader:
            with run.step():
                run.log({"number": number, "epoch": epoch})
    run.finish()
    assert [step for _, step, _ in numbers(offline())[::2]] == list(range(6))
    found = phases(offline())
    assert [step for step, _ in found] == [*range(6)], "what came after the last batch belongs to no step"
    for _, seconds in found[:6]:
        assert 0.004 <= seconds["data"] <= seconds["step"]


def test_the_loader_keeps_no_batch_alive_and_its_errors_are_its_own(run) -> None:
    class Batch:
        pass

    def batches():
        yield Batch()
        yield Batch()
        raise RuntimeError("a worker died")

    iterator = iter(run.data(batches()))
    first = weakref.ref(next(iterator))
    assert first() is None
    next(iterator)
    with pytest.raises(RuntimeError, match="a worker died"):
        next(iterator)
    with pytest.raises(TypeError):
        len(run.data(batches()))


def callbacks_of_chiplog() -> list[object]:
    """Return the collector's callbacks that are functions or methods of chiplog, in C or in Python."""
    owners = [(noted, type(getattr(noted, "__self__", None)).__module__) for noted in gc.callbacks]
    return [noted for noted, owner in owners if f"{getattr(noted, '__module__', '')} {owner}".count("chiplog")]


def test_the_collectors_pauses_belong_to_the_step_they_stopped(run, offline) -> None:
    run.step()
    assert callbacks_of_chiplog() or hot_path is None
    gc.collect()
    run.step()
    run.finish()
    [seconds] = [seconds for _, seconds in phases(offline()) if "step" in seconds]
    assert 0 < seconds["gc"] <= seconds["step"]
    assert not callbacks_of_chiplog()


def test_a_step_after_the_end_is_counted_as_bad_and_not_recorded(run, offline, caplog) -> None:
    run.finish()
    run.step()
    with run.step():
        pass
    assert offline(EventKind.PHASES) == []
    assert "after finish()" in caplog.text
    assert not callbacks_of_chiplog()


@proves("long-step-survives-kill", "what ended in a long step survives a kill in it")
@proves("partial-phase-counts-once", "what was said of a long step is not said again at its end", value="totals")
def test_what_ended_in_a_step_that_goes_on_is_on_disk_before_its_end_and_counts_once(run, offline) -> None:
    with run.phase("forward"):
        pass
    run.step()
    with run.phase("forward"):
        time.sleep(0.002)
    [(_, forward)] = wait_until(
        lambda: [found for found in phases(offline()) if found[0] == 1], "phases of an open step"
    )
    assert list(forward) == ["forward"]
    with run.phase("backward"):
        time.sleep(0.002)
    run.step()
    run.step()
    run.finish()
    assert named(offline()) == [
        (0, ["forward"]),
        (1, ["forward"]),
        (1, ["backward", "step"]),
        (2, ["step"]),
    ]
    rest = phases(offline())[2][1]
    assert forward["forward"] >= 0.002 <= rest["backward"] < rest["step"]


def test_what_another_thread_says_early_is_neither_lost_nor_counted_twice() -> None:
    timing, said, is_over = Timing(), dict[str, float](), threading.Event()
    taken = dict[str, float]()

    def add_to(sums: dict[str, float], seconds: dict[str, float]) -> None:
        for name, value in seconds.items():
            sums[name] = sums.get(name, 0.0) + value

    def say() -> None:
        while not is_over.is_set():
            add_to(said, timing.take_partial(timing.totals))

    count, before = 0, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread = threading.Thread(target=say)
        thread.start()
        while count < 50_000 or not (said and taken):
            timing.add(f"phase {count % 3}", 1.0)
            count += 1
            if count % 70 == 0:
                add_to(taken, timing.take_totals())
        is_over.set()
        thread.join()
    finally:
        sys.setswitchinterval(before)
    add_to(taken, timing.take_totals())
    assert sum(said.values()) + sum(taken.values()) == count
