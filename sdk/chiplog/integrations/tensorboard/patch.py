"""Logs what SummaryWriters, of torch and tensorboardX, are given, while a run takes it; event files stay the same."""

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from chiplog.integrations.adapter.method_patches import Method, MethodPatches
from chiplog.integrations.tensorboard.added_values import METHODS
from chiplog.safety.boundary import never_raises

MODULES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
_calls = threading.local()  # is_inside: a method of a writer is running, and may call others


class Sync:
    """Takes what writers are given, from `begin` to `end`.

    log: called with values by key, and a step or None. configure: called with the hyperparameters of `add_hparams`.
    report: called with a place and an exception. root: the directory above those of the writers; None: their common
    parent. has_step_key: log each new step also as the value `global_step`, as W&B does.
    """

    def __init__(
        self,
        log: Callable[[dict[str, Any], int | None], None],
        configure: Callable[[dict[str, Any]], None],
        report: Callable[[str, Exception], None],
        root: str | None = None,
        has_step_key: bool = True,
    ) -> None:
        self._log = log
        self._configure = configure
        self._report_internal_error = report
        self._root = os.path.abspath(root) if root else None
        self._has_step_key = has_step_key
        self._directories: list[str] = []  # of writers
        self._prefixes: dict[str, str] = {}  # by directory, from its first value on
        self._steps: dict[str, int] = {}  # the last step, by prefix

    def begin(self) -> None:
        """Take what writers are given, in place of those that began before."""
        _patches.begin(self)

    def end(self) -> None:
        """Take no more. Without another one the classes are again as they were."""
        _patches.end(self)

    @never_raises("tensorboard")
    def add_writer(self, writer: Any) -> None:
        """Remember the directory of a writer."""
        directory = _directory(writer)
        if directory not in self._directories:
            self._directories.append(directory)

    @never_raises("tensorboard")
    def take(self, method: str, writer: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Log what a method was given. Report what cannot be read."""
        self.record(method, writer, given, named)

    def record(self, method: str, writer: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Log what a method was given. Raises what reading its arguments raises."""
        values, step = METHODS[method](*given, **named)
        prefix = self._prefix(writer)
        data = {  # log() reports a tag that is no text
            f"{prefix}{tag.lstrip('/')}" if isinstance(tag, str) else tag: value for tag, value in values.items()
        }
        if method == "add_hparams":
            self._configure(dict(given[0] if given else named["hparam_dict"]))
        if step is not None and self._has_step_key:
            step = int(step)
            if self._steps.get(prefix) != step:  # once for a row of W&B
                self._steps[prefix] = step
                data[f"{prefix}global_step"] = step
        self._log(data, step)

    def _prefix(self, writer: Any) -> str:
        """Return the path from the common parent to a writer's directory. It stays as it was for the first value."""
        directory = _directory(writer)
        if directory not in self._prefixes:
            self.add_writer(writer)
            path = os.path.relpath(directory, self._root or os.path.commonpath(self._directories))
            self._prefixes[directory] = "" if path == "." else f"{path}/"
        return self._prefixes[directory]


def _directory(writer: Any) -> str:
    return os.path.abspath(str(getattr(writer, "log_dir", None) or writer.logdir))  # of torch, of tensorboardX


def _ours(_: type, name: str, method: Method) -> Method:
    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        if _patches.newest is None or getattr(_calls, "is_inside", False):
            return method(self, *given, **named)
        _calls.is_inside = True
        try:
            result = method(self, *given, **named)
        finally:
            _calls.is_inside = False
        sync = _patches.newest
        if sync is not None and name == "__init__":
            sync.add_writer(self)
        elif sync is not None:
            sync.take(name, self, given, named)
        return result

    return call


# Not add_figure: it draws the figure, and gives the pixels to add_image.
_PATCHED = ("__init__", *(name for name in METHODS if name != "add_figure"))
_patches: MethodPatches[Sync] = MethodPatches(dict.fromkeys(MODULES, ("SummaryWriter", _PATCHED)), _ours)
