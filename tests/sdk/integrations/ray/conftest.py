"""The integration with Ray over the names that it imports of it; tests/integrations has the real one."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from chiplog.recording.run import current_run

_EXECUTION = "ray.train.v2._internal.execution"
_PACKAGES = ("ray", "ray.train", "ray.train.v2", "ray.train.v2._internal", _EXECUTION, "ray.tune")


class Utils:
    """What `ray.train.report()` calls."""

    def __init__(self, context: Any) -> None:
        self.context = context

    def report(self, metrics: Any, checkpoint: Any = None, **more: Any) -> None:
        self.context.report_call_index += 1
        if checkpoint is not None:
            self.context.checkpoint = checkpoint


class Worker:
    """A worker of Ray Train, as far as the callback sees it."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.error: Any = None
        self.is_running = False
        thread = SimpleNamespace(get_error=lambda: self.error, is_running=lambda: self.is_running)
        self.context = SimpleNamespace(
            train_run_context=SimpleNamespace(run_id="abc", train_loop_config={"lr": 0.5}),
            execution_context=SimpleNamespace(training_thread_runner=thread),
            checkpoint=None,
            report_call_index=0,
            get_experiment_name=lambda: "tiny",
            get_world_rank=lambda: rank,
            get_local_rank=lambda: 0,
            get_world_size=lambda: world_size,
            get_local_world_size=lambda: 1,
        )
        self.utils = Utils(self.context)


@pytest.fixture
def ray(chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return what imports a module of the integration, in a worker of this rank."""
    workers: list[Worker] = []
    named = {
        f"{_EXECUTION}.callback": {"WorkerCallback": object},
        f"{_EXECUTION}.context": {"get_train_context": lambda: workers[-1].context},
        f"{_EXECUTION}.train_fn_utils": {"get_train_fn_utils": lambda: workers[-1].utils},
        "ray.tune.logger": {"LoggerCallback": object},
    }
    for name in (*_PACKAGES, *named):
        module = ModuleType(name)
        vars(module).update(named.get(name, {"__path__": []}))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("CHIPLOG_MODE", "offline")
    monkeypatch.setenv("CHIPLOG_RUN_ID", "")
    monkeypatch.setattr(current_run, "_current", None)

    def imported(name: str, rank: int = 0, world_size: int = 2) -> Any:
        workers.append(Worker(rank, world_size))
        return import_module(f"chiplog.integrations.ray.{name}"), workers[-1]

    yield imported
    for name in [name for name in sys.modules if name.startswith("chiplog.integrations.ray")]:
        del sys.modules[name]
