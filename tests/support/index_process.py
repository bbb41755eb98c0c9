"""The index process of a directory."""

from pathlib import Path

from chiplog_schemas.paths import Places
from chiplog_schemas.process.file_lock import holder_of


def index_of(place: Places) -> int:
    """Return the PID of the index process of this directory."""
    receiver = holder_of(place.collector / "lock")
    try:
        children = Path(f"/proc/{receiver}/task/{receiver}/children").read_text().split()
    except OSError:
        return 0
    return int(children[0]) if children else 0
