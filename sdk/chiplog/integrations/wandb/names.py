"""The names below `wandb` that scripts and libraries import, each with the class that W&B has there."""

from enum import Enum
from importlib import import_module
from typing import Any

from chiplog.artifacts.artifact import Artifact
from chiplog.integrations.tensorboard.patch import Sync
from chiplog.integrations.wandb import api, charts
from chiplog.integrations.wandb.errors import AuthenticationError, CommError, ConfigError, Error, UsageError, tell
from chiplog.integrations.wandb.run_config import Config
from chiplog.integrations.wandb.settings import Settings
from chiplog.integrations.wandb.start import current, generate_id
from chiplog.integrations.wandb.wandb_run import Run, RunDisabled
from chiplog.safety import foreign_names

# Modules in which every name is harmless.
_WITHOUT_NAMES = """
    apis cli.cli data_types integration.catboost integration.gym integration.lightgbm integration.sb3
    integration.torch integration.xgboost sdk.data_types sdk.lib.filesystem
"""
_OF_KERAS = ("WandbCallback", "WandbEvalCallback", "WandbMetricsLogger", "WandbModelCheckpoint")
_stand_ins: dict[str, Any] = {}


class AlertLevel(Enum):
    """The levels of `run.alert`."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


def lookup(name: str) -> Any:
    """Return a name of a module below `wandb` that needs another library, or what does nothing in its place."""
    module, _, own = name.rpartition(".")
    if own in _OF_KERAS and "keras" in module.split("."):
        return getattr(import_module("chiplog.integrations.wandb.keras_callbacks"), own)
    return harmless(name)


def harmless(name: str) -> Any:
    """Return what does nothing in place of a name of W&B that chiplog lacks, and say so once."""
    if name not in _stand_ins:
        _stand_ins[name] = foreign_names.stand_in(name.rpartition(".")[2])
        tell(foreign_names.unavailable("wandb", name).message)
    return _stand_ins[name]


def module_names() -> dict[str, dict[str, Any]]:
    """Return the modules below `wandb`, and the names in each."""
    errors = {
        "Error": Error,
        "CommError": CommError,
        "UsageError": UsageError,
        "AuthenticationError": AuthenticationError,
    }
    return {
        "errors.errors": errors,
        "errors.term": {name: _lines(name) for name in ("termlog", "termwarn", "termerror")},
        "plot": {name: getattr(charts, name) for name in ("bar", "histogram", "line", "plot_table", "scatter")},
        "env": {"set_project": _nothing, "get_project": _nothing},
        "util": {"generate_id": generate_id, "json_dumps_safer": _json},
        "sdk": {"Artifact": Artifact, "Settings": Settings, "Config": Config},
        "sdk.wandb_run": {"Run": Run},
        "sdk.wandb_settings": {"Settings": Settings},
        "sdk.wandb_config": {"Config": Config},
        "sdk.lib": {"RunDisabled": RunDisabled},
        "sdk.lib.disabled": {"RunDisabled": RunDisabled},
        "sdk.lib.config_util": {"ConfigError": ConfigError},
        "sdk.lib.runid": {"generate_id": generate_id},
        "sdk.lib.telemetry": {"context": _Context},
        "apis.public": {"Api": api.Api, "Run": api.Run, "Runs": api.Runs, "File": api.File},
        "tensorboard": _TENSORBOARD,
        "keras": {},
        "integration.keras.callbacks": {},
        "integration.tensorboard": _TENSORBOARD,
        **{name: {} for name in _WITHOUT_NAMES.split()},
    }


def patch_tensorboard(
    save: Any = None, tensorboard_x: Any = None, pytorch: Any = None, root_logdir: str = "", **_: Any
) -> None:
    """Log what SummaryWriters are given to the current run, until `unpatch()`.

    Args:
        save: Accepted.
        tensorboard_x: Accepted.
        pytorch: Accepted.
        root_logdir: A directory above those of the writers, whose paths below it are prefixes of keys.

    """
    unpatch_tensorboard()

    def log(data: dict[str, Any], step: int | None) -> None:
        run = current()
        if run is None:
            tell("values of a SummaryWriter without a run are not recorded; call wandb.init() first")
        else:
            run.log(data, step)

    def configure(values: dict[str, Any]) -> None:
        run = current()
        if run is not None:
            run.config.setdefaults(values)

    def report(where: str, error: Exception) -> None:
        tell(f"what a SummaryWriter was given is not recorded: {type(error).__name__} {error}")

    _patched.append(Sync(log, configure, report, root_logdir))
    _patched[0].begin()


def unpatch_tensorboard() -> None:
    """Undo `patch()`."""
    while _patched:
        _patched.pop().end()


_patched: list[Sync] = []
_TENSORBOARD = {"patch": patch_tensorboard, "unpatch": unpatch_tensorboard}


def _lines(name: str) -> Any:
    def write(*given: Any, **named: Any) -> None:
        from chiplog.integrations import wandb

        getattr(wandb, name)(*given, **named)

    return write


def _nothing(*given: Any, **named: Any) -> None:
    """Do nothing."""


def _json(value: Any, **named: Any) -> str:
    """Return a value as JSON; what JSON lacks as text."""
    import json

    return json.dumps(value, default=str, **named)


class _Context:
    """`with telemetry.context(run=run) as tel: tel.feature.x = True`: accepted, and not used."""

    def __init__(self, *given: Any, **named: Any) -> None: ...

    def __enter__(self) -> Any:
        return foreign_names.stand_in("telemetry")()

    def __exit__(self, *error: Any) -> None: ...
