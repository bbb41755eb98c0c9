"""Small files on this node, one for each run that has not finished: `resume="auto"` continues the last one.

    <local>/unfinished/<hash of directory, project, group>-<hash of run>    JSON: run_id, launch, pid, journal

The sender thread writes them and never syncs. A run that finishes with exit code 0 removes its file.
"""

import hashlib
import json
import os
from pathlib import Path

from chiplog.recording.resume.step_counter import prune
from chiplog_schemas.atomic_file import atomic_write
from chiplog_schemas.paths import ensure_private_dir, require_private
from chiplog_schemas.process.file_lock import lock_holder_pid

UNFINISHED = "unfinished"  # the directory's name
_BYTES_MAX = 8_192  # of one file: a run ID, a launch and a path
_KEY_CHARS = 24  # of a hash


class UnfinishedRun:
    """The file of one run. Never raises: a disk error loses the file, not the run."""

    def __init__(self, directory: Path, key: str) -> None:
        self._directory = directory
        self._key = key
        self._path: Path | None = None
        self._is_over = False

    def note(self, run_id: str, launch: str, journal: Path) -> None:
        """Write the file, once for each ID that the run gets."""
        path = self._directory / f"{self._key}-{_digest(run_id)}"
        if path == self._path or self._is_over:
            return
        if self._path is not None:
            _remove(self._path)  # the run has another ID now
        self._path = path
        text = json.dumps({"run_id": run_id, "launch": launch, "pid": os.getpid(), "journal": str(journal)})
        try:
            if self._directory.parent.exists():
                require_private(self._directory.parent)
            ensure_private_dir(self._directory)
            prune(self._directory)
            atomic_write(path, text.encode())  # other ranks read it
        except OSError:
            pass  # `auto` starts a new run then
        if self._is_over:  # the run finished in another thread in the meantime
            _remove(path)

    def clear(self, run_id: str) -> None:
        """Remove the file of a finished run, including one of an earlier attempt."""
        self._is_over = True
        _remove(self._directory / f"{self._key}-{_digest(run_id)}")


def key_of(*parts: str | None) -> str:
    """Return the key of the runs that `auto` chooses from: of a directory, a project, a group, and a label in it."""
    return _digest(json.dumps(parts))


def last_unfinished(directory: Path, key: str, launch: str) -> str | None:
    """Return the run of this launch, else the latest that is neither finished nor running; None if none."""
    try:
        with os.scandir(directory) as entries:
            found = [(entry.stat().st_mtime_ns, entry.path) for entry in entries if entry.name.startswith(f"{key}-")]
    except OSError:
        return None
    known = [run for _, path in sorted(found, reverse=True) if (run := _read(path)) is not None]
    for run in known:
        if run["launch"] == launch:
            return run["run_id"]
    # Do not probe a lock of this process, see lock_holder_pid(). Its own open run can be resumed.
    ended = (  # safeguard: running-run-not-resumed
        run for run in known if run["pid"] == str(os.getpid()) or not lock_holder_pid(Path(run["journal"]) / "lock")
    )
    return next((run["run_id"] for run in ended), None)


def _read(path: str) -> dict[str, str] | None:
    try:
        with open(path, "rb") as file:
            run = json.loads(file.read(_BYTES_MAX))
        return {name: str(run[name]) for name in ("run_id", "launch", "pid", "journal")}
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass  # the run is resumed once more


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_KEY_CHARS]
