"""A run that records nothing: for module-level calls before `init()`, and for platforms without fcntl.

Imports no module that needs fcntl: it must load where `import chiplog` finds none (Windows).
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ContextDecorator
from datetime import datetime
from pathlib import Path
from typing import Any

from chiplog.recording.sharing.config import Config, Summary
from chiplog.safety import foreign_names
from chiplog.values.artifact_value import ArtifactPlace, ArtifactValue, artifact_class, find_artifact
from chiplog.values.logged_values import LoggedValues
from chiplog.values.metrics import flatten


def _ignore(*given: object) -> None:
    """Record nothing."""


_NOWHERE = ArtifactPlace("", "disabled", None, Path(), 0.0, _ignore)


class DisabledRun:
    """Has each public name of `Run`, records nothing and never raises. `config` and `summary` keep their values."""

    id = run_id = label = project = name = group = job_type = notes = ""
    tags: tuple[str, ...] = ()
    url: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    resumed = False
    attempt: int | None = None
    restart_count = 0
    # Names of columns and other loggers, as of `Run`.
    primary = False
    run_group = run_name = node = hostname = ""
    project_name = foreign_names.CallableText()
    start_time = 0.0
    started_at: datetime | None = None
    pid = rank_pid = 0
    info = foreign_names.RunInfo("", None, 0)
    is_primary = False
    mode = "disabled"
    offline = False
    disabled = True

    def __init__(self) -> None:
        self._logged = LoggedValues()
        self.config = Config(_ignore, _ignore)
        self.summary = Summary(_ignore, _ignore, self._logged)

    @property
    def dir(self) -> str:
        """A directory of the system for temporary files."""
        return tempfile.gettempdir()

    def log(self, data: Mapping[str, Any] | None = None, step: int | None = None, *more: Any, **unknown: Any) -> None:
        """Record nothing. `summary` has the last numbers."""
        found = [item for item in flatten(data) if isinstance(item, tuple)] if isinstance(data, Mapping) else []
        for key, value in found:
            if isinstance(value, float):
                self._logged.note((0, (key,), (value,)))

    def phase(self, name: str = "", on_host: bool = False, *more: Any, **unknown: Any) -> "_NoPhase":
        """Return a context manager and decorator that times nothing."""
        return _NoPhase()

    def step(self, *more: Any, **unknown: Any) -> "_NoPhase":
        """Return a context manager that times nothing."""
        return _NoPhase()

    def data(self, loader: Iterable[Any] = (), *more: Any, **unknown: Any) -> Iterable[Any]:
        """Return the loader itself."""
        return loader

    def save(self, path: object = None, *more: Any, **unknown: Any) -> list[str]:
        """Save nothing."""
        return []

    def log_artifact(
        self, artifact_or_path: Any = None, name: str | None = None, type: str | None = None, *more: Any, **unknown: Any
    ) -> Any:
        """Return an artifact without a version."""
        artifact = artifact_class().from_any(artifact_or_path, name, type, self.id)
        artifact.note_logged(_NOWHERE, b"")
        return artifact

    def log_model(self, path: Any = None, name: str | None = None, *more: Any, **unknown: Any) -> Any:
        """Return an artifact without a version."""
        return self.log_artifact(path, name, "model")

    def use_artifact(self, artifact_or_name: Any = None, *more: Any, **unknown: Any) -> Any:
        """Return an artifact without files."""
        if isinstance(artifact_or_name, ArtifactValue):
            return self.log_artifact(artifact_or_name)
        return find_artifact(_NOWHERE, artifact_or_name, None, None)

    def _call(self, *given: Any, **named: Any) -> None:
        """Record nothing."""

    alert: Callable[..., None] = _call
    define_metric: Callable[..., None] = _call
    finish: Callable[..., None] = _call
    watch: Callable[..., None] = _call
    _set_tag: Callable[..., None] = _call

    def __getattr__(self, name: str) -> Any:
        """Return an empty value, or an object that does nothing, for a name of a run that scripts expect."""
        if name not in foreign_names.RUN_NAMES:
            raise AttributeError(f"'Run' object has no attribute {name!r}")
        return foreign_names.run_attribute(name)

    def __enter__(self) -> "DisabledRun":
        return self

    def __exit__(self, *error: object) -> None:
        """Let exceptions pass."""

    def __repr__(self) -> str:
        return "<chiplog run, disabled>"


class _NoPhase(ContextDecorator):
    """A phase or step that is not timed."""

    def __enter__(self) -> "_NoPhase":
        return self

    def __exit__(self, *error: object) -> None:
        """Let exceptions pass."""
