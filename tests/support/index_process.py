"""The index process of a directory."""

from pathlib import Path

from chiplog_schemas.paths import Paths
from chiplog_schemas.process.file_lock import lock_holder_pid


def index_of(place: Paths) -> int:
    """Return the PID of the index process of this directory."""
    receiver = lock_holder_pid(place.collector / "lock")
    try:
        children = Path(f"/proc/{receiver}/task/{receiver}/children").read_text().split()
    except OSError:
        return 0
    return int(children[0]) if children else 0
