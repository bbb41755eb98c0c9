"""A saved file from its offer to STORED, with the store's own thread: nothing is confirmed before its record."""

import hashlib
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_collector.receiver.file_transfers import Arrived, FileTransfers
from chiplog_schemas.protocol import file_messages
from chiplog_schemas.protocol.actions import Reply
from chiplog_schemas.protocol.file_messages import FileMessage, FileMessageKind
from tests.support.waiting import WAIT_S

SENDER, SESSION = b"spool-of-agent-a", b"session1"
DATA = b"weights" * 100
DIGEST = hashlib.sha256(DATA).digest()


@pytest.fixture
def transfers(tmp_path: Path) -> Iterator[FileTransfers]:
    transfers = FileTransfers(tmp_path / "files", 1 << 20)
    yield transfers
    transfers.close()


def step(transfers: FileTransfers) -> tuple[list[FileMessage], list[Arrived]]:
    """Wait for the store's next answers; return the messages to the agent, and the files to log."""
    assert select.select([transfers], [], [], WAIT_S)[0], "no answer of the store"
    replies, arrived = transfers.step(0.0)
    return messages_in(replies), arrived


def messages_in(replies: list[Reply]) -> list[FileMessage]:
    return [file_messages.parse([bytes(frame) for frame in reply.frames]) for reply in replies]


def send(transfers: FileTransfers, frames: list[bytes]) -> list[FileMessage]:
    return messages_in(transfers.receive(b"route", frames, 0.0, None))


def offer(transfers: FileTransfers) -> list[FileMessage]:
    return send(transfers, file_messages.offer(SESSION, SENDER, DIGEST, len(DATA), {"node": "node-a"}))


def carry(transfers: FileTransfers, data: bytes) -> tuple[list[FileMessage], list[Arrived]]:
    """Send a file's bytes once they are wanted; return what the store's answer to the last of them causes."""
    said = offer(transfers)
    while not said:
        said, _ = step(transfers)
    assert [(message.kind, message.offset) for message in said] == [(FileMessageKind.WANT, 0)]
    send(transfers, [bytes(frame) for frame in file_messages.chunk(SESSION, 0, data)])
    while True:
        said, arrived = step(transfers)
        said = [message for message in said if message.kind != FileMessageKind.WANT]
        if said or arrived:
            return said, arrived


def test_a_file_is_confirmed_once_its_record_is_committed(transfers: FileTransfers, tmp_path: Path) -> None:
    assert transfers.is_idle
    said, arrived = carry(transfers, DATA)
    assert (said, arrived) == ([], [Arrived(SENDER, None, DIGEST, len(DATA))])
    (path,) = tmp_path.rglob(DIGEST.hex())
    assert path.read_bytes() == DATA
    assert [message.kind for message in messages_in(transfers.committed())] == [FileMessageKind.STORED]
    assert transfers.committed() == [], "once"


def test_bytes_of_another_digest_are_neither_kept_nor_logged(transfers: FileTransfers, tmp_path: Path) -> None:
    said, arrived = carry(transfers, DATA[::-1])
    assert ([message.kind for message in said], arrived) == ([FileMessageKind.MISMATCH], [])
    assert not list(tmp_path.rglob(DIGEST.hex()))
    assert transfers.committed() == []


def test_bytes_that_are_no_message_are_counted(transfers: FileTransfers) -> None:
    assert send(transfers, [b"no message"]) == []
    assert transfers.malformed == 1
