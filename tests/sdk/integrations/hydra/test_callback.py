"""The callback for Hydra, on configs as Hydra makes them; tests/integrations has the real one."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from chiplog.recording.run import current_run
from chiplog.recording.run.run import Run
from chiplog.recording.run.run_notices import RunNotices

MODULE = "chiplog.integrations.hydra.callback"


@pytest.fixture
def module(no_run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "hydra", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "hydra.experimental", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "hydra.experimental.callback", SimpleNamespace(Callback=object))
    yield import_module(MODULE)
    for name in (MODULE, "chiplog.integrations.hydra"):
        sys.modules.pop(name, None)


def config_of(mode: str, overrides: str = "") -> Any:
    """Return a config with the part of Hydra that the callback reads."""
    mode_of_hydra = SimpleNamespace(name=mode)
    own = {
        "job": {"name": "train", "override_dirname": overrides, "num": 1},
        "sweep": {"dir": "multirun/1"},
        "overrides": {"task": overrides.split()},
        "runtime": {"output_dir": "/out"},
        "mode": mode_of_hydra,
    }
    return OmegaConf.create({"lr": 0.5, "twice": "${lr}", "hydra": own}, flags={"allow_objects": True})


def opened() -> Run:
    run = current_run.current()
    assert run is not None
    return run


def test_a_job_is_a_run_with_its_config(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    notices: list[Any] = []
    monkeypatch.setattr(RunNotices, "emit", lambda self, *fields: notices.append(fields))
    report = module.ChiplogCallback(project="p")
    report.on_job_start(config_of("RUN", "lr=0.5"), task_function=None)
    run = opened()
    assert (run.project, run.name, run.group) == ("p", "train", None)
    assert dict(run.config) == {"lr": 0.5, "twice": 0.5}
    assert notices == [("output_dir", "/out", {"overrides": ["lr=0.5"], "job": 0}, "info")]
    report.on_job_end(config_of("RUN"), SimpleNamespace(_return_value=1, status=SimpleNamespace(name="COMPLETED")))
    assert run._finished
    assert not run._end.status.is_failed


def test_jobs_of_a_multirun_are_runs_of_one_group(module: Any) -> None:
    report = module.ChiplogCallback()
    runs = []
    for overrides in ("lr=0.5", "lr=1"):
        report.on_job_start(config_of("MULTIRUN", overrides))
        runs.append(opened())
    assert [(run.name, run.group) for run in runs] == [("train lr=0.5", "multirun/1"), ("train lr=1", "multirun/1")]
    assert runs[0]._finished
    assert not runs[1]._finished


def test_a_job_that_raises_has_failed(module: Any) -> None:
    report = module.ChiplogCallback()
    report.on_job_start(config_of("RUN"))
    run = opened()
    error = ValueError("fails")
    report.on_job_end(config_of("RUN"), SimpleNamespace(_return_value=error, status=SimpleNamespace(name="FAILED")))
    assert run._end.status.is_failed


def test_a_config_without_hydra_is_one_line(module: Any, caplog: pytest.LogCaptureFixture) -> None:
    module.ChiplogCallback().on_job_start(OmegaConf.create({"lr": 1}))
    assert len(caplog.records) == 1


def test_of_two_callbacks_the_first_one_records_the_job(module: Any, caplog: pytest.LogCaptureFixture) -> None:
    first, second = module.ChiplogCallback(), module.ChiplogCallback()
    ended = SimpleNamespace(_return_value=1, status=SimpleNamespace(name="COMPLETED"))
    runs = []
    for mode in ("RUN", "RUN"):
        config = config_of(mode)
        for callback in (first, second):
            callback.on_job_start(config)
        runs.append(opened())
        assert not runs[-1]._finished
        for callback in (first, second):
            callback.on_job_end(config, ended)
    assert runs[0] is not runs[1]
    assert [run._finished for run in runs] == [True, True]
    assert caplog.messages == 2 * ["chiplog: Hydra has several ChiplogCallbacks; the first one records"]
