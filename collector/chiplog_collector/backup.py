"""Copy the collector's log and saved files to another directory while it runs, and restore such a copy.

    <backup>/
      manifest.json        written last: format, owner of the log, number after its last record, segments with checksums
      log/*.seg, files/    as in the collector's directory

Sealed segments and contents never change in place, so they are linked where the file system allows it. Of the newest
segment only whole, synced records are copied. Keys are not part of a backup, and neither is the database: the log is
the truth. Of a store, a backup names the address: what waits for it is cut again from the log.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from chiplog_collector.receiver.commit import empty_receipt
from chiplog_collector.store.outbox import Outbox, Published
from chiplog_collector.store.published_tables import COMPLETE, ORDERS
from chiplog_schemas._version import __version__
from chiplog_schemas.atomic_file import atomic_write, copy_durably, link_or_copy, sync_directory
from chiplog_schemas.clock import now_us
from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.storage.content_files import is_content_name
from chiplog_schemas.storage.record import Record
from chiplog_schemas.storage.segment_format import former_owner, larger_owner, list_segments, log_owner, read_segment
from chiplog_schemas.storage.segment_log import END_NAME, SegmentLog
from chiplog_schemas.storage.watermark import Watermark

MANIFEST = "manifest.json"
_BEGUN = "begun"  # created first: a directory whose first backup was interrupted is a backup without a manifest
_EXPORT_FILE = "run.json"  # of a directory that `chiplog export` wrote
_READ_BYTES = 1 << 20  # at once: memory stays small, and a disk delivers at full speed
_FORMAT, _VERSION = "chiplog backup", 1

Progress = Callable[[int, int], None]  # bytes or files done, and in total


class BackupError(click.ClickException):
    """Bad input: a directory that is not what it must be. The text names it and the remedy."""

    exit_code = 2


def back_up(place: Paths, target: Path, on_progress: Progress) -> str:
    """Copy the log as far as it is synced, and the saved files; return a line. Raises BackupError, OSError.

    Into an earlier backup of the same log it copies only segments that are new or were rewritten, and removes those
    that the log no longer has. A log that ends before the backup does is refused: the backup has more.
    """
    log = place.collector / "log"
    owner = log_owner(log)
    if owner is None:
        raise BackupError(f"{log} holds no log; name the CHIPLOG_DIR of a collector with --from")
    before = _previous(target)
    if before and before["owner"] != owner.hex():
        raise BackupError(f"{target} is a backup of another log ({before['owner']}); name another directory")
    limit = _synced(place)
    if before and limit < before["next_number"]:  # safeguard: fuller-backup-kept
        more = f"{target} has records up to {before['next_number']}, and {log} only up to {limit}"
        raise BackupError(f"{more}; it was restored or lost its end: name another directory")
    ensure_private_dir(target)
    atomic_write(target / _BEGUN, b"", durable=True)
    ensure_private_dir(target / "log")
    found = [entry for entry in list_segments(log) if entry[0] < limit]
    known = {segment["name"]: segment for segment in before.get("segments", [])}
    segments: list[dict[str, Any]] = []
    n_copied = 0
    for number, (_, path) in enumerate(found):
        on_progress(number, len(found))
        stat = path.stat()
        segment: dict[str, Any] = {"name": path.name, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        copy = target / "log" / path.name
        is_newest = path == found[-1][1]
        before_it = known.get(path.name, {})
        # safeguard: rewritten-segment-copied-again
        if is_newest or not segment.items() <= before_it.items() or _size(copy) != stat.st_size:
            n_copied += 1
            if is_newest:
                segment["bytes"] = _copy_records(path, copy, limit)
            else:
                link_or_copy(path, copy)
                segment["bytes"] = _size(copy)  # it may just have been rewritten without deleted data
            before_it = {}
        segment["sha256"] = before_it.get("sha256") or _sha256(copy, segment["bytes"])
        segments.append(segment)
    n_files = _copy_files(place.files, target / "files")
    sync_directory(target / "log")
    manifest = {
        "format": _FORMAT,
        "version": _VERSION,
        "chiplog": __version__,
        "owner": owner.hex(),
        "next_number": limit,
        "segments": segments,
        "store": _store_of(place, owner.hex()),
    }
    atomic_write(target / MANIFEST, json.dumps(manifest, indent=1).encode(), durable=True)
    kept = {segment["name"] for segment in segments}
    for _, path in list_segments(target / "log"):
        if path.name not in kept:
            path.unlink()
    return (
        f"{target}: {limit:,} records in {len(segments)} segments, {n_copied} of them copied now; {n_files} new files"
    )


def restore(source: Path, place: Paths, *, damaged: bool = False) -> str:
    """Put a backup into a directory without a collector's data; return a line. The database is not rebuilt here.

    damaged: also a backup whose contents have changed since. Segments are taken as they are, because each record has a
    checksum; saved files that have changed are left out. Raises BackupError, OSError; then nothing was restored.
    """
    manifest = _previous(source) if (source / MANIFEST).exists() else {}
    if not manifest:
        raise BackupError(_no_backup(source))
    if place.collector.exists() and any(place.collector.iterdir()):
        raise BackupError(f"{place.collector} has data; name an empty CHIPLOG_DIR with --dir")
    for segment in manifest["segments"]:
        if _size(source / "log" / segment["name"]) < segment["bytes"]:
            raise BackupError(f"{source}/log/{segment['name']} does not have its {segment['bytes']} bytes; use another")
    ensure_private_dir(place.root)
    staging = place.collector.with_name(f".restoring-{place.collector.name}")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        ensure_private_dir(staging / "log")
        for segment in manifest["segments"]:
            copy = staging / "log" / segment["name"]
            copy_durably(source / "log" / segment["name"], copy)
            # A repeated backup that was interrupted has copied more than its manifest says.
            os.truncate(copy, segment["bytes"])  # safeguard: interrupted-backup-restored
            if not damaged:  # safeguard: damaged-backup-refused
                _require_sha256(copy, segment.get("sha256"), source / "log" / segment["name"])
        _mark(staging / "log" / END_NAME, manifest["next_number"])
        _mark(staging / "synced", _renewed(staging / "log"))
        files = staging / place.files.relative_to(place.collector)
        _copy_files(source / "files", files, links=False)
        for path in files.glob("*/*"):
            if damaged and _sha256(path) != path.name:
                path.unlink()
            elif not damaged:
                _require_sha256(path, path.name, source / "files" / path.parent.name / path.name)
        sync_directory(staging / "log")
        sync_directory(staging)
        with contextlib.suppress(FileNotFoundError):
            place.collector.rmdir()
        os.rename(staging, place.collector)
        sync_directory(place.root)
    except (OSError, BackupError):
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return f"{place.collector}: {manifest['next_number']:,} records restored from {source}; new ones get a new log ID"


def _mark(path: Path, number: int) -> None:
    mark = Watermark(path, writable=True)
    mark.set(number)
    mark.sync()
    mark.close()


def _renewed(directory: Path) -> int:
    """Give a restored log a new ID: its next numbers may be those of records that a store has. Return the next one."""
    owner = log_owner(directory)
    if owner is None:
        return 0
    log = SegmentLog(directory, owner)
    try:
        log.renew(larger_owner(owner))  # safeguard: restored-log-has-new-id
        receipt = empty_receipt(now_us())
        log.append(receipt.kind, receipt.payload)
        log.commit()
        return log.next_number
    finally:
        log.close()


def note_store(source: Path, place: Paths) -> str:
    """Ask the store that a restored log was published to how far it was; return a line, '' without one.

    The rebuild that follows then ends flushes where the pieces in the store end, so that nothing is published twice.
    """
    url = str(_previous(source).get("store") or "")
    log, former = log_owner(place.collector / "log"), former_owner(place.collector / "log")
    if not url or log is None or former is None:
        return ""
    os.environ.setdefault("RUST_LOG", "error")
    try:
        from chiplog_collector.store.delta_store import DeltaStore, StoreError  # only collectors with a store have it
    except ImportError:
        return f"it was published to {url}; install chiplog[lake] to go on with that"
    try:
        found = DeltaStore(url, former[0].hex()).positions(ORDERS)
        positions = {table: min(number, former[1]) for table, number in found.items()}
        trouble = "" if COMPLETE in positions else "it has nothing of this log; is it mounted"
    except (StoreError, OSError) as error:
        positions, trouble = {}, str(error)
    if trouble:
        return (
            f"it was published to {url}, which cannot be asked now: {trouble}; a collector that publishes there again "
            "will want chiplog rebuild"
        )
    until = positions[COMPLETE]
    Outbox(place.store).set_published(Published(log.hex(), url, until, positions, is_foreign=True))
    return f"it was published to {url} up to record {until:,}; end the collector that did that, if it still runs"


def _store_of(place: Paths, log: str) -> str | None:
    """Return the address of the store that a log is published to."""
    try:
        published = Outbox(place.store).published()
    except OSError:
        return None
    return published.url if published is not None and published.log == log else None


def _previous(target: Path) -> dict[str, Any]:
    """Return the manifest of a backup; {} for a directory that is absent, empty, or only begun. Raises BackupError."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return {}
    problem = f"{target} is not empty and not a backup; name another directory"
    try:
        manifest = json.loads((target / MANIFEST).read_bytes())
    except FileNotFoundError:
        if (target / _BEGUN).exists():
            return {}
        raise BackupError(problem) from None
    except (OSError, ValueError) as error:
        raise BackupError(f"{problem} ({error})") from error
    try:
        is_known = (manifest["format"], manifest["version"]) == (_FORMAT, _VERSION)
        names = [(segment["name"], int(segment["bytes"])) for segment in manifest["segments"]]
        is_known = is_known and all(name == os.path.basename(name) for name, _ in names)
        is_known = is_known and type(manifest["next_number"]) is int and type(manifest["owner"]) is str
    except (KeyError, TypeError, ValueError):
        is_known = False
    if not is_known:
        raise BackupError(f"{target}/{MANIFEST} is not of {_FORMAT}, version {_VERSION}; name another directory")
    return dict(manifest)


def _no_backup(source: Path) -> str:
    """Return one line about a directory without a manifest."""
    if (source / _EXPORT_FILE).exists():
        return f"{source} is the export of a run, not a backup; bring it in with chiplog import {source}"
    if (source / _BEGUN).exists():
        return f"{source} is no complete backup: it has no {MANIFEST}; run chiplog backup {source} again"
    return f"{source} is no backup: it has no {MANIFEST}; name a directory that chiplog backup wrote"


def _synced(place: Paths) -> int:
    try:
        mark = Watermark(place.collector / "synced", writable=False)
    except OSError as error:
        raise BackupError(f"{place.collector}/synced cannot be read: {error}; start its collector once") from error
    try:
        return mark.get()
    finally:
        mark.close()


def _copy_records(path: Path, target: Path, limit: int) -> int:
    """Copy a segment that may be written to now, up to its last record below `limit`; return the bytes."""
    end = 0
    for item in read_segment(path, sealed=False):
        if isinstance(item, Record):
            if item.number >= limit:  # safeguard: only-synced-records-backed-up
                break
            end = item.end
    with open(path, "rb") as source:
        data = source.read(end)
    atomic_write(target, data, durable=True)
    return len(data)


def _copy_files(source: Path, target: Path, *, links: bool = True) -> int:
    """Copy the contents that the target lacks; return how many."""
    n_new = 0
    directories = [directory for directory in source.iterdir() if directory.is_dir()] if source.is_dir() else []
    for directory in sorted(directories):
        for path in directory.iterdir():
            copy = target / directory.name / path.name
            if not is_content_name(path.name) or copy.exists():
                continue
            ensure_private_dir(copy.parent)
            with contextlib.suppress(FileNotFoundError):  # its run was deleted in the meantime
                (link_or_copy if links else copy_durably)(path, copy)
                n_new += 1
        if (target / directory.name).is_dir():
            sync_directory(target / directory.name)
    if target.is_dir():
        sync_directory(target)
    return n_new


def _require_sha256(copy: Path, expected: str | None, source: Path) -> None:
    """Raise BackupError if a copy has another checksum; None: of an older backup, which has none."""
    if expected is not None and _sha256(copy) != expected:
        remedy = "use another backup, or restore what is left with --damaged"
        raise BackupError(f"{source} has changed since it was backed up: another checksum; {remedy}")


def _sha256(path: Path, n_bytes: int | None = None) -> str:
    """Return the checksum of a file, or of its first bytes. Raises OSError."""
    digest, left = hashlib.sha256(), n_bytes if n_bytes is not None else path.stat().st_size
    with open(path, "rb") as file:
        while left > 0 and (part := file.read(min(left, _READ_BYTES))):
            digest.update(part)
            left -= len(part)
    return digest.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
