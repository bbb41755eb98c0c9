"""Modules under the paths that they had before: imports by a path of the API reference keep working."""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    Loader = MetaPathFinder = object  # importlib.abc would import ten modules more into each training

# The former path of each module, and its path now; None: a package that is gone.
FORMER = {
    "chiplog.page": None,
    "chiplog.page.notebook": "chiplog_page.notebook",
    "chiplog.query": None,
    "chiplog.query.result_stream": "chiplog_client.result_stream",
    "chiplog.recording.config": "chiplog.recording.sharing.config",
    "chiplog.recording.current_run": "chiplog.recording.run.current_run",
    "chiplog.recording.start": "chiplog.recording.api.start",
}


class FormerPaths(MetaPathFinder):
    """Finds the modules of FORMER. It comes last, so it costs only imports that no other finder knows."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how a module is loaded that has another path now; None for any other."""
        return ModuleSpec(name, _Alias(), is_package=FORMER[name] is None) if name in FORMER else None


class _Alias(Loader):
    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        path = FORMER[module.__name__]
        if path is not None:  # the import system returns what is in sys.modules afterwards
            sys.modules[module.__name__] = import_module(path)
