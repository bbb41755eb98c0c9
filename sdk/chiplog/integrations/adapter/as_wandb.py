"""One directory in front of PYTHONPATH makes `import wandb` chiplog's, in the children of a process, too."""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "CHIPLOG_AS_WANDB"
DIRECTORY = str(Path(__file__).parents[1] / "as_wandb")
_log = logging.getLogger("chiplog")


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a process, whose children inherit them."""
    rest = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != DIRECTORY]
    return {VARIABLE: "1", "PYTHONPATH": os.pathsep.join([DIRECTORY, *rest])}


def take_over() -> None:
    """Put the directory first on sys.path: PYTHONPATH is not read by `python -I`, and scripts change the path."""
    if sys.path[:1] != [DIRECTORY]:
        sys.path[:] = [DIRECTORY, *(path for path in sys.path if path != DIRECTORY)]
    known = sys.modules.get("wandb")
    where = str(getattr(known, "__file__", ""))
    if known is not None and not (known.__name__.startswith("chiplog.") or where.startswith(DIRECTORY)):
        _log.warning("chiplog: %s=1, but wandb was imported from %s before; import chiplog first", VARIABLE, where)
