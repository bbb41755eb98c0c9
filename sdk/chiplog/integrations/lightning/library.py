"""Chooses between Lightning's two packages: the one that the script imported, else the one that is installed."""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

_PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def package() -> ModuleType:
    """Return the package that has Trainer, Callback and loggers.

    Raises:
        ImportError: None is installed.

    """
    loaded = [module for module in _PACKAGES.values() if module in sys.modules]
    installed = [module for name, module in _PACKAGES.items() if not loaded and find_spec(name) is not None]
    for module in loaded or installed:
        return import_module(module)
    raise ImportError("chiplog.integrations.lightning needs Lightning, which is not installed; pip install lightning")
