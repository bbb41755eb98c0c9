"""chiplog: telemetry for distributed training. Every rank logs, nothing is lost, one SQL database answers.

import chiplog
run = chiplog.init(project="gpt", config={"lr": 3e-4})   # every rank calls this, unchanged
run.log({"train/loss": loss}, step=step)
run.finish()
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from chiplog.former_paths import FormerPaths
from chiplog_schemas._version import __version__

sys.meta_path.append(FormerPaths())

_ONLY_SDK = "is in the package chiplog, and only chiplog-sdk is installed; pip install chiplog"

# The command `chiplog` uses no name of the SDK, and loading them takes twice as long as the rest of its start. There a
# name is loaded when it is used; everywhere else all are loaded here, so that no later call has to import anything.
# safeguard: command-loads-no-sdk
_is_command = not {"chiplog_cli", "chiplog.cli"}.isdisjoint(sys.orig_argv) or (
    os.path.basename((getattr(sys, "argv", None) or [""])[0]) == "chiplog"
)
if TYPE_CHECKING or not _is_command:
    from chiplog.recording.api.functions import (
        ChiplogModule,
        Run,
        alert,
        attribute,
        data,
        define_metric,
        finish,
        init,
        log,
        log_artifact,
        log_model,
        phase,
        save,
        setup,
        step,
        use_artifact,
        watch,
    )
    from chiplog.values.metrics import Histogram

    sys.modules[__name__].__class__ = ChiplogModule
    if os.environ.get("CHIPLOG_AS_WANDB") == "1":
        from chiplog.integrations.adapter.as_wandb import take_over as _take_over

        _take_over()

if TYPE_CHECKING:
    from chiplog.artifacts.artifact import Artifact
    from chiplog.integrations.logging.captured_warnings import capture_warnings
    from chiplog.media.audio import Audio
    from chiplog.media.figure import Figure
    from chiplog.media.html import Html
    from chiplog.media.image import Image
    from chiplog.media.object3d import Object3D
    from chiplog.media.table import Table
    from chiplog.media.video import Video
    from chiplog.recording.sharing.config import Config, Summary
    from chiplog.values.artifact_value import ArtifactError
    from chiplog_client.async_client import AsyncClient
    from chiplog_client.client import Client, NoDataError, QueryError
    from chiplog_client.reads.curves.history import run_history
    from chiplog_client.reads.runs.run_tables import runs
    from chiplog_client.results.result import Result
    from chiplog_client.spark import register_store
    from chiplog_page.notebook import ui

    run: Run | None
    config: Config
    summary: Summary

__all__ = [
    "Artifact",
    "ArtifactError",
    "AsyncClient",
    "Audio",
    "Client",
    "Figure",
    "Histogram",
    "Html",
    "Image",
    "NoDataError",
    "Object3D",
    "QueryError",
    "Result",
    "Run",
    "Table",
    "Video",
    "__version__",
    "alert",
    "capture_warnings",
    "config",
    "connect",
    "connect_async",
    "data",
    "define_metric",
    "finish",
    "init",
    "log",
    "log_artifact",
    "log_model",
    "phase",
    "register_store",
    "run",
    "run_history",
    "runs",
    "save",
    "setup",
    "step",
    "summary",
    "ui",
    "use_artifact",
    "watch",
]

_LATER_NAMES = {  # loaded when they are used
    "Artifact": "chiplog.artifacts.artifact",
    "ArtifactError": "chiplog.values.artifact_value",
    "AsyncClient": "chiplog_client.async_client",
    "Audio": "chiplog.media.audio",
    "Client": "chiplog_client.client",
    "Figure": "chiplog.media.figure",
    "Html": "chiplog.media.html",
    "Image": "chiplog.media.image",
    "NoDataError": "chiplog_client.client",
    "Object3D": "chiplog.media.object3d",
    "QueryError": "chiplog_client.client",
    "Result": "chiplog_client.results.result",
    "Table": "chiplog.media.table",
    "Video": "chiplog.media.video",
    "capture_warnings": "chiplog.integrations.logging.captured_warnings",
    "register_store": "chiplog_client.spark",
    "run_history": "chiplog_client.reads.curves.history",
    "runs": "chiplog_client.reads.runs.run_tables",
    "ui": "chiplog_page.notebook",
}


def connect(url: str | None = None, *, dir: "str | os.PathLike[str] | None" = None) -> "Client":
    """Return a client that answers SQL: from the collector at `url`, or about what was recorded under `dir`.

    With neither it uses the variable CHIPLOG_COLLECTOR, else CHIPLOG_DIR, else ~/.chiplog; in a child of a process with
    an open run the directory of that run. There it starts the embedded daemons if journals of ended processes wait and
    no agent runs, with one line on stderr, and waits for a collector that is starting.

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
    opened: Client = _load("chiplog_client.client", "connect").connect(url, dir=dir)
    return opened


async def connect_async(url: str | None = None, *, dir: "str | os.PathLike[str] | None" = None) -> "AsyncClient":
    """Return a client for asyncio, with the queries of `connect`.

    Args:
        url: The collector's address, as of `connect`.
        dir: A CHIPLOG_DIR.

    Returns:
        A client; close it, or use it in `async with`.

    Raises:
        NoDataError: As of `connect`.
        QueryError: As of `connect`.
        ValueError: As of `connect`.

    Examples:
        >>> async with await chiplog.connect_async() as client:
        ...     runs = await client.sql("FROM runs")
        ...     async for batch in client.stream("FROM metrics"):
        ...         print(batch.num_rows)
    """
    opened: AsyncClient = await _load("chiplog_client.async_client", "connect_async").open_async_client(url, dir)
    return opened


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Return `run`, `config` and `summary` of the current run, names that load later, and substitutes of others."""
    if name in _LATER_NAMES:
        return getattr(_load(_LATER_NAMES[name], name), name)
    if not _is_command:
        return attribute(name)
    if name.startswith("__"):
        raise AttributeError(f"module 'chiplog' has no attribute {name!r}")
    return _load_sdk_name(name)


def _load(module: str, name: str) -> Any:
    """Import a module that importing chiplog must not cost. Raises ImportError if chiplog-sdk alone is installed."""
    from importlib import import_module

    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name != module.split(".")[0]:
            raise
        raise ImportError(f"chiplog.{name} {_ONLY_SDK}") from None


def _load_sdk_name(name: str) -> Any:
    """Return a name of the SDK in the process of the command `chiplog`."""
    from chiplog.recording.api import functions as api
    from chiplog.values import metrics

    sys.modules[__name__].__class__ = api.ChiplogModule
    if name in __all__:
        for module in (api, metrics):
            if hasattr(module, name):
                return getattr(module, name)
    return api.attribute(name)
