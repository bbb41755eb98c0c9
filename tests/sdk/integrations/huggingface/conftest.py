"""The integration with Transformers over the stand-in of tests/support."""

import sys
from collections.abc import Iterator
from importlib import import_module, reload
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import transformers_trainer


@pytest.fixture
def transformers(no_run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the stand-in, for which the integration is imported."""
    stand_in: Any = reload(transformers_trainer)  # the integration replaces methods of its classes
    table: dict[str, Any] = {}
    package: Any = ModuleType("transformers")
    package.trainer_callback = stand_in
    package.Trainer, package.TrainerCallback = stand_in.Trainer, stand_in.TrainerCallback
    integrations: Any = ModuleType("transformers.integrations")
    integrations.integration_utils = ModuleType("transformers.integrations.integration_utils")
    integrations.integration_utils.INTEGRATION_TO_CALLBACK = stand_in.table = table
    monkeypatch.setitem(sys.modules, "transformers", package)
    monkeypatch.setitem(sys.modules, "transformers.integrations", integrations)
    stand_in.ChiplogCallback = import_module("chiplog.integrations.huggingface").ChiplogCallback
    yield stand_in
    for name in [name for name in sys.modules if name.startswith("chiplog.integrations.huggingface")]:
        del sys.modules[name]
