"""`sync()`: what SummaryWriters are given goes into the run, without W&B's key, until the run finishes."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog.integrations.tensorboard import run_sync, sync
from chiplog.recording.run import current_run
from tests.support.sdk_events import numbers
from tests.support.summary_writers import MODULES

Offline = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def ended(no_run: Path) -> Iterator[None]:
    yield
    if run_sync._active is not None:
        run_sync._active.end()
    chiplog.finish()


@pytest.mark.parametrize("module", MODULES)
def test_values_go_into_the_run_until_it_finishes(module: str, offline: Offline, tmp_path: Path) -> None:
    cls = importlib.import_module(module).SummaryWriter
    before = dict(vars(cls))
    own = cls(str(tmp_path / "events"))
    assert sync(project="p") is sync()
    own.add_scalar("loss", 0.1, 7)
    own.add_hparams({"lr": 0.5}, {"accuracy": 0.75})
    run = current_run.current()
    assert run is not None and (run.project, run.config["lr"]) == ("p", 0.5)
    run.finish()
    assert dict(vars(cls)) == before and run_sync._active is None
    own.add_scalar("loss", 0.2, 8)
    own.close()
    assert numbers(offline()) == [("loss", 7, 0.1), ("accuracy", 8, 0.75)]
    assert list((tmp_path / "events").glob("events.*"))


def test_a_run_that_is_open_ends_it_also_without_values(tmp_path: Path) -> None:
    cls = importlib.import_module(MODULES[0]).SummaryWriter
    before = dict(vars(cls))
    told: list[str] = []
    run = chiplog.init()
    run._end.before_finish = lambda: told.append("another integration")
    sync()
    run.finish()
    assert dict(vars(cls)) == before and told == ["another integration"]


def test_a_block_ends_it_and_the_run_stays_open(offline: Offline, tmp_path: Path) -> None:
    cls = importlib.import_module(MODULES[0]).SummaryWriter
    with chiplog.init(), cls(str(tmp_path / "events")) as own:
        with sync():
            own.add_scalar("loss", 1.0, 1)
        own.add_scalar("loss", 2.0, 2)
        with sync():
            own.add_scalar("loss", 3.0, 3)
    assert numbers(offline()) == [("loss", 1, 1.0), ("loss", 3, 3.0)]
