"""The integration with Lightning over the stand-in of tests/support."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.lightning_trainer import Callback, Logger


@pytest.fixture
def lightning(no_run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Return what imports a module of the integration."""
    package: Any = ModuleType("lightning.pytorch")
    package.loggers = SimpleNamespace(logger=SimpleNamespace(Logger=Logger))
    package.Callback = Callback
    monkeypatch.setitem(sys.modules, "lightning.pytorch", package)
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    yield lambda name: import_module(f"chiplog.integrations.lightning.{name}")
    for name in [name for name in sys.modules if name.startswith("chiplog.integrations.lightning")]:
        del sys.modules[name]
