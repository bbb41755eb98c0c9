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
    import os

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


def connect(url: str | None = None, *, dir: "str | os.PathLike[str] | None" = None) -> "Client":
    """Return a client that answers SQL: from the collector at `url`, or about what was recorded under `dir`.

    With neither it uses the variable CHIPLOG_COLLECTOR, else CHIPLOG_DIR, else ~/.chiplog. There it starts the embedded
    daemons if journals of ended processes wait and no agent runs, with one line on stderr, and waits for a collector
    that is starting.

    Args:
        url: The collector's address as agents have it: tcp://HOST:PORT (SQL is answered at the next port) or
            ipc:///PATH.
        dir: A CHIPLOG_DIR.

    Returns:
        A client; close it, or use it as a context manager.

    Raises:
        NoDataError: Nothing has been recorded there.
        QueryError: The collector does not answer within 5 s, or refuses this host's key; `kind` is unreachable.
        ValueError: The address is malformed, or its keys are missing (`chiplog keys`): a collector on another host
            needs a reader's key.

    Examples:
        >>> with chiplog.connect() as client:
        ...     client.sql("SELECT step, value FROM metrics WHERE key = ?", ["train/loss"]).df()
    """
    from chiplog.query import client  # importing chiplog must not cost what a client needs

    return client.connect(url, dir=dir)


def __getattr__(name: str) -> Any:
    """Return `run`, `config` and `summary` of the current run, query classes, and substitutes for foreign names."""
    if name in _QUERY_NAMES:
        from importlib import import_module

        return getattr(import_module(f"chiplog.{_QUERY_NAMES[name]}"), name)
    return attribute(name)


sys.modules[__name__].__class__ = ChiplogModule
