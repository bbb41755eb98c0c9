"""W&B's interface over chiplog: `import chiplog.integrations.wandb as wandb` in place of `import wandb`.

Unchanged code gets it by `chiplog run --as wandb -- …` or `python -m chiplog.integrations.wandb train.py`. No network
is used, nothing raises into training, and names of W&B that chiplog lacks do nothing, with one line each.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TextIO

from chiplog.artifacts.artifact import Artifact
from chiplog.integrations.adapter.module_aliases import add_modules
from chiplog.integrations.wandb.charts import plot_table, visualize
from chiplog.integrations.wandb.errors import CommError, Error, UsageError, harmless, warn, write_line
from chiplog.integrations.wandb.mirror import mirror
from chiplog.integrations.wandb.names import MEDIA, AlertLevel, lookup, module_names
from chiplog.integrations.wandb.settings import Settings
from chiplog.integrations.wandb.start import attach, current, generate_id, global_run, init
from chiplog.integrations.wandb.state.run_config import Config
from chiplog.integrations.wandb.stored import api as api  # Ray reads wandb.api.api_key
from chiplog.integrations.wandb.stored.api import Api
from chiplog.integrations.wandb.stored.restore import restore_file
from chiplog.integrations.wandb.wandb_run import Run, RunDisabled
from chiplog.recording.api import process_hooks
from chiplog.recording.api.functions import ChiplogModule, attribute
from chiplog.recording.run.current_run import open_runs
from chiplog.safety import foreign_names
from chiplog.values.metrics import Histogram

_attach = attach  # Lightning asks whether this one exists
__version__ = "0.31.0"
__all__ = [
    "AlertLevel",
    "Api",
    "Artifact",
    "Audio",
    "CommError",
    "Config",
    "Error",
    "Histogram",
    "Html",
    "Image",
    "Object3D",
    "Run",
    "RunDisabled",
    "Settings",
    "Table",
    "UsageError",
    "Video",
    "alert",
    "attach",
    "config",
    "define_metric",
    "finish",
    "generate_id",
    "init",
    "log",
    "log_artifact",
    "log_model",
    "login",
    "mirror",
    "plot_table",
    "run",
    "save",
    "summary",
    "use_artifact",
    "visualize",
    "watch",
]

_OF_OTHERS = frozenset(("analytics", "helper", "patched", "proto", "wandb_torch"))  # names that W&B has by accident
_OF_RUN = frozenset(
    [
        "alert",
        "define_metric",
        "display",
        "finish",
        "log_artifact",
        "log_model",
        "save",
        "status",
        "unwatch",
        "use_artifact",
        "use_model",
        "watch",
        "write_logs",
        *foreign_names.HARMLESS_OF_RUNS,
    ]
)


def log(data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, sync: bool | None = None) -> None:
    """Log to the current run; see `Run.log`. Without a run it does nothing, with one line."""
    found = current()
    if found is None:
        warn("wandb.log() without a run records nothing; call wandb.init() first")
    else:
        found.log(data, step, commit, sync)


def login(*given: Any, **named: Any) -> bool:
    """Return True: chiplog has no accounts."""
    return True


def setup(*given: Any, **named: Any) -> None:
    """Do nothing: nothing has to be started."""


def require(*given: Any, **named: Any) -> None:
    """Do nothing."""


ensure_configured = require


def teardown(exit_code: int | None = None) -> None:
    """Finish the open runs of this process."""
    for _ in open_runs():
        finish(exit_code)


def restore(name: str, run_path: str | None = None, replace: bool = False, root: str | None = None) -> TextIO | None:
    """Return a file that was saved to a run, opened for reading; None if the run has none of this name.

    Args:
        name: The name of the file in its run.
        run_path: The run of the file, as `project/ID`. Default: the current run.
        replace: Read it also if it is there.
        root: The directory to write it to. Default: `run.dir`, else the working directory.

    Raises:
        CommError: It cannot be read or written.

    """
    return restore_file(current(), name, run_path, replace, root)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """Finish the current run, if there is one."""
    found = current()
    if found is not None:
        found.finish(exit_code)


join = finish


def termlog(text: str = "", *given: Any, **named: Any) -> None:
    """Write a line to stderr, as W&B does."""
    write_line(f"wandb: {text}")


def termwarn(text: str = "", *given: Any, **named: Any) -> None:
    """Write a warning to stderr, as W&B does."""
    write_line(f"wandb: WARNING {text}")


def termerror(text: str = "", *given: Any, **named: Any) -> None:
    """Write an error to stderr, as W&B does."""
    write_line(f"wandb: ERROR {text}")


def _call(name: str) -> Any:
    def call(*given: Any, **named: Any) -> Any:
        found = current()
        if found is None:
            warn(f"wandb.{name}() without a run does nothing; call wandb.init() first")
            return None
        return getattr(found, name)(*given, **named)

    return call


class _Module(ChiplogModule):
    """The module itself: `run`, `config` and `summary` are those of the current run."""

    def __getattr__(self, name: str) -> Any:
        if name == "run":
            return global_run()
        if name in ("config", "summary"):
            found = current()
            return attribute(name) if found is None else getattr(found, name)
        if name in MEDIA:
            return getattr(import_module("chiplog.integrations.wandb.media"), MEDIA[name])
        if name in _OF_RUN:
            return _call(name)
        if name in foreign_names.MODULE_NAMES or name in _OF_OTHERS:
            return harmless(name)
        raise AttributeError(f"module 'wandb' has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("config", "summary"):
            getattr(self, name).update(value)
        elif name != "run":  # libraries set `wandb.run = None` after a run
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Module
process_hooks.install()  # a parent of a pool says whether it ended well, although only its workers have runs
add_modules(__name__, module_names(), lookup)
wandb_sdk, wandb_lib = sys.modules[f"{__name__}.sdk"], sys.modules[f"{__name__}.sdk.lib"]
