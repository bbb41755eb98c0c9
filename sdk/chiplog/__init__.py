"""chiplog: telemetry for distributed training. Every rank logs, nothing is lost, one SQL database answers.

import chiplog
run = chiplog.init(project="gpt", config={"lr": 3e-4})   # every rank calls this, unchanged
run.log({"train/loss": loss}, step=step)
run.finish()
"""

import sys
from typing import TYPE_CHECKING, Any

from chiplog._version import __version__
from chiplog.recording.api import (
    ChiplogModule,
    Run,
    alert,
    attribute,
    data,
    define_metric,
    finish,
    init,
    log,
    phase,
    save,
    setup,
    step,
    watch,
)
from chiplog.values.metrics import Histogram

if TYPE_CHECKING:
    from chiplog.query.client import Client, NoDataError, QueryError
    from chiplog.query.result import Result
    from chiplog.recording.config import Config, Summary

    run: Run | None
    config: Config
    summary: Summary

__all__ = [
    "Client",
    "Histogram",
    "NoDataError",
    "QueryError",
    "Result",
    "Run",
    "__version__",
    "alert",
    "config",
    "connect",
    "data",
    "define_metric",
    "finish",
    "init",
    "log",
    "phase",
    "run",
    "save",
    "setup",
    "step",
    "summary",
    "watch",
]

_QUERY_NAMES = {
    "Client": "query.client",
    "NoDataError": "query.client",
    "QueryError": "query.client",
    "Result": "query.result",
}


def connect(url: str | None = None, **options: Any) -> "Client":
    """Return a client for SQL over all runs; see `chiplog.query.client.connect`."""
    from chiplog.query import client  # importing chiplog must not cost what a client needs

    return client.connect(url, **options)


def __getattr__(name: str) -> Any:
    """Return `run`, `config` and `summary` of the current run, query classes, and substitutes for foreign names."""
    if name in _QUERY_NAMES:
        from importlib import import_module

        return getattr(import_module(f"chiplog.{_QUERY_NAMES[name]}"), name)
    return attribute(name)


sys.modules[__name__].__class__ = ChiplogModule
