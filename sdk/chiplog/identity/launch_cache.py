"""What a node remembers of a launch: the run ID that its ranks agreed on, for those that come after a restart.

torchelastic starts new ranks under the same agent, perhaps with another store, another rank 0 and without the node that
had the word before. Their parent tells that it is the same launch; what that launch is called stands in a small file.
So does the run of a Slurm job's step: requeued, it has another start time.
"""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from chiplog.identity.identity import Identity
from chiplog_schemas.paths import Paths, ensure_private_dir

LAUNCHES_MAX = 256  # files of one line; the oldest go. More launches than that do not restart side by side on one node
_RUN_ID_BYTES_MAX = 1024


def with_cached_run_id(places: Paths, identity: Identity) -> Identity:
    """Return an identity under the run ID that its launch had before ranks were started again."""
    if not identity.launch_cache_key:
        return identity
    # A Slurm job that was not requeued is new, whatever a job of the same number was called before.
    is_new = identity.launch.startswith("slurm:") and not identity.restart
    known = None if is_new else load(places, identity.launch_cache_key)
    if known is not None:
        return replace(identity, run_id=known, run_id_is_final=True)
    if not identity.needs_agreement:  # so far: a second node may come to this one
        try:
            store(places, identity.launch_cache_key, identity.run_id)
        except OSError:
            pass  # then all nodes agree anew, should one come
    return identity


def load(places: Paths, launch_run: str) -> str | None:
    """Return the run ID of a launch, as far as this node knows it."""
    try:
        with open(_path(places, launch_run), encoding="utf-8") as file:
            return file.read(_RUN_ID_BYTES_MAX).strip() or None
    except (OSError, ValueError):
        return None  # nobody wrote it, or nobody can read it: the ranks agree anew


def store(places: Paths, launch_run: str, run_id: str) -> None:
    """Note the run ID of a launch. Raises OSError."""
    path = _path(places, launch_run)
    ensure_private_dir(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(f"{run_id}\n", encoding="utf-8")
    os.replace(temporary, path)  # several ranks write the same at once
    _evict(path.parent)


def _path(places: Paths, launch_run: str) -> Path:
    return places.launches / hashlib.sha256(launch_run.rpartition(" ")[0].encode()).hexdigest()[:32]


def _evict(directory: Path) -> None:
    with os.scandir(directory) as entries:
        known = sorted((entry.stat().st_mtime, entry.path) for entry in entries)
    for _, path in known[: max(0, len(known) - LAUNCHES_MAX)]:
        Path(path).unlink(missing_ok=True)
