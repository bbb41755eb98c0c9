"""The sender thread's work for torch: the allocator's statistics, with the step that was last."""

import torch

from chiplog.torch import poller
from tests.support.sdk_events import numbers


def test_the_allocators_statistics_are_logged_with_the_step_that_was_last(run, offline, monkeypatch) -> None:
    run.log({"x": 1.0}, step=7)
    monkeypatch.setattr(poller, "sample", lambda cuda: {"chiplog/cuda/ooms": 0.0})
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(run._timing, "device", object())
    while not [entry for entry in numbers(offline()) if entry[0] == "chiplog/cuda/ooms"]:
        run._tick()
    run._timing.device = None
    monkeypatch.undo()
    run.finish()
    assert ("chiplog/cuda/ooms", 7, 0.0) in numbers(offline())
