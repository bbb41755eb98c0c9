"""W&B's errors, and when they are raised: by reads, and in strict mode as W&B raises them. Else each is one line."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from chiplog.safety import foreign_names
from chiplog.values.artifact_value import ArtifactError
from chiplog_schemas.once import OnceLogger


class Error(Exception):
    """W&B's base class of errors."""

    @property
    def message(self) -> str:
        """The text."""
        return str(self)


class CommError(Error):
    """Something that is stored cannot be read."""


class ArtifactReadError(CommError, ValueError, ArtifactError):
    """An artifact cannot be read: raised as W&B's errors, which scripts catch, and as chiplog's."""


class AuthenticationError(CommError):
    """A wrong key of W&B: never raised."""


class UsageError(Error):
    """A wrong use of W&B: raised in strict mode, and by a read of a finished run that fails."""


class UnsupportedError(UsageError):
    """A use that W&B's server does not support: never raised."""


class WandbCoreNotAvailableError(Error):
    """A missing process of W&B: never raised."""


class ConfigError(Error):
    """A wrong config of W&B: never raised."""


# What the last init() said; before the first, the variable.
_silent = [os.environ.get("WANDB_SILENT", "").lower() in ("1", "true")]
_once = OnceLogger(lambda message, *given: write_line(message % given), keys_max=1_000)
_stand_ins: dict[str, Any] = {}
_REMEDIES = dict.fromkeys(
    ("agent", "controller", "sweep"), "; Optuna searches, and its WeightsAndBiasesCallback reports"
)
_Method = TypeVar("_Method", bound=Callable[..., Any])


def set_silent(is_silent: bool) -> None:
    """Write no more lines and warnings, or do again. Errors, after which a run is not recorded, are written always."""
    _silent[0] = is_silent
    log = logging.getLogger("chiplog")
    if is_silent and log.level == logging.NOTSET:
        log.setLevel(logging.ERROR)
    elif not is_silent and log.level == logging.ERROR:
        log.setLevel(logging.NOTSET)


def write_line(text: str) -> None:
    """Write a line to stderr, unless settings say silent."""
    if not _silent[0]:
        print(text, file=sys.stderr)


def warn(message: str) -> None:
    """Write one line to stderr, once."""
    _once.log(message, "chiplog: %s", message)


def harmless(name: str) -> Any:
    """Return what does nothing in place of a name of W&B that chiplog lacks, and say so once. name: without `wandb.`"""
    if name not in _stand_ins:
        _stand_ins[name] = foreign_names.stand_in(name.rpartition(".")[2])
        warn(foreign_names.unavailable("wandb", name).message + _REMEDIES.get(name.rpartition(".")[2], ""))
    return _stand_ins[name]


def refuse(is_strict: bool, message: str, kind: type[Error] = UsageError) -> None:
    """Raise an error in strict mode, else write it as one line."""
    if is_strict:
        raise kind(message)
    warn(message)


def too_late(run_id: str, name: str) -> UsageError:
    """Return the error of a call after `finish()`."""
    message = f"Run ({run_id}) is finished. The call to `{name}` will be ignored."
    return UsageError(f"{message} Please make sure that you are using an active run.")


@contextmanager
def artifact_errors(finished: str | None = None) -> Iterator[None]:
    """Raise what reads of an artifact raise as W&B's CommError, too. finished: the ID of a run that is: UsageError."""
    try:
        yield
    except ArtifactError as error:
        raise (too_late(finished, "use_artifact") if finished else ArtifactReadError(*error.args)) from error


def of_open_run(method: _Method) -> _Method:
    """Make a method of a run raise UsageError after `finish()` in strict mode. Else chiplog's run says a line."""
    name = method.__name__

    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        if self._is_strict and self._is_finished:
            raise too_late(self.id, name)
        return method(self, *given, **named)

    return call  # type: ignore[return-value]  # of the same arguments
