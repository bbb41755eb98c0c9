"""W&B's errors, and when they are raised: only in strict mode, as W&B raises them. Else each is one line."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from chiplog_schemas.once import OnceLogger


class Error(Exception):
    """W&B's base class of errors."""


class CommError(Error):
    """An error of W&B's network: never raised."""


class AuthenticationError(CommError):
    """A wrong key of W&B: never raised."""


class UsageError(Error):
    """A wrong use of W&B: raised in strict mode."""


class ConfigError(Error):
    """A wrong config of W&B: never raised."""


_once = OnceLogger(lambda message, *given: print(message % given, file=sys.stderr), keys_max=1_000)
_Method = TypeVar("_Method", bound=Callable[..., Any])


def tell(message: str) -> None:
    """Write one line to stderr, once."""
    _once.log(message, "chiplog: %s", message)


def refuse(is_strict: bool, message: str, kind: type[Error] = UsageError) -> None:
    """Raise an error in strict mode, else write it as one line."""
    if is_strict:
        raise kind(message)
    tell(message)


def too_late(run_id: str, name: str) -> UsageError:
    """Return the error of a call after `finish()`."""
    message = f"Run ({run_id}) is finished. The call to `{name}` will be ignored."
    return UsageError(f"{message} Please make sure that you are using an active run.")


def of_open_run(method: _Method) -> _Method:
    """Make a method of a run raise UsageError after `finish()` in strict mode. Else chiplog's run says a line."""
    name = method.__name__

    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        if self._is_strict and self._is_finished:
            raise too_late(self.id, name)
        return method(self, *given, **named)

    return call  # type: ignore[return-value]  # of the same arguments
