"""Loggers and warnings of the tests, as they were before each."""

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import chiplog
from chiplog_schemas.model.events import EventKind

Rows = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Return a logger that passes nothing on. Tests assign its handlers: pytest adds some when a test begins."""
    logger = logging.getLogger("train.loop")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield logger
    logger.handlers.clear()
    logger.propagate = True


@pytest.fixture
def recorded(run: chiplog.Run, offline: Any) -> Rows:
    """Return what ends the run and returns its notices of logging and warnings."""

    def read() -> list[dict[str, Any]]:
        run.finish()
        kinds = ("log", "warning", "logs_suppressed", "bad_value")
        return [event.fields for event in offline(EventKind.NOTICE) if event.fields["notice"] in kinds]

    return read


@pytest.fixture
def run(chiplog_dir: Any) -> chiplog.Run:
    """Return an offline run of this process."""
    return chiplog.init(mode="offline", run_id="r", label="rank0", capture_console=False)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return the warnings that are shown, by what a script has in place of Python's function."""
    found: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda *given: found.append((str(given[0]), *given[1:])))
        yield found
        chiplog.capture_warnings(False)
