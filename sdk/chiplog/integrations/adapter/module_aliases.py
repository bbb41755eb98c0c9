"""Modules without files of their own: names that scripts import from another library, handed out under its name too."""

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def add_modules(
    package: str, modules: Mapping[str, Mapping[str, Any]], missing: Callable[[str], Any] | None = None
) -> None:
    """Make modules below a package importable: each has the given names, and is an attribute of the one above it.

    modules: names by module, relative to the package, such as `sdk.lib`. Modules above come without being named.
    missing: what a module has for any other public name, which is given with the module: `sdk.lib.filesystem`.
    """
    for name, names in modules.items():
        vars(_module(package, name, missing)).update(names)


def alias_package(package: str, alias: str) -> None:
    """Hand out a package and all modules below it that are loaded under another name: they are the same objects."""
    for name in list(sys.modules):
        if name == package or name.startswith(f"{package}."):
            sys.modules[alias + name.removeprefix(package)] = sys.modules[name]


def _module(package: str, name: str, missing: Callable[[str], Any] | None) -> ModuleType:
    """Return a module below a package, made with those above it where it does not exist."""
    full = f"{package}.{name}"
    if full not in sys.modules:
        above, _, own = name.rpartition(".")
        made = ModuleType(full)
        made.__path__ = []  # `import a.b.c` asks for it
        if missing is not None:
            made.__getattr__ = _lookup(name, missing)  # type: ignore[method-assign]
        sys.modules[full] = made
        setattr(_module(package, above, missing) if above else sys.modules[package], own, made)
    return sys.modules[full]


def _lookup(module: str, missing: Callable[[str], Any]) -> Callable[[str], Any]:
    def lookup(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return missing(f"{module}.{name}")

    return lookup
