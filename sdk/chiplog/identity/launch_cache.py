"""Cache on each node the run ID that the ranks of a launch agreed on, for ranks that start after a restart.

torchelastic starts new ranks under the same agent, perhaps with another store, another rank 0 and without the node that
won the agreement before. Their common parent identifies the launch, and a small file holds its run ID. The same holds
for a step of a Slurm job: after a requeue it has another start time.
"""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from chiplog.identity.identity import Identity
from chiplog_schemas.atomic_file import atomic_write
from chiplog_schemas.paths import Paths, ensure_private_dir

LAUNCHES_MAX = 256  # one-line files, the oldest are removed; fewer launches restart side by side on one node
_RUN_ID_BYTES_MAX = 1024


def with_cached_run_id(places: Paths, identity: Identity) -> Identity:
    """Return the identity with the run ID that its launch had before its ranks were restarted."""
    if not identity.launch_cache_key:
        return identity
    # A Slurm job that was not requeued is new, even if an earlier job had the same number.
    is_new = identity.launch.startswith("slurm:") and not identity.restart
    known = None if is_new else load(places, identity.launch_cache_key)
    if known is not None:
        return replace(identity, run_id=known, run_id_is_final=True)
    if not identity.needs_agreement:  # a second node may still join
        try:
            store(places, identity.launch_cache_key, identity.run_id)
        except OSError:
            pass  # if a node joins later, all nodes agree again
    return identity


def load(places: Paths, launch_run: str) -> str | None:
    """Return the run ID of a launch, None if this node does not know it."""
    try:
        with open(_path(places, launch_run), encoding="utf-8") as file:
            return file.read(_RUN_ID_BYTES_MAX).strip() or None
    except (OSError, ValueError):
        return None  # absent or unreadable: the ranks agree again


def store(places: Paths, launch_run: str, run_id: str) -> None:
    """Store the run ID of a launch. Raises OSError."""
    path = _path(places, launch_run)
    ensure_private_dir(path.parent)
    atomic_write(path, f"{run_id}\n".encode())  # several ranks may write the same value at once
    _evict(path.parent)


def _path(places: Paths, launch_run: str) -> Path:
    return places.launches / hashlib.sha256(launch_run.rpartition(" ")[0].encode()).hexdigest()[:32]


def _evict(directory: Path) -> None:
    with os.scandir(directory) as entries:
        known = sorted((entry.stat().st_mtime, entry.path) for entry in entries)
    for _, path in known[: max(0, len(known) - LAUNCHES_MAX)]:
        Path(path).unlink(missing_ok=True)
