"""The CHIPLOG_DIR of a process that only reads."""

import os
from pathlib import Path

from chiplog_schemas.paths import own_dir
from chiplog_schemas.process.inherited_run import PARENT_RUN, SETUP, stale_variables, with_inherited_places


def recording_dir(argument: str | os.PathLike[str] | None) -> Path:
    """Return the argument, else the directory in which an ancestor records, else that of the variable."""
    if argument or not any(os.environ.get(name) for name in (PARENT_RUN, SETUP)):
        return own_dir(argument, os.environ)
    stale = stale_variables(os.environ)
    environ = with_inherited_places(os.environ, os.getpid(), stale)  # safeguard: reader-follows-its-parent
    return own_dir(None, environ)
