"""Move what another decision about the node's own disk left behind: journals, blocks of a spool, and saved files.

A former place may be on a file system that other nodes use too, where a free lock proves nothing. There a journal is
moved if its process ran in this boot and its lock is free and its head not mapped, or once nothing in it has changed
for twice the interval in which a running process renews its files. What is moved is first renamed: two agents that
find it at the same time do not both take it. Delivering something twice would change nothing either.

A thread does it, because such a file system may hang.
"""

import contextlib
import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from chiplog_schemas.atomic_file import copy_durably, link_or_copy, sync_directory
from chiplog_schemas.file_systems import LOCAL_FILE_SYSTEMS, file_system_type
from chiplog_schemas.limits import FILES_TOUCH_S
from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.process.file_lock import Lock
from chiplog_schemas.process.procfs import boot_id, is_mapped
from chiplog_schemas.storage.content_files import list_contents
from chiplog_schemas.storage.former_places import MOVING, find_leftovers
from chiplog_schemas.storage.journal_dir import HEAD_NAME, LOCK_NAME, decode_head, list_journals
from chiplog_schemas.storage.record import CorruptRange, Kind
from chiplog_schemas.storage.segment_format import list_segments, read_segment
from chiplog_schemas.transport.collector_memory import remembered_collector

_INTERVAL_S = 60.0  # between two looks; the first is at the start of the agent
_SILENT_S = 2 * FILES_TOUCH_S  # a process that runs, and is not stopped, has renewed its files within it
_BLOCKS_MAX = 8  # read ahead of the spool: a block has up to 1 MiB
_POLL_S = 0.2
_log = logging.getLogger("chiplog.agent")


class FormerPlaceMover:
    """Moves the content of all former places. The agent's loop calls the methods without an underscore.

    collector: where this agent delivers; None for the collector of the same CHIPLOG_DIR. What waits for another one
    stays in its place.
    """

    def __init__(self, places: Paths, collector: str | None = None) -> None:
        self._places = places
        self._collector = collector
        self._blocks: queue.Queue[bytes] = queue.Queue(_BLOCKS_MAX)
        self._thread: threading.Thread | None = None
        self._next_s = 0.0
        self._is_stopping = threading.Event()
        self._n_put = self._n_taken = self._n_synced = 0  # blocks; each is written by one thread

    @property
    def is_idle(self) -> bool:
        """Return True if nothing is being moved."""
        return self._thread is None or not self._thread.is_alive()

    def tick(self, now: float) -> None:
        """Start the thread, at intervals, if a former place has something."""
        if not self._places.former or now < self._next_s or not self.is_idle:
            return
        self._next_s = now + _INTERVAL_S
        self._thread = threading.Thread(target=self._run, name="chiplog-former-place", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread can be started now: at the next interval
            self._thread = None

    def take_blocks(self) -> list[bytes]:
        """Return blocks of a former spool, to be appended to this agent's."""
        blocks: list[bytes] = []
        with contextlib.suppress(queue.Empty):
            while len(blocks) < _BLOCKS_MAX:
                blocks.append(self._blocks.get_nowait())
        self._n_taken += len(blocks)
        return blocks

    def on_spool_synced(self) -> None:
        """Note that all blocks taken so far are on stable storage here."""
        self._n_synced = self._n_taken

    def close(self) -> None:
        """Stop. What is not moved stays in its place for the next agent."""
        self._is_stopping.set()

    def _run(self) -> None:
        for left in find_leftovers(self._places):
            kept = remembered_collector(left.place / "agent")
            if kept is not None and kept.address != self._collector:  # safeguard: former-spool-keeps-its-collector
                _log.warning("%s: an agent with --collector %s moves it", left, kept.address)
                continue
            try:
                is_shared = file_system_type(left.place) not in LOCAL_FILE_SYSTEMS
                _log.info("moving what an earlier decision left to %s: %s", self._places.local, left)
                self._move_journals(left.place / "journals", is_shared=is_shared)
                self._move_agent(left.place, is_shared=is_shared)
            except OSError as error:
                _log.warning("%s cannot be moved now: %s; trying again in %g s", left, error, _INTERVAL_S)

    # -- journals --

    def _move_journals(self, journals: Path, *, is_shared: bool) -> None:
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(journals):  # of an agent that was killed
                if name.startswith(MOVING) and _is_silent(journals / name):
                    os.rename(journals / name, journals / name.removeprefix(MOVING))
        ensure_private_dir(self._places.journals)
        for _, journal in list_journals(journals):
            if self._is_stopping.is_set():
                return
            # Before the lock is tried, which writes to its file.
            # safeguard: shared-journal-of-other-node-stays
            if is_shared and not (_ran_in_this_boot(journal) or _is_silent(journal)):
                continue
            try:
                lock = Lock(journal / LOCK_NAME, create=False)
            except OSError:
                continue  # its process runs, or it is not for this user
            try:
                self._move_journal(journal)
            finally:
                lock.release()

    def _move_journal(self, journal: Path) -> None:
        claimed = journal.with_name(f"{MOVING}{journal.name}")
        target = self._places.journals / journal.name
        staging = target.with_name(f".new-{journal.name}")
        os.rename(journal, claimed)
        try:
            os.utime(claimed)
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(mode=0o700)
            for entry in claimed.iterdir():
                copy_durably(entry, staging / entry.name)
            sync_directory(staging)
            os.rename(staging, target)
            sync_directory(target.parent)
        except OSError:
            shutil.rmtree(staging, ignore_errors=True)
            os.rename(claimed, journal)
            raise
        shutil.rmtree(claimed, ignore_errors=True)

    # -- spool and outbox --

    def _move_agent(self, place: Path, *, is_shared: bool) -> None:
        """Move the spool and the outbox of an agent that has ended."""
        if not (place / "agent").is_dir() or (is_shared and _may_serve(place / "agent")):
            return
        try:
            lock = Lock(place / "agent" / "lock")
        except OSError:
            return  # an agent runs, or this file system has no locks: only a file that is not renewed shows an end
        try:
            spool, claimed = place / "agent" / "spool", place / "agent" / f"{MOVING}spool"
            if claimed.is_dir() and (not is_shared or _is_silent(claimed)):
                self._move_blocks(claimed)
            if list_segments(spool) and not claimed.exists():
                os.rename(spool, claimed)
                os.utime(claimed)
                self._move_blocks(claimed)
            contents = list_contents(place / "outbox")
            if contents:
                ensure_private_dir(self._places.outbox)
            for path in contents:
                link_or_copy(path, self._places.outbox / path.name)
                path.unlink()
        finally:
            lock.release()

    def _move_blocks(self, spool: Path) -> None:
        """Pass the blocks of a spool to the agent's, and remove it once they are on stable storage there."""
        for block in _blocks_of(spool):
            self._n_put += 1
            while not self._is_stopping.is_set():
                with contextlib.suppress(queue.Full):
                    self._blocks.put(block, timeout=_POLL_S)
                    break
        # safeguard: former-spool-removed-after-sync
        while self._n_synced < self._n_put and not self._is_stopping.is_set():
            time.sleep(_POLL_S / 4)
        if not self._is_stopping.is_set():
            shutil.rmtree(spool, ignore_errors=True)


def _blocks_of(spool: Path) -> Iterator[bytes]:
    for _, path in list_segments(spool):
        for item in read_segment(path):
            if isinstance(item, CorruptRange):
                _log.error("a part of %s is damaged and cannot be moved: %s", path, item.reason)
            elif item.kind == Kind.BLOCK:
                yield bytes(item.payload)


def _ran_in_this_boot(journal: Path) -> bool:
    """Return True if a journal's process ran on this machine since it booted, and has ended: its lock is free."""
    try:
        head = decode_head((journal / HEAD_NAME).read_bytes())
    except OSError:
        return False
    is_ours = head is not None and head.identity.get("boot") == boot_id()
    return is_ours and not is_mapped(f"{journal.name}/{HEAD_NAME}")  # a lock on another mount is not seen on this one


def _may_serve(agent: Path) -> bool:
    """Return True if the agent of a directory that other nodes share may run there: it reports on its link."""
    return (agent / "link").exists() and not _is_silent(agent, ("lock", "link"))


def _is_silent(directory: Path, names: tuple[str, ...] = ()) -> bool:
    """Return True if no file in a directory has changed for _SILENT_S, by the clock of its file system."""
    probe = directory.parent / f".clock-{os.getpid()}"
    try:
        probe.touch()
        now_s = probe.stat().st_mtime
        paths = [directory / name for name in names] if names else [directory, *directory.iterdir()]
        return all(now_s - path.stat().st_mtime > _SILENT_S for path in paths if path.exists())
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
