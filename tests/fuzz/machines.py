"""Fuzz targets after the decoders: delivery, intake, the agent's core, the index's applier, files of a log.

The targets work as in decoders.py. They keep their state for a batch, so that the effect of one input meets the next.
"""

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from chiplog_agent.pipeline.batcher import EventBatcher
from chiplog_collector.index.apply.applier import Applier
from chiplog_collector.index.apply.state import State
from chiplog_collector.receiver.commit import CommitBuilder, recover_senders
from chiplog_schemas.codec import pack
from chiplog_schemas.limits import FILE_CREDIT_BYTES, FILES_AT_ONCE, NUMBER_LIMIT, RECORD_BYTES_MAX
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.block_format import BlockError
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.model.events import encode as encode_event
from chiplog_schemas.process.file_lock import lock_holder_pid, lock_note
from chiplog_schemas.protocol import file_messages, messages
from chiplog_schemas.protocol.actions import DataReceived, NumbersLost, Reply, SessionClosed, SessionOpened
from chiplog_schemas.protocol.file_receiver import Close, FileReceiverProtocol, Finish, Open, Write
from chiplog_schemas.protocol.file_sender import FileSenderProtocol
from chiplog_schemas.protocol.receiver import ReceiverProtocol
from chiplog_schemas.protocol.sender import SenderProtocol
from chiplog_schemas.storage.journal_dir import JournalReader
from chiplog_schemas.storage.log_reader import LogReader
from chiplog_schemas.storage.record import CorruptRange, Kind, Record, scan_records
from chiplog_schemas.storage.segment_format import SegmentHeader, encode_header, read_segment
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.fuzz.decoders import Target, built_block, hostile_block, hostile_event, hostile_frames, require
from tests.fuzz.grammar import frame, hostile_record, integer, mutate_bytes, mutate_value, pack_hostile, pick
from tests.schemas.make_vectors import PRODUCER_A, PRODUCER_B, RECORD_PAYLOADS, SENDER, SESSION, TS, doubles

_SESSIONS = (SESSION, b"session2", b"session3")
_SENDERS = (SENDER, PRODUCER_A, PRODUCER_B)
_LOSS = pack(["loss"])


def hostile_message(chooser: random.Random) -> list[bytes]:
    """Return a message of a peer that knows the sessions: sound, or with something wrong."""
    act = chooser.random()
    if act < 0.4:
        return hostile_frames(chooser, "wire")
    session = pick(chooser, _SESSIONS)
    number = integer(chooser) if act < 0.6 else int(chooser.random() * 20)
    first, last = max(0, number), max(0, number) + int(chooser.random() * 3)
    kind = int(chooser.random() * 9)
    if kind < 2:
        return messages.hello(session, pick(chooser, _SENDERS), min(first, (1 << 64) - 1), {"pid": first % (1 << 64)})
    if kind < 5:
        return [pack_hostile([3, session, first, last]), b""]  # what msgpack cannot hold becomes nil
    return [
        pack_hostile(
            pick(
                chooser,
                (
                    [2, session, 1, first, 1 << 20],
                    [4, session, last, number],
                    [5, session, first, last, "reason"],
                    [6, session, first],
                    [7, session],
                    [8, session, "reason"],
                ),
            )
        )
    ]


class Delivery:
    """Both machines: garbage changes nothing, numbers of a sender never decrease, and accepted data is in order."""

    def __init__(self) -> None:
        self._receiver = ReceiverProtocol()
        self._sender = SenderProtocol(SENDER, {}, lambda: SESSION, lambda: 0.5)
        self._now = 0.0

    def make(self, chooser: random.Random) -> tuple[bytes, list[bytes]]:
        return pick(chooser, (b"peer1", b"peer2", b"")), hostile_message(chooser)

    def check(self, data: tuple[bytes, list[bytes]]) -> bool:
        routing, frames = data
        self._now += 0.01
        before, malformed = dict(self._receiver.next_numbers), self._receiver.malformed
        try:
            is_message = bool(messages.parse(frames))
        except messages.WireError:
            is_message = False
        actions = self._receiver.receive(routing, frames, self._now)
        require(self._receiver.malformed - malformed == (not is_message), "garbage that was not counted")
        for action in actions:
            require(
                isinstance(action, Reply | SessionOpened | DataReceived | NumbersLost | SessionClosed),
                "an unknown action",
            )
            if isinstance(action, Reply):
                messages.parse([bytes(part) for part in action.frames]) if action.frames else None
            if isinstance(action, DataReceived):
                require(action.first <= before.get(action.sender, 0) <= action.last, "a slice out of order")
                self._receiver.acknowledge(action.sender, action.last + 1)
        for sender, number in before.items():
            require(self._receiver.next_numbers[sender] >= number, "a next number that goes back")
        if self._now % 5 < 0.01:
            self._receiver.tick(self._now)
        self._sender.tick(self._now, 0)
        self._sender.receive(frames, self._now)
        require(self._sender.window() >= 0 and self._sender.credit >= 0, "a negative window")
        return is_message


class Transfers:
    """The machines of files: requests to the store are bounded and in order for any message of a peer."""

    def __init__(self) -> None:
        self._receiver = FileReceiverProtocol()
        self._sender = FileSenderProtocol(SENDER, {}, lambda: SESSION)
        self._now = 0.0
        self._offsets: dict[int, int] = {}  # of open files, by token
        self._n_bytes: dict[int, int] = {}

    def make(self, chooser: random.Random) -> tuple[list[bytes], float]:
        act = chooser.random()
        session, n_bytes = pick(chooser, _SESSIONS), int(chooser.random() * 9)
        if act < 0.3:
            return hostile_frames(chooser, "file_wire"), chooser.random()
        if act < 0.5:
            digest = bytes([int(chooser.random() * 12)]) * 32
            return file_messages.offer(session, pick(chooser, _SENDERS), digest, n_bytes, {}), chooser.random()
        frames = file_messages.chunk(session, int(chooser.random() * 6), bytes(1 + int(chooser.random() * 4)))
        return [bytes(part) for part in frames], chooser.random()

    def check(self, data: tuple[list[bytes], float]) -> bool:
        frames, chance = data
        self._now += 0.2
        malformed = self._receiver.malformed
        self._act(self._receiver.receive(b"peer", frames, self._now), chance)
        self._act(self._receiver.tick(self._now), chance)
        require(len(self._offsets) <= FILES_AT_ONCE, "more files at once than may be")
        if not self._sender.digest:
            self._sender.offer(bytes(32), 1 << 20, self._now)
        self._sender.receive(frames, self._now)
        self._sender.tick(self._now)
        require(0 <= self._sender.window() <= FILE_CREDIT_BYTES, "a window without bound")
        return self._receiver.malformed == malformed

    def _act(self, actions: list[Any], chance: float) -> None:
        for action in actions:
            match action:
                case Reply():
                    file_messages.parse([bytes(part) for part in action.frames])
                case Open(token, digest, n_bytes):
                    require(len(digest) == 32 and n_bytes >= 0, "no content")
                    self._offsets[token], self._n_bytes[token] = 0, n_bytes
                    if chance < 0.1:
                        del self._offsets[token]
                        self._act(self._receiver.refused(token, "no"), 1.0)
                    else:
                        self._act(self._receiver.opened(token, 0), chance)
                case Write(token, payload):
                    self._offsets[token] += len(payload)
                    require(self._offsets[token] <= self._n_bytes[token], "more than was offered")
                    self._act(self._receiver.written(token, self._offsets[token]), chance)
                case Finish(token):
                    require(self._offsets.pop(token) == self._n_bytes[token], "a file that is not whole")
                    self._act(self._receiver.stored(token) if chance < 0.5 else self._receiver.mismatched(token), 1.0)
                case Close(token):
                    self._offsets.pop(token, None)
                    self._receiver.closed(token)
                case _:
                    require(False, "an unknown action")


class Slices:
    """Intake: anything but a block is quarantined with a reason, and the receipt of all of it can be read again."""

    def make(self, chooser: random.Random) -> bytes:
        parts = [frame(Kind.BLOCK, 1, b"first")]
        for number in range(2, 2 + int(chooser.random() * 4)):
            kind = Kind.BLOCK if chooser.random() < 0.7 else pick(chooser, tuple(Kind))
            parts.append(hostile_record(chooser, kind, number, RECORD_PAYLOADS[kind][:200]))
        return b"".join(parts)

    def check(self, data: bytes) -> bool:
        intake = CommitBuilder({})
        accepted = intake.add_slice(SENDER, 1, 5, data)
        blocks = [entry for entry in accepted if entry.record is not None]
        sound = [
            bytes(item.payload) for item in scan_records(data) if isinstance(item, Record) and item.kind == Kind.BLOCK
        ]
        require(
            [bytes(entry.record.payload) for entry in blocks if entry.record] == sound, "a good record was not taken"
        )
        require(len(accepted) - len(blocks) == intake.quarantined, "bad bytes that were not counted")
        require(all(entry.kind == Kind.QUARANTINE for entry in accepted if entry.record is None), "no quarantine")
        n_bad = sum(isinstance(item, CorruptRange) or item.kind != Kind.BLOCK for item in scan_records(data))
        require(n_bad == intake.quarantined, "unreported bad bytes")
        require(all(entry.kind == Kind.BLOCK for entry in blocks), "a record that has no place here")
        receipt = intake.receipt_record(TS)
        require(
            len(intake.senders_record().payload) > 0 and intake.committed() == {SENDER: 6}, "what was taken is not said"
        )
        log = b"".join(frame(Kind.BLOCK, number, b"") for number in range(len(accepted)))
        found = recover_senders(scan_records(log + frame(Kind.RECEIPT, 99, receipt.payload)))
        require(found == {SENDER: 6}, f"a receipt that says {found}")
        return bool(blocks)


class Agent:
    """The agent's core: every block that it makes can be decoded and fits a record; a good event beside is in it."""

    def __init__(self) -> None:
        self._batcher = EventBatcher(b"agent-producer!!", "node", 1, "0", TS)
        self._seq = 0

    def make(self, chooser: random.Random) -> bytes:
        parts = []
        for _ in range(1 + int(chooser.random() * 3)):
            self._seq += 1
            parts.append(hostile_record(chooser, Kind.EVENT, self._seq, hostile_event(chooser)))
        self._seq += 1
        return b"".join(
            [frame(Kind.EVENT, self._seq, encode_event(EventKind.METRICS, TS, 1, _LOSS, doubles(1.0))), *parts]
        )

    def check(self, data: bytes) -> bool:
        core, seq = self._batcher, self._seq
        core.add_slice(PRODUCER_A, max(0, seq - 4), seq, data, 1.0, TS)
        for item in scan_records(data):
            if isinstance(item, Record) and item.number < seq:
                core.add_record(PRODUCER_B, item, 1.0, TS)
        blocks, taken = core.build(TS)
        require(taken[PRODUCER_A] == seq + 1, "a slice that was not taken whole")
        seqs = set()
        for block in blocks:
            require(len(block) <= RECORD_BYTES_MAX, f"a block of {len(block)} bytes")
            decoded = decode_block(block)
            for producer, ranges in decoded.producers:
                if producer == PRODUCER_A:
                    seqs.update(number for first, last in ranges for number in range(first, last + 1))
        sound = {item.number for item in scan_records(data) if isinstance(item, Record)}
        require(sound <= seqs, "an event that arrived is in no block")
        return True


class Index:
    """The applier: a bad record is one row of quarantine; a good one is applied in full, with any records around it."""

    def __init__(self) -> None:
        self.applier = Applier(State())
        self._number = 0
        self._good = 0
        from tests.support.collector_log import Rank

        self._rank = Rank(200)

    def make(self, chooser: random.Random) -> tuple[int, bytes, int]:
        act = chooser.random()
        if act < 0.4:
            return Kind.BLOCK, built_block(chooser), 1
        if act < 0.8:
            return Kind.BLOCK, hostile_block(chooser), 1
        kind = pick(chooser, (Kind.GAP, Kind.QUARANTINE, Kind.RECEIPT, Kind.SENDERS, Kind.EVENT, 99))
        payload = RECORD_PAYLOADS.get(kind, b"\x93\x01\x02\x03")  # type: ignore[call-overload]
        if act < 0.85:
            return kind, mutate_bytes(chooser, payload), integer(chooser) & 0xFF
        from chiplog_schemas.codec import CodecError, unpack

        try:
            return kind, pack_hostile(mutate_value(chooser, unpack(payload))), 1
        except CodecError:
            return kind, payload, 1

    def records(self, kind: int, payload: bytes, version: int) -> list[Record]:
        """Return the hostile record and a good block after it, with their receipt."""
        from chiplog_schemas.model.block_builder import BlockBuilder

        builder = BlockBuilder()
        builder.add(self._rank.uuid, self._good, self._rank.events[0] if not self._good else self._metric())
        self._good += 1
        parts = [frame(kind, self._number, payload, version), frame(Kind.BLOCK, self._number + 1, builder.build(TS))]
        body = [[SENDER, self._number, self._number + 2, 2, None]]
        parts.append(frame(Kind.RECEIPT, self._number + 2, pack([TS + self._number, body])))
        self._number += 3
        found = list(scan_records(b"".join(parts)))
        require(all(isinstance(record, Record) for record in found), "the fuzzer's own records are wrong")
        return found  # type: ignore[return-value]

    def _metric(self) -> bytes:
        return encode_event(EventKind.METRICS, TS, self._good, _LOSS, doubles(float(self._good)))

    def check(self, data: tuple[int, bytes, int]) -> bool:
        kind, payload, version = data
        good = self._good
        self.applier.flush()
        for record in self.records(kind, payload, version):
            self.applier.apply(record, record.number)
        batch = self.applier.flush()
        n_good = sum(
            int(((m.seq == good) & (m.lead == good)).sum()) for matrices in batch.metrics.values() for m in matrices
        )
        require(good == 0 or n_good >= 1, "the good block behind a bad record was not applied")
        n_bad = len(batch.rows.get("quarantine", ()))
        if kind == Kind.BLOCK:
            try:
                decode_block(payload)
            except BlockError:
                require(n_bad == 1, f"a bad block left {n_bad} rows of quarantine")
        for _, _, reason, kept, *_ in batch.rows.get("quarantine", ()):
            require(0 < len(reason) <= 1000 and len(kept) <= 65_536, "a reason or bytes without bound")
            reason.encode()
        for row in batch.rows.get("events", ()):
            require(len(row[5]) < 100_000, "a message without bound")
            row[5].encode()
        return n_bad == 0


class Files:
    """Segments, journals, locks on a disk: read the sound part, and continue writing after it."""

    def __init__(self) -> None:
        shared = Path("/dev/shm")
        self._root = Path(tempfile.mkdtemp(prefix="chiplog-fuzz-", dir=shared if shared.is_dir() else None))
        self._round = 0

    def __del__(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def make(self, chooser: random.Random) -> list[tuple[str, bytes]]:
        files = []
        for base in range(int(chooser.random() * 3) + 1):
            head = encode_header(SegmentHeader(SENDER, base * 4, TS))
            data = head + b"".join(
                hostile_record(chooser, Kind.EVENT, base * 4 + n, hostile_event(chooser))
                if chooser.random() < 0.3
                else frame(Kind.EVENT, base * 4 + n, b"payload")
                for n in range(int(chooser.random() * 5))
            )
            if chooser.random() < 0.5:
                data = mutate_bytes(chooser, data, (b"CHIPSEG\x01", bytes(48), b"\xff" * 8))
            files.append((f"{base * 4:020d}.seg", data))
        if chooser.random() < 0.3:
            name = pick(chooser, ("9" * 20, "1" * 100, "x", "", "-1", "٣", "0" * 21, f"{(1 << 63) - 1:020d}"))
            files.append((f"{name}.seg", pick(chooser, (b"", bytes(100), files[0][1]))))
        for name in ("head", "lock", "end"):
            if chooser.random() < 0.3:
                files.append((name, pick(chooser, (b"", bytes(8), b"\xff" * 4096, b"9" * 400 + b"\n\xff", b"-1\n\n"))))
        return files

    def check(self, files: list[tuple[str, bytes]]) -> bool:
        self._round += 1
        directory = self._root / str(self._round)
        directory.mkdir(mode=0o700)
        try:
            for name, data in files:
                (directory / name).write_bytes(data)
            require(lock_holder_pid(directory / "lock") == 0, "a lock without a holder")
            lock_note(directory / "lock")
            for name, _ in files:
                if name.endswith(".seg"):
                    for item in read_segment(directory / name):
                        require(isinstance(item, CorruptRange) or item.number < NUMBER_LIMIT, "a number without bound")
            journal = JournalReader(directory)
            n_read = sum(isinstance(item, Record) for item in journal.records())
            reader = LogReader(directory)
            while reader.read(NUMBER_LIMIT, 1 << 16):
                pass
            reader.close()
            self._go_on(directory)
            return n_read > 0
        finally:
            shutil.rmtree(directory)

    def _go_on(self, directory: Path) -> None:
        try:
            log = SegmentLog(directory, SENDER)
        except OSError:
            return  # of another owner, or not a log: it reports that
        try:
            number = log.append(Kind.EVENT, b"written afterwards")
            log.commit()
        finally:
            log.close()
        if number >= NUMBER_LIMIT - 1:
            return
        last = list(read_segment(sorted(directory.glob(f"{number:020d}.seg"))[-1]))[-1]
        require(isinstance(last, Record) and bytes(last.payload) == b"written afterwards", "a log that cannot go on")


MACHINES: dict[
    str, tuple[type[Target], int]
] = {  # and how many inputs make a round of a soak, see SHARE in test_decoders.py
    "delivery": (Delivery, 13_000),
    "transfers": (Transfers, 6_500),
    "slices": (Slices, 4_000),
    "agent": (Agent, 1_500),
    "index": (Index, 2_000),
    "files": (Files, 500),
}
