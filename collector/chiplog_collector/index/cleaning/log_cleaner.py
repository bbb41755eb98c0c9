"""Free the space of deleted data: rewrite the log's sealed segments without it, and remove contents of saved files.

A thread of its own does both, because a segment takes a second. It touches no database, and no segment that is being
written: what was deleted there goes once the segment is sealed. Records keep their numbers, and an emptied one stays as
PRUNED, so that receipts keep their counts. A segment with damage stays as it is: a rebuild must report the damage.

Facts that have left the database because a store has them go, too; the seqs of their events stay.

`cleaned` beside the log has the number up to which deletions have been cleaned, `trimmed` that of published facts.
Without them everything is looked at again, which changes nothing.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from chiplog_collector.index.apply.state import State
from chiplog_collector.index.cleaning.block_pruning import prune_block, trim_block
from chiplog_schemas.atomic_file import atomic_write
from chiplog_schemas.limits import CONTENT_AGE_S
from chiplog_schemas.storage.content_files import content_path, is_content_name
from chiplog_schemas.storage.record import CorruptRange, Kind, Record, encode, reframe, scan_records
from chiplog_schemas.storage.segment_format import SEGMENT_HEADER_BYTES, decode_header, list_segments
from chiplog_schemas.storage.watermark import open_watermark

CLEANED_NAME = "cleaned"
TRIMMED_NAME = "trimmed"
_ASIDE = ".removed"  # of a content's name, between two looks at its age
SWEEP_INTERVAL_S = 3_600.0
AGAIN_S = 60.0  # after a refusal of the disk
PAUSE_S = 0.05  # between two segments: the thread must not take the interpreter from queries all the time
_log = logging.getLogger("chiplog.index")


@dataclass(frozen=True, slots=True)
class Removal:
    """What the log no longer needs. deleted: producers. samples_until: µs, of records before `samples_number`.

    published: the last record whose facts a store has and the database no longer does. refused: records that were
    refused at first; their facts count to a later record, so they stay.
    """

    deleted: frozenset[bytes]
    number: int  # of the newest record that deletes something
    samples_number: int = 0
    samples_until: int = 0
    published: int = -1
    refused: frozenset[int] = frozenset()


def clean_segment(path: Path, removal: Removal) -> int:
    """Rewrite a sealed segment without deleted data; return how many bytes smaller it is. Raises OSError."""
    data = path.read_bytes()
    header = decode_header(data)
    if header is None:
        return 0
    parts: list[bytes | memoryview] = [data[:SEGMENT_HEADER_BYTES]]
    has_changed = False
    for item in scan_records(data, SEGMENT_HEADER_BYTES, first=header.base):
        if isinstance(item, CorruptRange):
            return 0  # safeguard: damaged-segment-stays
        cleaned = _cleaned(item, removal)
        if cleaned is None:
            parts += reframe(item, item.number)
        else:
            has_changed = True
            kind, payload = cleaned
            parts.append(encode(kind, item.number, payload, item.version))
    if not has_changed:
        return 0
    content = b"".join(parts)
    atomic_write(path, content, durable=True)
    return len(data) - len(content)


def _cleaned(record: Record, removal: Removal) -> tuple[Kind, bytes] | None:
    """Return kind and payload of a record without what the log no longer needs; None if it stays as it is."""
    if record.kind not in (Kind.BLOCK, Kind.TRIMMED):
        return None
    is_trimmed = record.kind == Kind.TRIMMED
    until = removal.samples_until if record.number < removal.samples_number else None
    pruned = prune_block(record.payload, removal.deleted, until, is_trimmed=is_trimmed)
    if pruned == b"":
        return Kind.PRUNED, pruned  # safeguard: receipts-keep-counts
    # safeguard: refused-facts-stay-in-log
    if not is_trimmed and record.number <= removal.published and record.number not in removal.refused:
        trimmed = trim_block(record.payload if pruned is None else pruned)
        if trimmed is not None:
            return Kind.TRIMMED, trimmed
    return None if pruned is None else (Kind(record.kind), pruned)


def remove_contents(files: Path, orphans: Iterable[str], now: float) -> int:
    """Remove saved contents that have not come lately; return their bytes.

    orphans: their SHA-256 in hex digits. now: time.time().
    """
    n_bytes = 0
    for name in orphans:
        if not is_content_name(name):
            continue
        path = content_path(files, bytes.fromhex(name))
        aside = path.with_name(f".{name}{_ASIDE}")
        with contextlib.suppress(FileNotFoundError):
            # Another run may just have sent it again, and the row that names it is not applied yet.
            # safeguard: young-content-stays
            if now - path.stat().st_mtime > CONTENT_AGE_S:
                os.rename(path, aside)  # from here on the receiver takes it again
                about = aside.stat()
                if now - about.st_mtime <= CONTENT_AGE_S:  # the receiver has claimed it since it was looked at
                    _put_back(aside, path)  # safeguard: claimed-content-put-back
                    continue
                n_bytes += about.st_size
                aside.unlink()
    return n_bytes


def restore_set_aside(files: Path) -> None:
    """Put back the contents that a killed process had set aside: the next sweep decides. Raises OSError."""
    for aside in files.glob(f"*/.*{_ASIDE}"):
        name = aside.name.removeprefix(".").removesuffix(_ASIDE)
        if is_content_name(name):
            _put_back(aside, aside.with_name(name))  # safeguard: set-aside-content-restored


def _put_back(aside: Path, path: Path) -> None:
    try:
        os.link(aside, path)
    except FileExistsError:
        pass  # it was sent again: the same content
    except OSError:  # a file system without links
        os.rename(aside, path)
        return
    aside.unlink()


class LogCleaner:
    """Starts the thread when there is something to free. One thread calls `turn`: the writer's."""

    def __init__(self, log: Path, files: Path, *, may_trim: bool = False) -> None:
        """may_trim: facts leave the database because a store has them."""
        self._directory = log
        self._files = files
        self._mark = open_watermark(log.parent / CLEANED_NAME)
        self._trimmed = open_watermark(log.parent / TRIMMED_NAME) if may_trim else None
        self._done: tuple[int, ...] | None = None  # newest removal, published facts and newest segment of the last pass
        self._sweep_at = 0.0
        self._not_before = 0.0
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def turn(
        self,
        state: State,
        orphans: Callable[[], Iterable[str]],
        now: float,
        published: int = -1,
        refused: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        """Start a pass if one is due. Call it while the index keeps up.

        orphans: see `remove_contents`. published, refused: see `Removal`.
        """
        if (self._thread is not None and self._thread.is_alive()) or now < self._not_before:
            return
        if state.deleted and now >= self._sweep_at:
            self._sweep_at = now + SWEEP_INTERVAL_S
            self._start(self._sweep, orphans())
            return
        newest_removal = max(state.last_deletion, state.trimmed[0])
        is_clean = newest_removal < 0 or (self._mark is not None and self._mark.get() > newest_removal)
        if is_clean and (published < 0 or (self._trimmed is not None and self._trimmed.get() > published)):
            return
        segments = list_segments(self._directory)
        if is_clean and self._trimmed is not None:  # what was deleted went before
            done = self._trimmed.get()
            n_done = sum(base <= done for base, _ in segments[1:])
            segments = segments[n_done:]
        newest_segment = segments[-1][0] if segments else 0
        if self._done == (newest_removal, published, newest_segment):
            return  # the rest waits until the segment that is written is sealed
        self._done = (newest_removal, published, newest_segment)
        kept = frozenset(refused()) if published >= 0 else frozenset()
        removal = Removal(frozenset(state.deleted), newest_removal, *state.trimmed, published, kept)
        self._start(self._clean, removal, segments)

    def close(self) -> None:
        """End the thread after its current segment."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        for mark in (self._mark, self._trimmed):
            if mark is not None:
                mark.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        self._thread = threading.Thread(target=self._run, args=(work, *arguments), name="chiplog-cleaner", daemon=True)
        self._thread.start()

    # -- the thread --

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except OSError as error:
            _log.warning("deleted data cannot be freed: %s; trying again later", error)
            self._done, self._not_before = None, time.monotonic() + AGAIN_S
        except Exception:
            _log.exception("deleted data cannot be freed")
            self._done, self._not_before = None, time.monotonic() + SWEEP_INTERVAL_S

    def _clean(self, removal: Removal, segments: list[tuple[int, Path]]) -> None:
        for left in self._directory.glob(".*.seg.*"):  # of a process that was killed
            left.unlink(missing_ok=True)
        freed = 0
        failure: Exception | None = None
        for base, path in segments[:-1]:
            if base > max(removal.number, removal.published):
                break
            try:
                freed += clean_segment(path, removal)
            except Exception as error:  # the other segments are cleaned all the same
                failure = error
            if self._stopping.wait(PAUSE_S):
                return
        if freed:
            _log.info("%d bytes of the log were freed of deleted or published data", freed)
        if failure is not None:
            raise failure
        for mark, number in ((self._mark, removal.number), (self._trimmed, removal.published)):
            if mark is not None and segments and segments[-1][0] > number >= 0:
                mark.set(number + 1)

    def _sweep(self, orphans: Iterable[str]) -> None:
        restore_set_aside(self._files)
        if freed := remove_contents(self._files, orphans, time.time()):
            _log.info("%d bytes of saved files were freed", freed)
