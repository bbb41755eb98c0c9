"""Models that are watched: what is refused, how many, and what a finished run or a child keeps."""

from typing import Any

import torch


def test_what_is_no_model_is_reported_once_and_not_watched(run: Any) -> None:
    for model, every in (("model", 1), (torch.nn.Linear(1, 1), 0)):
        run.watch(model, every=every)
    assert len(run._watches) == 0 and run._diagnostics.counts["not_a_model"] == 2


def test_a_model_that_is_gone_makes_room_for_another(run: Any) -> None:
    models = [torch.nn.Linear(1, 1) for _ in range(70)]
    for model in models:
        run.watch(model)
    assert len(run._watches) == 64
    del model
    models.clear()
    last = torch.nn.Linear(1, 1)
    run.watch(last)
    assert len(run._watches) == 1


def test_a_child_stops_what_it_inherited(run: Any) -> None:
    model = torch.nn.Linear(1, 1)
    run.watch(model)
    [watch] = run._watches._watches
    run._watches.begin_in_child()
    assert watch.is_stopped and len(run._watches) == 0


def test_a_finished_run_watches_nothing(run: Any) -> None:
    run.finish()
    run.watch(torch.nn.Linear(1, 1))
    assert len(run._watches) == 0
