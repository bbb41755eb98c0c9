"""`chiplog.init` and the related functions on platforms without fcntl: a disabled run, and one warning."""

import logging
import sys
from collections.abc import Mapping
from typing import Any

from chiplog.recording.api.disabled import DisabledRun

Run = DisabledRun
_log = logging.getLogger("chiplog")
_current: DisabledRun | None = None


def init(*given: Any, config: Any = None, **named: Any) -> DisabledRun:
    """Return a run that records nothing, and warn once."""
    global _current
    if _current is None:
        _log.warning(
            "chiplog: Python on %s has no module fcntl; nothing is recorded (mode disabled): train on Linux",
            sys.platform,
        )
    _current = DisabledRun()
    if isinstance(config, Mapping):
        _current.config.update(config)
    return _current


def current() -> DisabledRun | None:
    """Return the run of the last `init()`, None before it."""
    return _current


def log(data: Mapping[str, Any] | None = None, step: int | None = None, *more: Any, **unknown: Any) -> None:
    """Record nothing. The summary of the run has the last numbers."""
    if _current is not None:
        _current.log(data, step)


def finish(exit_code: int = 0, *more: Any, **unknown: Any) -> None:
    """Do nothing."""


def setup(*more: Any, **unknown: Any) -> None:
    """Do nothing."""
