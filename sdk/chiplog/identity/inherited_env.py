"""Name this process's open run to its children, in a variable that is restored when the run ends.

The variable also has where and whether this process records, however that was chosen: a relative CHIPLOG_DIR means
another directory in a child that has another working directory, and a child does not see the arguments of `init`.
"""

import os
from collections.abc import MutableMapping

from chiplog.identity.identity import Identity, encode_parent_run
from chiplog_schemas.process.inherited_run import PARENT_RUN, process_fingerprint

_previous_value: str | None = None  # the variable's value before: a run of an ancestor, which outlives this one
_exported: dict[int, str] = {}  # the value for each open run of this process, by owner, in the order of opening


def export_run(
    environ: MutableMapping[str, str], owner: object, run_id: str, identity: Identity, places: str = ""
) -> None:
    """Name the run to all processes that this one starts from now on. owner: the caller of `restore_environ`."""
    global _previous_value
    if not _is_own(environ):
        _previous_value = environ.get(PARENT_RUN)
        _exported.clear()  # in a forked child these are its parent's
    _exported[id(owner)] = environ[PARENT_RUN] = encode_parent_run(
        os.getpid(), run_id, identity, process_fingerprint(), places=places
    )


def restore_environ(environ: MutableMapping[str, str], owner: object) -> None:
    """Name the latest run that is still open, or restore the variable's previous value."""
    global _previous_value
    _exported.pop(id(owner), None)
    if not _is_own(environ):
        return
    if open_runs := list(_exported.values()):  # a copy: a signal handler may open or finish a run here
        environ[PARENT_RUN] = open_runs[-1]
    elif _previous_value is None:
        del environ[PARENT_RUN]
    else:
        environ[PARENT_RUN], _previous_value = _previous_value, None


def _is_own(environ: MutableMapping[str, str]) -> bool:
    return environ.get(PARENT_RUN, "").startswith(f"{os.getpid()}:")
