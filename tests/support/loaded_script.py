"""A program of this repository that belongs to no package, as a module."""

import importlib.util
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def load_script(path: str | Path) -> Any:
    """Run a script, at a path below the repository, as a new module that is not the main one; return it."""
    script = REPOSITORY / path
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
