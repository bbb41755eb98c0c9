"""Replaces the methods of SummaryWriter, of torch and tensorboardX, while a run takes what writers are given.

Methods and not the classes, because scripts import the classes before they open a run. Event files are written as
before. A class that is not loaded yet is patched when it is.
"""

import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from chiplog.integrations.tensorboard.added_values import METHODS
from chiplog.safety.boundary import never_raises

MODULES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
_Method = Callable[..., Any]
_open: list["Sync"] = []  # the newest, which is last, takes the values
_replaced: dict[tuple[type, str], tuple[_Method, _Method]] = {}  # by class and name: the method before, and ours
_calls = threading.local()  # is_inside: a method of a writer is running, and may call others


class Sync:
    """Takes what writers are given, from `begin` to `end`.

    log: called with values by key, and a step or None. configure: called with the hyperparameters of `add_hparams`.
    report: called with a place and an exception. root: the directory above those of the writers; None: their common
    parent.
    """

    def __init__(
        self,
        log: Callable[[dict[str, Any], int | None], None],
        configure: Callable[[dict[str, Any]], None],
        report: Callable[[str, Exception], None],
        root: str | None = None,
    ) -> None:
        self._log = log
        self._configure = configure
        self._report_internal_error = report
        self._root = os.path.abspath(root) if root else None
        self._directories: list[str] = []  # of writers
        self._prefixes: dict[str, str] = {}  # by directory, from its first value on
        self._steps: dict[str, int] = {}  # the last step, by prefix

    def begin(self) -> None:
        """Take what writers are given, in place of those that began before."""
        _open.append(self)
        for name in MODULES:
            if name in sys.modules:
                _replace_methods(sys.modules[name])
        _watch_imports()

    def end(self) -> None:
        """Take no more. Without another one the classes are again as they were."""
        if self in _open:
            _open.remove(self)
        if not _open:
            _restore_methods()
        _watch_imports()

    @never_raises("tensorboard")
    def add_writer(self, writer: Any) -> None:
        """Remember the directory of a writer."""
        directory = _directory(writer)
        if directory not in self._directories:
            self._directories.append(directory)

    @never_raises("tensorboard")
    def take(self, method: str, writer: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Log what a method was given."""
        values, step = METHODS[method](*given, **named)
        prefix = self._prefix(writer)
        data = {f"{prefix}{str(tag).lstrip('/')}": value for tag, value in values.items()}
        if method == "add_hparams":
            self._configure(dict(given[0] if given else named["hparam_dict"]))
        if step is not None:
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


def _replace_methods(module: ModuleType) -> None:
    writer: Any = getattr(module, "SummaryWriter", None)
    for name in () if writer is None else ("__init__", *METHODS):
        method = vars(writer).get(name)
        if method is not None and (writer, name) not in _replaced:  # it is, if another library has replaced ours
            _replaced[writer, name] = method, _ours(name, method)
            setattr(writer, name, _replaced[writer, name][1])


def _restore_methods() -> None:
    for (writer, name), (method, ours) in list(_replaced.items()):
        if vars(writer).get(name) is ours:  # else another library has replaced it since; ours does nothing now
            setattr(writer, name, method)
            del _replaced[writer, name]


def _ours(name: str, method: _Method) -> _Method:
    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        if not _open or getattr(_calls, "is_inside", False):
            return method(self, *given, **named)
        _calls.is_inside = True
        try:
            result = method(self, *given, **named)
        finally:
            _calls.is_inside = False
        for sync in _open[-1:]:
            if name == "__init__":
                sync.add_writer(self)
            else:
                sync.take(name, self, given, named)
        return result

    return call


class _Finder:
    """Patches a class when its module is loaded. It is in sys.meta_path only as long as there is one to wait for."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in MODULES:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            vars(spec.loader)["exec_module"] = _executed(spec.loader)  # of this loader alone
        return spec


def _executed(loader: Any) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        type(loader).exec_module(loader, module)
        if _open:
            _replace_methods(module)
            _watch_imports()

    return exec_module


_finder = _Finder()


def _watch_imports() -> None:
    """Wait for classes that are not loaded, if values are taken."""
    is_waiting = bool(_open) and not sys.modules.keys() >= set(MODULES)
    if is_waiting and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    elif not is_waiting and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
