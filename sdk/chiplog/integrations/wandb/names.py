"""The names below `wandb` that scripts and libraries import, each with the class that W&B has there."""

import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from enum import Enum
from importlib import import_module
from typing import Any

from chiplog.artifacts.artifact import Artifact
from chiplog.integrations.tensorboard.patch import Sync
from chiplog.integrations.wandb import charts, gym_videos
from chiplog.integrations.wandb.errors import (
    AuthenticationError,
    CommError,
    ConfigError,
    Error,
    UnsupportedError,
    UsageError,
    WandbCoreNotAvailableError,
    harmless,
    warn,
)
from chiplog.integrations.wandb.settings import Settings
from chiplog.integrations.wandb.start import attach, current, generate_id, init
from chiplog.integrations.wandb.state.run_config import Config
from chiplog.integrations.wandb.state.run_summary import Summary
from chiplog.integrations.wandb.stored import api
from chiplog.integrations.wandb.wandb_run import Run, RunDisabled
from chiplog.safety import foreign_names
from chiplog.safety.diagnostics import error_line
from chiplog.values.metrics import Histogram

# Modules in which every name is harmless, but for those of MEDIA and _CALLBACKS. `wandb.plot.line` is a function.
_WITHOUT_NAMES = """
    agents.pyagent apis.internal apis.reports cli.cli docker integration.catboost integration.diffusers
    integration.diffusers.autologger integration.dspy integration.fastai integration.huggingface
    integration.keras.callbacks.metrics_logger integration.keras.callbacks.model_checkpoint
    integration.keras.callbacks.tables_builder integration.keras.keras integration.kfp integration.langchain
    integration.lightgbm integration.lightning.fabric integration.metaflow integration.openai
    integration.openai.fine_tuning integration.prodigy integration.sacred integration.sagemaker integration.sb3
    integration.sb3.sb3 integration.sklearn integration.tensorflow integration.torch.wandb_torch
    integration.ultralytics integration.weave integration.xgboost integration.xgboost.xgboost jupyter
    lightgbm sdk.artifacts.artifact_manifest_entry sdk.artifacts.exceptions sdk.data_types.audio
    sdk.data_types.base_types.media sdk.data_types.base_types.wb_value sdk.data_types.bokeh sdk.data_types.eval_table
    sdk.data_types.graph sdk.data_types.helper_types.bounding_boxes_2d sdk.data_types.helper_types.classes
    sdk.data_types.helper_types.image_mask sdk.data_types.html sdk.data_types.image sdk.data_types.molecule
    sdk.data_types.object_3d sdk.data_types.plotly sdk.data_types.saved_model sdk.data_types.table
    sdk.data_types.trace_tree sdk.data_types.utils sdk.data_types.video sdk.integration_utils.auto_logging
    sdk.interface.interface sdk.internal sdk.launch sdk.lib.apikey sdk.lib.deprecate sdk.lib.filenames
    sdk.lib.filesystem sdk.lib.gitlib sdk.lib.hashutil sdk.lib.ipython sdk.lib.json_util sdk.lib.module sdk.lib.paths
    sdk.lib.printer sdk.lib.retry sdk.verify sdk.wandb_helper sdk.wandb_metric sdk.wandb_sweep sdk.wandb_watch sklearn
    trigger wandb_agent wandb_controller xgboost
"""
MEDIA = {  # by W&B's name of a class: that in media.py, which is imported when it is used
    **{name: name for name in ("Audio", "Classes", "Html", "Image", "Object3D", "Plotly", "Table", "Video", "WBValue")},
    **{name: name for name in ("BoundingBoxes2D", "ImageMask")},
    **dict.fromkeys(("BatchableMedia", "Media"), "WBValue"),
}
_ERRORS = (
    *(Error, CommError, UsageError, AuthenticationError, UnsupportedError),
    WandbCoreNotAvailableError,
)
_OF_PLOT = (
    *("bar", "confusion_matrix", "histogram", "line", "line_series", "plot_table", "pr_curve", "roc_curve", "scatter"),
    *("CustomChart", "Visualize", "visualize"),
)
_CALLBACKS = {  # by library: each in a module that imports it
    "keras": ("WandbCallback", "WandbEvalCallback", "WandbMetricsLogger", "WandbModelCheckpoint"),
    "lightgbm": ("log_summary", "wandb_callback"),
    "sb3": ("WandbCallback",),
    "xgboost": ("WandbCallback", "wandb_callback"),
}
_ENV = "WANDB_{}"
_ENV_NAMES = {"IGNORE": "WANDB_IGNORE_GLOBS", "DISABLE_SSL": "WANDB_INSECURE_DISABLE_SSL"}
_ARTIFACT_NAME_CHARS = 128


class AlertLevel(Enum):
    """The levels of `run.alert`."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


def lookup(name: str) -> Any:
    """Return a name of a module below `wandb` that needs another library, or what does nothing in its place."""
    module, _, own = name.rpartition(".")
    if own in MEDIA and "data_types" in module.split("."):
        return getattr(import_module("chiplog.integrations.wandb.media"), MEDIA[own])
    if module == "env" and own.isupper():
        return _ENV_NAMES.get(own, _ENV.format(own))
    library = next((part for part in module.split(".") if own in _CALLBACKS.get(part, ())), None)
    if library is None:
        return harmless(name)
    try:
        return getattr(import_module(f"chiplog.integrations.wandb.callbacks.{library}_callbacks"), own)
    except ImportError as error:
        warn(f"wandb.{name} does nothing: its library cannot be imported: {error_line(error)}")
        return foreign_names.stand_in(own)


def module_names() -> dict[str, dict[str, Any]]:
    """Return the modules below `wandb`, and the names in each."""
    errors = {kind.__name__: kind for kind in _ERRORS}
    plot = {name: getattr(charts, name) for name in _OF_PLOT}
    return {
        "errors.errors": errors,
        "errors.term": {name: _of_package(name) for name in ("termlog", "termwarn", "termerror")},
        "plot": plot,
        "plot.custom_chart": {"CustomChart": charts.CustomChart, "plot_table": charts.plot_table},
        "plot.viz": {"Visualize": charts.Visualize, "visualize": charts.visualize},
        "plots": plot,
        "env": {
            name: call
            for own in ("project", "entity")
            for name, call in ((f"set_{own}", _setter(own.upper())), (f"get_{own}", _getter(own.upper())))
        },
        "util": {
            "generate_id": generate_id,
            "get_module": _module,
            "json_dumps_safer": _json,
            "make_artifact_name_safe": _artifact_name,
        },
        "data_types": {"Histogram": Histogram},
        "sdk": {"AlertLevel": AlertLevel, "Artifact": Artifact, "Settings": Settings, "Config": Config, "init": init},
        "sdk.artifacts.artifact": {"Artifact": Artifact},
        "sdk.data_types": {"Histogram": Histogram},
        "sdk.data_types.histogram": {"Histogram": Histogram},
        "sdk.wandb_alerts": {"AlertLevel": AlertLevel},
        "sdk.wandb_init": {"init": init, "_attach": attach},
        "sdk.wandb_login": {"login": _of_package("login")},
        "sdk.wandb_setup": {"setup": _of_package("setup")},
        "sdk.wandb_summary": {"Summary": Summary},
        "sdk.wandb_run": {"Run": Run, "restore": _of_package("restore")},
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
        "gym": {"monitor": monitor_gym},
        "integration.gym": {"monitor": monitor_gym},
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

    def configure(values: dict[str, Any]) -> None:
        run = current()
        if run is not None:
            run.config.setdefaults(values)

    what = "what a SummaryWriter was given"
    _patched.append(Sync(_log_to_current(what), configure, _report(what), root_logdir))
    _patched[0].begin()


def unpatch_tensorboard() -> None:
    """Undo `patch()`."""
    while _patched:
        _patched.pop().end()


def monitor_gym() -> None:
    """Log the videos that gymnasium and gym record to the current run, until the process ends."""
    if not gym_videos.is_installed():
        warn(gym_videos.MISSING)
    elif not _monitors:
        what = "a video of gymnasium"
        _monitors.append(gym_videos.Monitor(_log_to_current(what), _report(what)))
        _monitors[0].begin()


def _log_to_current(what: str) -> Callable[[dict[str, Any], int | None], None]:
    def log(data: dict[str, Any], step: int | None) -> None:
        run = current()
        if run is None:
            warn(f"{what} is not recorded without a run; call wandb.init() first")
        else:
            run.log(data, step)

    return log


def _report(what: str) -> Callable[[str, Exception], None]:
    return lambda where, error: warn(f"{what} is not recorded: {error_line(error)}")


_patched: list[Sync] = []
_monitors: list[gym_videos.Monitor] = []  # at most one
_TENSORBOARD = {"patch": patch_tensorboard, "unpatch": unpatch_tensorboard}


def _of_package(name: str) -> Any:
    """Return what calls a function of the package, which is complete only after this module, by its name."""

    def call(*given: Any, **named: Any) -> Any:
        from chiplog.integrations import wandb

        return getattr(wandb, name)(*given, **named)

    return call


def _setter(name: str) -> Any:
    def set_variable(value: str, env: MutableMapping[str, str] | None = None) -> None:
        (os.environ if env is None else env)[_ENV.format(name)] = str(value or "")

    return set_variable


def _getter(name: str) -> Any:
    def get_variable(default: str | None = None, env: Mapping[str, str] | None = None) -> str | None:
        return (os.environ if env is None else env).get(_ENV.format(name), default)

    return get_variable


def _module(name: str, required: str | None = None, lazy: bool = True) -> Any:
    """Return a module; None if it is missing, or W&B's error with the text `required`."""
    try:
        return import_module(name)
    except ImportError:
        if required:
            raise Error(required) from None
        return None


def _artifact_name(name: str) -> str:
    """Return a name that an artifact may have."""
    clean = re.sub(r"[^a-zA-Z0-9_.-]", "_", name)
    half = _ARTIFACT_NAME_CHARS // 2 - 1
    return clean if len(clean) <= _ARTIFACT_NAME_CHARS else f"{clean[:half]}..{clean[-half:]}"


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
