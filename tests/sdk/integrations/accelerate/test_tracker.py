"""The tracker for Accelerate on a stand-in for it; tests/integrations has the real one."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import chiplog
from chiplog_schemas.model.events import EventKind
from tests.support.journals import read_events
from tests.support.sdk_events import numbers

MODULE = "chiplog.integrations.accelerate.tracker"


def _import(monkeypatch: pytest.MonkeyPatch, **names: Any) -> Any:
    package: Any = ModuleType("accelerate")
    package.tracking = ModuleType("accelerate.tracking")
    package.tracking.GeneralTracker = type("GeneralTracker", (), {"__init__": lambda self: None})
    vars(package.tracking).update(names)
    monkeypatch.setitem(sys.modules, "accelerate", package)
    return import_module(MODULE).ChiplogTracker


@pytest.fixture(autouse=True)
def fresh(no_run: Path) -> Iterator[None]:
    yield
    for name in (MODULE, "chiplog.integrations.accelerate"):
        sys.modules.pop(name, None)


def test_it_is_registered_and_logs_into_a_run_that_it_opens_and_ends(
    chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[Any] = []
    cls = _import(monkeypatch, register_tracker_class=registered.append)
    assert registered == [cls]
    tracker = cls("mnist", name="tiny")
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1})
    tracker.log({"loss": 0.5}, step=3)
    tracker.log_images({"noise": [np.zeros((4, 4, 3))]}, step=3)
    tracker.log_table("rows", columns=["x"], data=[[1]], step=3)
    run = tracker.tracker
    assert (run.project, run.name, run.config["lr"]) == ("mnist", "tiny", 0.1)
    tracker.finish()
    assert run._finished
    events = read_events(chiplog_dir / "offline")
    assert numbers(events) == [("loss", 3, 0.5)]
    assert len([event for event in events if event.kind == EventKind.MEDIA]) == 2


def test_the_run_of_the_script_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run = chiplog.init()
    tracker = _import(monkeypatch, register_tracker_class=lambda cls: None)("mnist")
    tracker.start()
    tracker.finish()
    assert tracker.tracker is run
    assert not run._finished


def test_a_version_without_the_registry_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _import(monkeypatch)
    assert caplog.messages == [
        'chiplog: this version of Accelerate takes no log_with="chiplog"; pass log_with=ChiplogTracker("PROJECT")'
    ]


def test_of_two_trackers_of_a_run_the_first_one_records(
    chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cls = _import(monkeypatch, register_tracker_class=lambda cls: None)
    trackers = [cls("mnist"), cls("mnist")]
    for tracker in trackers:
        tracker.start()
        tracker.store_init_configuration({"lr": 0.1})
    for tracker in trackers:
        tracker.log({"loss": 0.5}, step=3)
    run = trackers[1].tracker
    trackers[0].finish()
    assert numbers(read_events(chiplog_dir / "offline")) == [("loss", 3, 0.5)]
    assert caplog.messages == [f"chiplog: init_trackers() was called again for run {run.id}; the first tracker records"]
