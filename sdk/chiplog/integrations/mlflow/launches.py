"""Which run a process opens: the run of its launch, the first time, else a run of its own."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chiplog.identity.identity import is_rank_of_launcher
from chiplog.identity.process_info import is_multiprocessing_child, spawned_index
from chiplog.integrations.mlflow.addresses import Address
from chiplog.recording.api.start import open_beside
from chiplog.recording.run.run import Run
from chiplog_schemas.process.inherited_run import (
    LAUNCHER,
    PARENT_RUN,
    decode_inherited,
    stale_variables,
    with_inherited_places,
)

_OF_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def launch_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a process finds its run.

    Without a run that is merely open in the process that started it, as in MLflow: only an ID joins that. And without
    RANK and WORLD_SIZE of a notebook or script that has set them itself, which is no launcher.
    """
    found = dict(with_inherited_places(environ, os.getpid(), stale_variables(os.environ)))
    if decode_inherited(found.get(PARENT_RUN, "")).kind != LAUNCHER:
        found.pop(PARENT_RUN, None)
    if "RANK" in found and not is_multiprocessing_child() and "RANK" not in _initial_variables():
        for name in _OF_LAUNCHERS:
            found.pop(name, None)
    return found


def is_launched(environ: Mapping[str, str]) -> bool:
    """Return True if the first run of this process is one that it shares, or that was named to it."""
    is_below_launcher = PARENT_RUN in environ or bool(environ.get("CHIPLOG_RUN_ID"))
    return is_below_launcher or is_rank_of_launcher(environ) or spawned_index() is not None


def open_run(address: Address, environ: Mapping[str, str], **arguments: Any) -> Run:
    """Open a run that children of this process do not inherit, next to those that are open. Never raises."""
    if address.has_run_per_process and not arguments.get("run_id"):
        arguments["one_run_per_process"] = True
    return open_beside(environ, dir=address.directory, **arguments)


def _initial_variables() -> set[str]:
    """Return the names of the variables that this process was started with; all that it has if that is unknown."""
    try:
        found = Path("/proc/self/environ").read_bytes()
    except OSError:
        return set(os.environ)
    return {part.partition(b"=")[0].decode(sys.getfilesystemencoding(), "replace") for part in found.split(b"\0")}
