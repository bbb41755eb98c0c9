"""What this process tells those that it starts of its open run: a variable, which is given back at the run's end."""

import os
from collections.abc import MutableMapping

from chiplog.identity import PARENT_RUN, Identity, parent_run
from chiplog.process import stamp

_former: str | None = None  # what the variable said before: of a run further up, which goes on behind this one


def tell_children(environ: MutableMapping[str, str], run_id: str, identity: Identity) -> None:
    """Name the run to all that this process starts from now on."""
    global _former
    if not _is_own(environ):
        _former = environ.get(PARENT_RUN)
    environ[PARENT_RUN] = parent_run(os.getpid(), run_id, identity, stamp())


def tell_no_more(environ: MutableMapping[str, str]) -> None:
    """Leave the variable as it was: what is started from now on is no part of the run of this process."""
    global _former
    if not _is_own(environ):
        return
    if _former is None:
        del environ[PARENT_RUN]
    else:
        environ[PARENT_RUN], _former = _former, None


def _is_own(environ: MutableMapping[str, str]) -> bool:
    return environ.get(PARENT_RUN, "").startswith(f"{os.getpid()}:")
