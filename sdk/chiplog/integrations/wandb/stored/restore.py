"""`restore`: a file that was saved to a run comes back, as W&B's does."""

import os
from pathlib import Path
from typing import Any, TextIO

from chiplog.integrations.adapter.reads import download_saved
from chiplog.integrations.wandb.errors import CommError, warn
from chiplog.safety.text import short_repr
from chiplog_schemas.storage.content_files import invalid_path_reason


def restore_file(
    run: Any, name: str, run_path: str | None = None, replace: bool = False, root: str | None = None
) -> TextIO | None:
    """Return a file of a run, opened for reading. A read: it waits for the collector, and may raise.

    Args:
        run: The current run, as W&B has it; None without one.
        name: The name of the file in its run.
        run_path: The run of the file, as `project/ID`. Default: the current run.
        replace: Read it also if the file is there.
        root: The directory to write it to. Default: `run.dir`, else the working directory.

    Returns:
        The file, written below `root`; None if the run has none of this name.

    Raises:
        CommError: It cannot be read or written.

    """
    reason = invalid_path_reason(str(name))
    if reason is not None:
        warn(f"wandb.restore({short_repr(name)}) returns None: {reason}")
        return None
    if run is None and not run_path:
        warn(
            f"wandb.restore({short_repr(name)}) returns None without a run; call wandb.init() first, or give run_path="
        )
        return None
    target = Path(root or (os.getcwd() if run is None else run.dir), name)
    if target.exists() and not replace:
        return target.open(encoding="utf-8")
    if run is not None and run.disabled:
        return None
    run_id = str(run_path).rpartition("/")[2] if run_path or run is None else run.id
    place = None if run is None else run._inner._settings.places.root
    try:
        is_found = download_saved(place, run_id, str(name), target)
    except Exception as error:
        raise CommError(f"file {short_repr(name)} of run {run_id} cannot be read: {error}") from error
    return target.open(encoding="utf-8") if is_found else None
