"""The module-level functions of chiplog: those of `Run`, for the current run of this process.

On a platform without fcntl (Windows) they come from `unsupported.py`: the package can be imported and records nothing.
"""

import logging
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from chiplog.recording.api.disabled import DisabledRun
from chiplog.safety import foreign_names
from chiplog.safety.lenient_calls import hide_unknown_arguments
from chiplog_schemas.once import OnceLogger

try:
    import fcntl  # noqa: F401  # journals and locks need it
except ImportError:
    _is_supported = False
else:
    _is_supported = True
if TYPE_CHECKING or _is_supported:  # safeguard: import-without-fcntl
    from chiplog.recording.api.start import init, setup
    from chiplog.recording.run.current_run import current, finish, log
    from chiplog.recording.run.run import Run
else:
    from chiplog.recording.api.unsupported import Run, current, finish, init, log, setup

if TYPE_CHECKING:
    import os

    from chiplog.timing.phases import Phase
    from chiplog.timing.steps import Step, TimedLoader
    from chiplog.values.artifact_value import ArtifactValue

__all__ = [
    "ChiplogModule",
    "Run",
    "alert",
    "attribute",
    "current",
    "data",
    "define_metric",
    "finish",
    "init",
    "log",
    "log_artifact",
    "log_model",
    "phase",
    "save",
    "setup",
    "step",
    "use_artifact",
    "watch",
]
_log = logging.getLogger("chiplog")
_no_run = DisabledRun()  # receives calls before init()
_once = OnceLogger(_log.warning, keys_max=1_000)  # all names of other libraries are fewer
_stand_ins: dict[str, Any] = {}


@hide_unknown_arguments
def alert(title: str, text: str = "", level: str = "warning", *more: Any, **unknown: Any) -> None:
    """Record an alert of the current run; see `Run.alert`.

    Args:
        title: One line; alerts of one title are limited to 5 at once, then one in 10 s.
        text: What the reader needs to know.
        level: debug, info, warning or error.

    Examples:
        >>> chiplog.alert("loss is NaN", f"at step {step}", level="error")
    """
    _run("alert()").alert(title, text, level, *more, **unknown)


@hide_unknown_arguments
def save(path: "str | os.PathLike[str]", name: str | None = None, *more: Any, **unknown: Any) -> list[str]:
    """Save files of the current run; see `Run.save`.

    Args:
        path: A file, a directory or a pattern.
        name: Name in the run of the file, or of the directory that several files go into.

    Returns:
        The names in the run of the saved files.

    Examples:
        >>> chiplog.save("configs/*.yaml", "configs")
    """
    return _run("save()").save(path, name, *more, **unknown)


@hide_unknown_arguments
def log_artifact(
    artifact_or_path: "ArtifactValue | str | os.PathLike[str]",
    name: str | None = None,
    type: str | None = None,
    aliases: list[str] | None = None,
    *more: Any,
    **unknown: Any,
) -> Any:
    """Record a version of an artifact with the current run; see `Run.log_artifact`.

    Args:
        artifact_or_path: An Artifact; or a file, a directory or a URI, which becomes one.
        name: Of an artifact that is made of a path.
        type: Likewise: a word such as model or dataset.
        aliases: Names that move to this version.

    Returns:
        The artifact.

    Examples:
        >>> chiplog.log_artifact("checkpoints/last.pt", name="model", type="model")
    """
    return _run("log_artifact()").log_artifact(artifact_or_path, name, type, aliases, *more, **unknown)


@hide_unknown_arguments
def log_model(
    path: "str | os.PathLike[str]",
    name: str | None = None,
    aliases: list[str] | None = None,
    *more: Any,
    **unknown: Any,
) -> Any:
    """Record a model with the current run; see `Run.log_model`.

    Args:
        path: A file or directory.
        name: Of the artifact.
        aliases: Names that move to this version.

    Returns:
        The artifact.

    Examples:
        >>> chiplog.log_model("checkpoints/last.pt", name="model", aliases=["best"])
    """
    return _run("log_model()").log_model(path, name, aliases, *more, **unknown)


@hide_unknown_arguments
def use_artifact(
    artifact_or_name: "ArtifactValue | str",
    type: str | None = None,
    aliases: list[str] | None = None,
    timeout_s: float | None = None,
    *more: Any,
    **unknown: Any,
) -> Any:
    """Return a version of an artifact for the current run; see `Run.use_artifact`.

    Args:
        artifact_or_name: "name:latest", "name:v3" or "project/name:alias".
        type: The type that it must have.
        aliases: Names that move to this version.
        timeout_s: How long to wait for a collector that does not answer.

    Returns:
        The artifact.

    Raises:
        ArtifactError: The artifact is unknown, or the collector does not answer.

    Examples:
        >>> directory = chiplog.use_artifact("model:best").download()
    """
    return _run("use_artifact()").use_artifact(artifact_or_name, type, aliases, timeout_s, *more, **unknown)


@hide_unknown_arguments
def define_metric(
    name: str,
    summary: str | None = None,
    step_metric: str | None = None,
    hidden: bool | None = None,
    *more: Any,
    **unknown: Any,
) -> None:
    """Define how the current run sums up and draws a metric; see `Run.define_metric`.

    Args:
        name: A metric's name, or a pattern such as `val/*`.
        summary: min, max, mean, last, first or none.
        step_metric: The metric that is the x axis.
        hidden: True: the page draws it only for those who ask for it.

    Examples:
        >>> chiplog.define_metric("val/*", summary="max", step_metric="epoch")
    """
    _run("define_metric()").define_metric(name, summary, step_metric, hidden, *more, **unknown)


@hide_unknown_arguments
def phase(name: str = "", on_host: bool = False, *more: Any, **unknown: Any) -> "Phase":
    """Return a context manager or decorator that times a phase of the current run's step; see `Run.phase`.

    Args:
        name: The name of the phase.
        on_host: Measure wall time even if CUDA is in use.

    Examples:
        >>> with chiplog.phase("forward"):
        ...     loss = model(batch)
    """
    return _run("phase()").phase(name, on_host, *more, **unknown)


@hide_unknown_arguments
def step(*more: Any, **unknown: Any) -> "Step":
    """Mark the end of a step of the current run, or time one; see `Run.step`.

    Examples:
        >>> with chiplog.step():
        ...     train(batch)
    """
    return _run("step()").step(*more, **unknown)


@hide_unknown_arguments
def data(loader: Iterable[Any], *more: Any, **unknown: Any) -> "TimedLoader":
    """Return the loader with its waiting timed as the phase `data` of the current run; see `Run.data`.

    Args:
        loader: Any iterable, such as a DataLoader.

    Examples:
        >>> for batch in chiplog.data(loader):
        ...     train(batch)
    """
    return _run("data()").data(loader, *more, **unknown)


@hide_unknown_arguments
def watch(model: Any, every: int = 100, name: str = "watch", *more: Any, **unknown: Any) -> None:
    """Log norms of gradients and parameters with the current run; see `Run.watch`.

    Args:
        model: A torch.nn.Module.
        every: Number of optimizer steps between two measurements.
        name: First part of the metrics' names.

    Examples:
        >>> chiplog.watch(model, every=100)
    """
    _run("watch()").watch(model, every, name, *more, **unknown)


def attribute(name: str) -> Any:
    """Return an attribute of the package that is computed on access.

    Args:
        name: run, config or summary, or a public name of W&B or MLflow that chiplog does not have.

    Returns:
        The current run (None before `init`), its config or summary, or an object that does nothing.

    Raises:
        AttributeError: For any other name.

    """
    if name == "run":
        return current()
    if name in ("config", "summary"):
        return getattr(_run(name), name)
    if name not in foreign_names.MODULE_NAMES:  # safeguard: foreign-name-does-nothing
        raise AttributeError(f"module 'chiplog' has no attribute {name!r}")
    if name not in _stand_ins:
        _stand_ins[name] = foreign_names.stand_in(name)
        _warn_of_foreign_name(name)
    return _stand_ins[name]


class ChiplogModule(ModuleType):
    """The package itself. `chiplog.config = {…}`, as older scripts write, updates the current run's config."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the package by its name: cloudpickle meets it in the globals of a function."""
        return import_module, (self.__name__,)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("config", "summary"):
            getattr(_run(name), name).update(value)
        else:
            super().__setattr__(name, value)


def _run(call: str) -> "Run":
    """Return the current run; without one, warn and return a run that records nothing."""
    run = current()
    if run is None:
        _warn_once(call, f"{call} without a run records nothing; call chiplog.init() first")
        return _no_run  # type: ignore[return-value]  # has each public name of Run; a test checks that
    return run


def _warn_of_foreign_name(name: str) -> None:
    bad = foreign_names.unavailable("chiplog", name)
    if (run := current()) is not None and not run.disabled:
        run._report_fault(bad)
    else:
        _warn_once(bad.key, bad.message)


def _warn_once(key: str, message: str) -> None:
    _once.log(key, "chiplog: %s", message)
