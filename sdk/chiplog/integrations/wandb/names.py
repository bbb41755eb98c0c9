"""The names below `wandb` that scripts and libraries import, each with the class that W&B has there."""

from enum import Enum
from typing import Any

from chiplog.artifacts.artifact import Artifact
from chiplog.integrations.wandb import charts
from chiplog.integrations.wandb.errors import AuthenticationError, CommError, ConfigError, Error, UsageError, tell
from chiplog.integrations.wandb.run_config import Config
from chiplog.integrations.wandb.settings import Settings
from chiplog.integrations.wandb.start import generate_id
from chiplog.integrations.wandb.wandb_run import Run, RunDisabled
from chiplog.safety import foreign_names

# Modules in which every name is harmless.
_WITHOUT_NAMES = """
    apis cli.cli data_types integration.catboost integration.gym integration.keras integration.lightgbm integration.sb3
    integration.tensorboard integration.torch integration.xgboost keras sdk.data_types sdk.lib.filesystem
"""
_stand_ins: dict[str, Any] = {}


class AlertLevel(Enum):
    """The levels of `run.alert`."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


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
        "apis.public": {"Run": Run},
        **{name: {} for name in _WITHOUT_NAMES.split()},
    }


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
