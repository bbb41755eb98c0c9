"""The CHIPLOG_DIR of a process that only reads."""

import os
from pathlib import Path

from chiplog_schemas.paths import own_dir

# PARENT_RUN and SETUP of identity.py: its import takes a command 10 ms.
VARIABLES = ("CHIPLOG_PARENT_RUN", "CHIPLOG_SETUP")


def recording_dir(argument: str | os.PathLike[str] | None) -> Path:
    """Return the argument, else the directory in which an ancestor records, else that of the variable."""
    if argument or not any(os.environ.get(name) for name in VARIABLES):
        return own_dir(argument, os.environ)
    from chiplog.identity.inherited_env import with_inherited_places
    from chiplog.identity.process_info import read_process_facts

    environ = with_inherited_places(os.environ, read_process_facts())  # safeguard: reader-follows-its-parent
    return own_dir(None, environ)
