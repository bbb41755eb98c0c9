"""Libraries that media need, imported when a value needs them."""

import sys
from importlib import import_module
from typing import Any

from chiplog.values.media_value import MediaError
from chiplog_schemas.interrupts import handlers_held


def load_library(module: str, package: str, purpose: str) -> Any:
    """Import a module that may be missing. Raises MediaError with the command that installs its package."""
    if module in sys.modules and sys.modules[module] is not None:
        return sys.modules[module]
    try:
        with handlers_held():  # an interrupted import of a C extension cannot be repeated in the same process
            return import_module(module)
    except ImportError:
        message = f"{purpose} needs {package}, which is not installed; pip install 'chiplog[media]'"
        raise MediaError(message) from None
