"""The file of what a training logs, by the library's other ways to report it: chiplog has no part in it."""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

FILE = "EXPECTED_FILE"  # variable


class Expected:
    """Values by step, and what else SQL must have of the training's runs."""

    def __init__(self, library: str) -> None:
        self._found: dict[str, Any] = {"version": version(library), "rows": [], "contents": []}
        self.note(runs=1, config={}, tags=[], artifacts=0, states=["finished"])

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Add the values of one call of `log()`."""
        self._found["rows"] += [[step, key, float(value)] for key, value in values.items()]

    def add_media(self, step: int, key: str, path: str) -> None:
        """Add a file whose bytes are logged as a value."""
        with open(path, "rb") as file:
            self._found["contents"] += [[step, key, hashlib.sha256(file.read()).hexdigest()]]

    def note(self, **found: Any) -> None:
        """Set what SQL must have: the numbers of runs and of versions of artifacts, the tags and the name.

        Ranks of which the script starts some itself are for the table. Of config, summary, files and media it may have
        more. `lines` are what chiplog prints, after its name; `ends` are labels with state, exit code, signal, reason.
        """
        self._found.update(found)

    def write(self) -> None:
        """Write the file, if no W&B but chiplog's is in this process."""
        wandb = sys.modules.get("wandb")
        if wandb is not None and not wandb.init.__module__.startswith("chiplog"):
            sys.exit(f"import wandb is {wandb.__file__}")
        with open(os.environ[FILE], "w", encoding="utf-8") as file:
            json.dump(self._found, file)
