"""Small files on this node that let a run resume: the step count of each label, and the label of a lone process.

    <local>/steps/<hash of run and label>       next step
    <local>/steps/<hash of run>.lone            pid, its start, label: of a process without a launcher
    <local>/steps/<hash of run>.run             the launch that opened it last

The sender thread and finish() write them, and never sync. After SIGKILL the count is at most one tick of the sender
old, so a few steps may appear twice, in another attempt.
"""

import hashlib
import os
import time
from pathlib import Path

from chiplog.identity.identity import Identity
from chiplog_schemas.interrupts import unless_interrupt
from chiplog_schemas.paths import ensure_private_dir, require_private
from chiplog_schemas.process.descriptors import OwnedDescriptor
from chiplog_schemas.process.procfs import start_ticks

STEPS = "steps"  # the directory's name
FILES_MAX = 4_096  # of resumable runs on one node; beyond this the oldest quarter is removed
_BYTES_MAX = 1_024
_STEP_MAX = (1 << 63) - 1
_POLL_INTERVAL_S = 0.001
_TURN_WAIT_S = 0.25  # part of finish()'s one second: to wait for a write of the sender thread


class StepCounterFile:
    """The step count of one label of one run. Never raises: a disk error loses the count, not the run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path: Path | None = None
        self._kept = 0
        self._lone: tuple[Path, str] | None = None
        self._mark: tuple[Path, str] | None = None
        self._is_pruned = False
        self._is_writing = False  # by one thread: no call between setting the flag and entering the `try`
        self._is_over = False
        # The run must be new and is not: the collector stores it under another ID. These files remain the old run's.
        self.is_refused = False

    def load(self, identity: Identity, label_given: bool) -> int:
        """Return the next step of a label; 0 for a new label or in a run that must be new."""
        self.is_refused = identity.demand == "never" and is_known(self._directory, identity.run_id, identity.launch)
        if self.is_refused:  # safeguard: refused-run-writes-no-count
            self._path = self._lone = self._mark = None
            return 0
        self._path = self._directory / _digest(f"{identity.run_id}/{identity.label}")
        is_lone = identity.rank is None and identity.primary and not identity.joined_existing_run and not label_given
        self._lone = (_unnamed_label_file(self._directory, identity.run_id), identity.label) if is_lone else None
        self._mark = _mark_file(self._directory, identity.run_id), identity.launch
        try:
            self._kept = min(max(int(_read(self._path)), 0), _STEP_MAX)
        except ValueError:
            self._kept = 0
        return self._kept

    def save(self, next_step: int, *, is_last: bool = False) -> None:
        """Write the count if it changed. After the last one nothing is written: it would be outdated."""
        deadline = time.monotonic() + _TURN_WAIT_S
        while self._is_writing:
            if time.monotonic() >= deadline:
                return  # the disk hangs
            time.sleep(_POLL_INTERVAL_S)
        self._is_writing = True
        try:
            if not self._is_over:
                self._is_over = is_last
                self._keep(next_step)
        except unless_interrupt(OSError):
            self._path = None  # a resumed run then counts from 0
        finally:
            self._is_writing = False

    def _keep(self, next_step: int) -> None:
        if self._lone is not None:
            (path, label), self._lone = self._lone, None
            self._write(path, f"{os.getpid()} {start_ticks(os.getpid())} {label}")
        if self._mark is not None:
            (mark, launch), self._mark = self._mark, None
            if _read(mark) != launch:
                self._write(mark, launch)
        if self._path is not None and next_step != self._kept:
            self._write(self._path, str(next_step))
            self._kept = next_step

    def _write(self, path: Path, text: str) -> None:
        if not self._is_pruned:
            if self._directory.parent.exists():
                require_private(self._directory.parent)
            ensure_private_dir(self._directory)
            prune(self._directory)
            self._is_pruned = True
        # One short write in place, then truncate: the text is shorter if the count was reset.
        opened = OwnedDescriptor(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            os.pwrite(opened.number, text.encode(), 0)
            os.ftruncate(opened.number, len(text.encode()))
        finally:
            opened.close()


def label_to_resume(directory: Path, run_id: str) -> str | None:
    """Return the generated label of the process that had this run alone, unless it is still alive."""
    pid, _, rest = _read(_unnamed_label_file(directory, run_id)).partition(" ")
    start, _, label = rest.partition(" ")
    if not pid.isdigit() or not label:
        return None
    is_alive = int(pid) != os.getpid() and str(start_ticks(int(pid))) == start
    return None if is_alive else label


def is_known(directory: Path, run_id: str, launch: str) -> bool:
    """Return True if another launch had this run on this node. Launches of other nodes, or long ago, are unknown."""
    mark = _mark_file(directory, run_id)
    if mark.exists():
        return _read(mark) != launch
    return _unnamed_label_file(directory, run_id).exists()


def has_counted(directory: Path, run_id: str, label: str) -> bool:
    """Return True if an earlier process of this label counted steps on this node."""
    return (directory / _digest(f"{run_id}/{label}")).exists()


def _mark_file(directory: Path, run_id: str) -> Path:
    return directory / f"{_digest(run_id)}.run"


def _unnamed_label_file(directory: Path, run_id: str) -> Path:
    return directory / f"{_digest(run_id)}.lone"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""


def prune(directory: Path) -> None:
    """Remove the oldest quarter of a directory's files if there are too many."""
    entries = list(os.scandir(directory))
    if len(entries) > FILES_MAX:
        for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime)[: FILES_MAX // 4]:
            os.unlink(entry.path)
