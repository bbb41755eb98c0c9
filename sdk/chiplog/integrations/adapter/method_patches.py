"""Replaces methods of other libraries' classes while a run takes what they are given; restores them at the end.

Methods and not the classes, because scripts import the classes before they open a run. A class that is not loaded yet
is patched when it is.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Generic, TypeVar

Method = Callable[..., Any]
_Taker = TypeVar("_Taker")


class MethodPatches(Generic[_Taker]):
    """Methods to replace, as long as there are takers: the newest, which is last, takes what they are given.

    methods: by module, the name of a class and those of its methods. replacement: returns what replaces a method, given
    its class, its name and itself.
    """

    def __init__(
        self, methods: Mapping[str, tuple[str, Sequence[str]]], replacement: Callable[[type, str, Method], Method]
    ) -> None:
        self._methods = methods
        self._replacement = replacement
        self._takers: list[_Taker] = []
        self._replaced: dict[tuple[type, str], tuple[Method, Method]] = {}  # the method before, and ours

    @property
    def newest(self) -> _Taker | None:
        """The taker that began last; None without one."""
        return self._takers[-1] if self._takers else None

    def begin(self, taker: _Taker) -> None:
        """Replace the methods, and give to this taker, no longer to those that began before."""
        self._takers.append(taker)
        for name in self._methods:
            if name in sys.modules:
                self._replace(name)
        self._watch_imports()

    def end(self, taker: _Taker) -> None:
        """Give no more to a taker. Without another one the classes are again as they were."""
        if taker in self._takers:
            self._takers.remove(taker)
        if not self._takers:
            self._restore()
        self._watch_imports()

    def _replace(self, module: str) -> None:
        class_name, names = self._methods[module]
        cls: Any = getattr(sys.modules[module], class_name, None)
        for name in () if cls is None else names:
            method = vars(cls).get(name)
            if method is not None and (cls, name) not in self._replaced:  # it is, if another library has replaced ours
                self._replaced[cls, name] = method, self._replacement(cls, name, method)
                setattr(cls, name, self._replaced[cls, name][1])

    def _restore(self) -> None:
        for (cls, name), (method, ours) in list(self._replaced.items()):
            if vars(cls).get(name) is ours:  # else another library has replaced it since; ours does nothing now
                setattr(cls, name, method)
                del self._replaced[cls, name]

    # -- classes that are not loaded: a finder, in sys.meta_path only as long as there is a module to wait for --

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module that has such a class, with a loader that patches it."""
        if name not in self._methods:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            vars(spec.loader)["exec_module"] = self._executed(name, spec.loader)  # of this loader alone
        return spec

    def _executed(self, name: str, loader: Any) -> Callable[[ModuleType], None]:
        def exec_module(module: ModuleType) -> None:
            type(loader).exec_module(loader, module)
            if self._takers:
                self._replace(name)
                self._watch_imports()

        return exec_module

    def _watch_imports(self) -> None:
        is_waiting = bool(self._takers) and not sys.modules.keys() >= set(self._methods)
        if is_waiting and self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        elif not is_waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
