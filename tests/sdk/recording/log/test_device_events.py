"""Values on devices: those of the host are logged at once, the wait of the summary is bounded, and a child begins."""

from typing import Any

import torch

from chiplog.recording.log import device_events
from tests.support.sdk_events import numbers


def test_what_is_made_of_tensors_on_the_host_is_logged_at_once(run: Any, offline: Any) -> None:
    run._devices.log_made(3, [torch.tensor([1.0, 2.0]), torch.tensor(4.0)], lambda given: {"sum": sum(given)})
    assert not run._devices.deferred.is_used
    run.finish()
    assert numbers(offline()) == [("sum", 3, 7.0)]


def test_a_reader_of_the_summary_waits_for_a_device_for_a_bounded_time(run: Any, monkeypatch: Any) -> None:
    class Never:
        def is_ready(self) -> bool:
            return False

        def append(self) -> None:
            raise AssertionError

        def release(self) -> None:
            pass

    monkeypatch.setattr(device_events, "_SUMMARY_WAIT_S", 0.01)
    run._devices.deferred.add("gpu", Never())
    run._devices.wait()
    assert run._devices.deferred.pending == 1


def test_a_child_waits_for_no_value_of_its_parent(run: Any) -> None:
    before = run._devices.deferred
    kept = run._devices.begin_in_child()
    assert kept[0] is before and run._devices.deferred is not before


def test_a_device_that_fails_is_reported_and_training_continues(run: Any, monkeypatch: Any) -> None:
    def lost() -> None:
        raise RuntimeError("CUDA error: device is lost")

    monkeypatch.setattr(device_events, "current_device", lost)
    run.log({"new": 1.0})
    assert run._devices.current is None and run._diagnostics.counts["internal_error"] == 1
