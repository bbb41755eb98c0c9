"""Power loss: unsynced writes may be gone, present, or torn; acknowledged data is always present.

The real receiver's log and the real spool run in this process, and every operation on their files is recorded, with its
bytes. At many points of that record the test builds an image of the disk as it may be after a power failure there.
Synced data is present. Of the rest each write, truncation, and new, removed or changed name is present or not, by seed,
and a write may be present in part. Then the real recovery runs on that image.
"""

import contextlib
import os
import random
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq

import chiplog_agent.pipeline.spool as spool_module
import chiplog_collector.receiver.daemon as receiver_module
from chiplog_agent.pipeline.spool import Spool
from chiplog_collector.receiver.daemon import ReceiverDaemon, ReceiverSettings
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.messages import MessageKind
from chiplog_schemas.storage.record import Kind, Record, scan_records
from chiplog_schemas.storage.segment_format import list_segments, read_segment
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.support.agent_by_hand import SENDER, Agent
from tests.support.rounds import Rounds
from tests.support.safeguard import proves

SECTOR_BYTES = 512
CUTS = 20  # in one round


@dataclass
class Inode:
    """A file as the disk has it for sure, and what was done to it since its last sync."""

    data: bytes = b""
    since: list[tuple[int, bytes | None]] = field(default_factory=list)  # (offset, bytes), or (size, None) cut

    def synced(self) -> None:
        self.data, self.since = apply(self.data, self.since), []


def apply(data: bytes, changes: list[tuple[int, bytes | None]]) -> bytes:
    content = bytearray(data)
    for at, piece in changes:
        if piece is None:
            content = content[:at].ljust(at, b"\0")
        else:
            content = content.ljust(at + len(piece), b"\0")
            content[at : at + len(piece)] = piece
    return bytes(content)


class Recorder:
    """Stands between the code and `os`, and notes every change of files under a directory."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = str(root)
        self.record: list[tuple[Any, ...]] = []
        self._files: dict[int, tuple[int, str]] = {}  # descriptor -> inode, path
        self._real = {name: getattr(os, name) for name in ("open", "close", "write", "writev", "pwrite", "unlink")}
        self._real |= {name: getattr(os, name) for name in ("mkdir", "rename", "ftruncate", "truncate", "fsync")}
        self._real |= {name: getattr(os, name) for name in ("fdatasync", "posix_fallocate")}
        for name in self._real:
            monkeypatch.setattr(os, name, getattr(self, f"_{name}"))

    def mark(self, what: str, value: Any) -> None:
        self.record.append((what, value))

    def _ours(self, path: Any) -> bool:
        return os.fspath(path).startswith(self.root) if isinstance(path, str | os.PathLike) else False

    def _open(self, path: Any, flags: int, *rest: Any, **options: Any) -> int:
        ours = self._ours(path) and not options
        is_new = ours and flags & os.O_CREAT and not os.path.exists(path)
        descriptor: int = self._real["open"](path, flags, *rest, **options)
        if ours:
            number = os.fstat(descriptor).st_ino
            self._files[descriptor] = (number, os.fspath(path))
            if is_new:
                self.record.append(("link", os.path.dirname(path), os.path.basename(path), number, False))
            if flags & os.O_TRUNC:
                self.record.append(("cut", number, 0))
        return descriptor

    def _close(self, descriptor: int) -> None:
        self._files.pop(descriptor, None)
        self._real["close"](descriptor)

    def _note_write(self, descriptor: int, data: bytes, at: int) -> None:
        if descriptor in self._files:
            self.record.append(("write", self._files[descriptor][0], at, data))

    def _write(self, descriptor: int, data: Any) -> int:
        at = os.lseek(descriptor, 0, os.SEEK_CUR) if descriptor in self._files else 0
        written: int = self._real["write"](descriptor, data)
        self._note_write(descriptor, bytes(data)[:written], at)
        return written

    def _writev(self, descriptor: int, parts: Any) -> int:
        at = os.lseek(descriptor, 0, os.SEEK_CUR) if descriptor in self._files else 0
        written: int = self._real["writev"](descriptor, parts)
        self._note_write(descriptor, b"".join(bytes(part) for part in parts)[:written], at)
        return written

    def _pwrite(self, descriptor: int, data: Any, at: int) -> int:
        written: int = self._real["pwrite"](descriptor, data, at)
        self._note_write(descriptor, bytes(data)[:written], at)
        return written

    def _posix_fallocate(self, descriptor: int, at: int, size: int) -> None:
        self._real["posix_fallocate"](descriptor, at, size)
        if descriptor in self._files:
            self.record.append(("grow", self._files[descriptor][0], at + size))

    def _ftruncate(self, descriptor: int, size: int) -> None:
        self._real["ftruncate"](descriptor, size)
        if descriptor in self._files:
            self.record.append(("cut", self._files[descriptor][0], size))

    def _truncate(self, path: Any, size: int) -> None:
        self._real["truncate"](path, size)
        if self._ours(path):
            self.record.append(("cut", os.stat(path).st_ino, size))

    def _unlink(self, path: Any, **options: Any) -> None:
        self._real["unlink"](path, **options)
        if self._ours(path):
            self.record.append(("unlink", os.path.dirname(path), os.path.basename(path)))

    def _mkdir(self, path: Any, *rest: Any, **options: Any) -> None:
        self._real["mkdir"](path, *rest, **options)
        if self._ours(path):
            path = os.fspath(path)
            self.record.append(("link", os.path.dirname(path), os.path.basename(path), os.stat(path).st_ino, True))

    def _rename(self, source: Any, target: Any, **options: Any) -> None:
        self._real["rename"](source, target, **options)
        if self._ours(target):
            raise AssertionError("renames are not modelled: add them to the record")

    def _sync(self, descriptor: int) -> None:
        if descriptor in self._files:
            number, path = self._files[descriptor]
            is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            self.record.append(("sync names", path) if is_directory else ("sync", number))

    def _fdatasync(self, descriptor: int) -> None:
        self._real["fdatasync"](descriptor)
        self._sync(descriptor)

    def _fsync(self, descriptor: int) -> None:
        self._real["fsync"](descriptor)
        self._sync(descriptor)


class Disk:
    """What the disk has after a prefix of the record."""

    def __init__(self, root: str, record: list[tuple[Any, ...]]) -> None:
        self.root = root
        self.inodes: dict[int, Inode] = {}
        self.names: dict[str, dict[str, tuple[int, bool]]] = {}  # by directory: name -> inode, is a directory
        self.names_since: dict[str, list[tuple[str, tuple[int, bool] | None]]] = {}
        for entry in record:
            self._do(*entry)

    def _do(self, what: str, *rest: Any) -> None:
        if what == "link":
            directory, name, number, is_directory = rest
            if not is_directory:
                self.inodes[number] = Inode()  # inode numbers are used again
            self.names_since.setdefault(directory, []).append((name, (number, is_directory)))
        elif what == "unlink":
            directory, name = rest
            self.names_since.setdefault(directory, []).append((name, None))
        elif what == "sync names":
            names = self.names.setdefault(rest[0], {})
            self._rename_all(names, self.names_since.pop(rest[0], []))
        elif what == "sync":
            self.inodes[rest[0]].synced()
        elif what == "write":
            self.inodes[rest[0]].since.append((rest[1], rest[2]))
        elif what == "cut":
            self.inodes[rest[0]].since.append((rest[1], None))
        elif what == "grow":
            inode = self.inodes[rest[0]]
            inode.since.append((max(rest[1], len(apply(inode.data, inode.since))), None))

    @staticmethod
    def _rename_all(names: dict[str, tuple[int, bool]], changes: list[tuple[str, tuple[int, bool] | None]]) -> None:
        for name, target in changes:
            if target is None:
                names.pop(name, None)
            else:
                names[name] = target

    def image(self, target: Path, chooser: random.Random) -> None:
        """Build what may be found after the power failed here."""
        self._image_of(self.root, target, chooser)

    def _image_of(self, directory: str, target: Path, chooser: random.Random) -> None:
        target.mkdir(mode=0o700)
        names = dict(self.names.get(directory, {}))
        chance = chooser.choice([0.0, 0.5, 1.0])
        self._rename_all(names, [c for c in self.names_since.get(directory, []) if chooser.random() < chance])
        for name, (number, is_directory) in names.items():
            if is_directory:
                self._image_of(f"{directory}/{name}", target / name, chooser)
            else:
                (target / name).write_bytes(self._content(self.inodes[number], chooser))

    @staticmethod
    def _content(inode: Inode, chooser: random.Random) -> bytes:
        """Keep of each unsynced change all, nothing, its beginning, or some of its sectors."""
        kept: list[tuple[int, bytes | None]] = []
        for at, piece in inode.since:
            fate = chooser.choice(["all", "nothing", "beginning", "sectors", "zeros"])
            if fate == "all" or (piece is None and fate != "nothing"):
                kept.append((at, piece))
            elif piece is not None and fate == "beginning":
                kept.append((at, piece[: chooser.randrange(len(piece) + 1)]))
            elif piece is not None and fate in ("sectors", "zeros"):
                if fate == "zeros":
                    kept.append((at, bytes(len(piece))))  # the size is there, the data are not
                first = 0
                while first < len(piece):
                    last = first + SECTOR_BYTES - (at + first) % SECTOR_BYTES
                    if chooser.random() < 0.5:
                        kept.append((at + first, piece[first:last]))
                    first = last
        return apply(inode.data, kept)


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    shared = Path("/dev/shm")
    directory = (shared if os.access(shared, os.W_OK) else tmp_path) / f"chiplog-power-{os.getpid()}"
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "live").mkdir(parents=True)
    yield directory
    shutil.rmtree(directory)


def small_segments(module: Any, monkeypatch: pytest.MonkeyPatch, segment_bytes: int) -> None:
    monkeypatch.setattr(
        module, "SegmentLog", lambda directory, owner, **_: SegmentLog(directory, owner, segment_bytes=segment_bytes)
    )


def failures(
    root: Path, record: list[tuple[Any, ...]], scratch: Path, seed: int
) -> Iterator[tuple[int, list[tuple[Any, ...]], Path]]:
    """Yield (cut, record before it, image) at random points, each image removed afterwards."""
    chooser = random.Random(seed)
    for count in range(CUTS):
        cut = chooser.randrange(1, len(record) + 1)
        image = scratch / f"image{count}"
        Disk(str(root), record[:cut]).image(image, chooser)
        yield cut, record[:cut], image
        shutil.rmtree(image)


def last_mark(record: list[tuple[Any, ...]], what: str) -> int:
    return max((entry[1] for entry in record if entry[0] == what), default=0)


def payload_of(number: int) -> bytes:
    return b"%06d" % number * (20 + number * 37 % 300)


def record_a_receiver(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Send blocks to a real receiver, started again now and then; note what it acknowledged."""
    place = paths_for_root(root / "chiplog")
    with monkeypatch.context() as patched:
        small_segments(receiver_module, patched, 20_000)
        patched.setattr(receiver_module, "GATHER_S", 0.0)
        recorder = Recorder(root, patched)
        sent = 0
        for _ in range(3):
            daemon = ReceiverDaemon(ReceiverSettings(place, bind=[place.collector_address]), with_index=False)
            agent = Agent(place.collector_address)
            agent.session = os.urandom(8)
            agent.socket.send_multipart(messages.hello(agent.session, SENDER, 0, {}))
            acked, welcomed = sent, False
            while not welcomed or acked < sent or sent % 20:
                daemon.turn()
                while agent.socket.poll(5 if not welcomed or acked < sent else 0):
                    message = messages.parse(agent.socket.recv_multipart(zmq.DONTWAIT))
                    if message.kind == MessageKind.WELCOME:
                        welcomed = True
                        assert message.next == sent
                        agent.send(sent, payload_of(sent))
                        sent += 1
                    elif message.kind == MessageKind.ACK and message.next > acked:
                        acked = message.next
                        recorder.mark("acked", acked)
                        recorder.mark("given out", daemon.log.next_number)
                if welcomed and acked == sent and sent % 20:
                    n = 1 + sent % 3
                    n = min(n, 20 - sent % 20)
                    agent.send(sent, *(payload_of(number) for number in range(sent, sent + n)))
                    sent += n
            agent.close()
            daemon.close()
        return recorder.record


@proves("commit-synced", "a commit of spool or log is synced before it counts", condition=False)
@proves("directory-names-synced", "the names of new directories around a log are synced")
@proves(
    "receipt-needs-whole-commit", "a receipt counts only with the records that it covers", part="is_whole", new="True"
)
@pytest.mark.promise(2)
@pytest.mark.soak
def test_what_the_receiver_acknowledged_is_there_after_a_power_failure_at_any_point(
    scratch: Path, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant: acknowledged data is in the log, and so is everything that the receiver claims to have."""
    root = scratch / "live"
    record = record_a_receiver(root, monkeypatch)
    for seed in rounds(2):
        for cut, before, image in failures(root, record, scratch, seed):
            place = paths_for_root(image / "chiplog")
            with contextlib.closing(
                ReceiverDaemon(ReceiverSettings(place, bind=[f"ipc://{image}/s"]), with_index=False)
            ) as daemon:
                found = [item for _, path in list_segments(place.collector / "log") for item in read_segment(path)]
                blocks = {bytes(i.payload) for i in found if isinstance(i, Record) and i.kind == Kind.BLOCK}
                acked = last_mark(before, "acked")
                missing = [number for number in range(acked) if payload_of(number) not in blocks]
                assert not missing, (seed, cut, "acknowledged and gone", missing)
                had = daemon._receiver.next_numbers.get(SENDER, 0)
                assert had >= acked, (seed, cut, had, acked)
                claimed = [number for number in range(had) if payload_of(number) not in blocks]
                assert not claimed, (seed, cut, "declared as stored, so that no sender sends it again", claimed)
                assert daemon.log.next_number >= last_mark(before, "given out"), (seed, cut)
            rounds.count("power failures")


@proves("segment-name-synced", "a new segment's name is synced before its records")
@pytest.mark.promise(2)
@pytest.mark.soak
def test_what_the_spool_synced_is_there_after_a_power_failure_at_any_point(
    scratch: Path, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant: synced and untrimmed records can be sent, and none of their numbers is reused."""
    root = scratch / "live"
    chooser = random.Random(1)
    with monkeypatch.context() as patched:
        small_segments(spool_module, patched, 6_000)
        recorder = Recorder(root, patched)
        number = 0
        for life in range(3):
            spool = Spool(root / "agent" / "spool", b"spool-%02d" % life * 2)
            for _ in range(25):
                for _ in range(chooser.randrange(1, 4)):
                    spool.append(payload_of(number))
                    number += 1
                spool.sync()
                recorder.mark("synced", number)
                if chooser.random() < 0.3:
                    recorder.mark("trimmed", number - 5)
                    spool.acknowledged(number - 5)
            spool.close()
        record = recorder.record
    small_segments(spool_module, monkeypatch, 6_000)
    for seed in rounds(2):
        for cut, before, image in failures(root, record, scratch, seed):
            spool = Spool(image / "agent" / "spool", b"after the outage")
            synced, trimmed = last_mark(before, "synced"), last_mark(before, "trimmed")
            spool.seek(0)
            found: dict[int, bytes] = {}
            for _ in range(100):
                piece = spool.read(1 << 20)
                items = scan_records(piece.payload) if piece is not None else ()
                found |= {item.number: bytes(item.payload) for item in items if isinstance(item, Record)}
            missing = [n for n in range(max(0, trimmed), synced) if found.get(n) != payload_of(n)]
            assert not missing, (seed, cut, "synced and gone", missing)
            spool.append(b"new")
            spool.sync()
            piece = spool.read(1 << 20)
            assert piece is not None
            assert piece.first >= synced, (seed, cut, "a number is used twice")
            spool.close()
            rounds.count("power failures")
