"""Phases timed by a device's events. The device is a substitute; tests/gpu/test_cuda.py has a real one."""

from functools import partial
from types import SimpleNamespace

import pytest

from chiplog.torch.cuda_timing import CudaTiming
from chiplog_schemas.model.events import EventKind
from tests.support.sdk_events import counted, phases
from tests.support.stand_in_device import resolve


class Event:
    """A timing event of the substitute: the test makes it happen, at a given time."""

    made = 0

    def __init__(self, cuda: "Cuda", device: str, enable_timing: bool) -> None:
        assert device == "cuda"
        assert enable_timing
        Event.made += 1
        self.cuda = cuda
        self.at_ms: float | None = None

    def record(self) -> None:
        self.at_ms = None
        self.cuda.events.append(self)

    def query(self) -> bool:
        return self.at_ms is not None

    def elapsed_time(self, end: "Event") -> float:
        assert self.at_ms is not None and end.at_ms is not None, "asked before both have happened"
        return end.at_ms - self.at_ms


class Cuda:
    """As much of torch.cuda as times phases."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.capturing = False

    def current_device(self) -> int:
        return 0

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def happen(self, every_ms: float) -> None:
        for number, event in enumerate(self.events):
            event.at_ms = number * every_ms
        self.events.clear()


@pytest.fixture
def cuda(run):
    cuda = Cuda()
    stand_in = SimpleNamespace(cuda=cuda, Event=partial(Event, cuda))
    run._timing.device = CudaTiming(stand_in, run._devices.deferred, run._values.append_times)
    yield cuda
    cuda.happen(1.0)


def test_phases_on_a_device_have_its_seconds_and_their_step_once_they_are_over(run, cuda, offline) -> None:
    with run.phase("forward"), run.phase("attention"):
        pass
    with run.phase("load", on_host=True):
        pass
    run.log({"x": 1.0}, step=5)
    run._devices.deferred.poll()
    assert [(step, list(seconds)) for step, seconds in phases(offline())] == [(5, ["load"])]
    cuda.happen(250.0)
    resolve(run)
    run.log({"x": 1.0}, step=6)
    run.finish()
    assert phases(offline())[1] == (5, {"attention": 0.25, "forward": 0.75})


def test_events_are_used_again_and_a_capture_is_timed_by_the_host(run, cuda, offline) -> None:
    Event.made = 0
    for step in range(50):
        with run.phase("forward"):
            pass
        run.log({"x": 1.0}, step=step)
        cuda.happen(1000.0)
        resolve(run)
    assert Event.made == 2
    cuda.capturing = True
    with run.phase("captured"):
        pass
    cuda.capturing = False
    with run.phase("begun before"):
        cuda.capturing = True
    cuda.capturing = False
    run.log({"x": 1.0}, step=50)
    run.finish()
    found = phases(offline())
    assert [seconds for _, seconds in found[:50]] == [{"forward": 1.0}] * 50
    assert sorted(name for _, seconds in found[50:] for name in seconds) == ["begun before", "captured"]
    assert all(value < 0.5 for _, seconds in found[50:] for value in seconds.values())


def test_a_device_that_fails_leaves_the_host_to_time_and_raises_nothing(run, cuda, offline, caplog) -> None:
    def fail():
        raise RuntimeError("CUDA error: device-side assert triggered")

    cuda.current_device = fail
    with run.phase("forward"):
        pass
    del cuda.current_device
    with run.phase("backward"):
        cuda.current_device = fail
    run.log({"x": 1.0})
    del cuda.current_device
    run.finish()
    assert [list(seconds) for _, seconds in phases(offline())] == [["forward", "backward"]]
    assert counted(offline()) == {"device_timing_failed": 2}
    assert len(caplog.records) == 1


def test_phases_that_a_device_never_ends_are_declared_and_hold_no_memory_without_bound(run, cuda, offline) -> None:
    Event.made = 0
    for step in range(3000):
        with run.phase("forward"):
            pass
        run.log({"x": 1.0}, step=step)
    run.finish()
    assert Event.made <= 4096
    stored = [step for step, _ in phases(offline())]
    [lost] = offline(EventKind.LOST)
    assert len(stored) + lost.fields["last"] - lost.fields["first"] + 1 == 3000
