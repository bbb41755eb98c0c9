"""The receiver of saved files, message by message."""

from typing import Any

import pytest

from chiplog_schemas.limits import (
    FILE_CHUNK_BYTES,
    FILE_CREDIT_BYTES,
    FILES_AT_ONCE,
    FILES_PER_KEY_AT_ONCE,
    PEER_SILENT_S,
)
from chiplog_schemas.protocol import file_messages
from chiplog_schemas.protocol.actions import Reply
from chiplog_schemas.protocol.file_messages import FileMessageKind
from chiplog_schemas.protocol.file_receiver import Close, FileReceiverProtocol, Finish, Open, Write
from chiplog_schemas.protocol.messages import MessageKind
from chiplog_schemas.security.permissions import Permission, Role
from tests.support.file_delivery import ONE, OTHER, SENDER, TWO


def offered(receiver: FileReceiverProtocol, digest: bytes = ONE, n_bytes: int = 10, **said: Any) -> list[Any]:
    sender, session = said.pop("sender", SENDER), said.pop("session", b"session1")
    info = said.pop("info", {"node": "node-a"})
    frames = file_messages.offer(session, sender, digest, n_bytes, info)
    return receiver.receive(b"route", frames, said.pop("now", 0.0), **said)


def send(
    receiver: FileReceiverProtocol, offset: int, payload: bytes, session: bytes = b"session1", **said: Any
) -> list[Any]:
    frames = [bytes(frame) for frame in file_messages.chunk(session, offset, payload)]
    return receiver.receive(b"route", frames, said.pop("now", 0.0), **said)


def told(actions: list[Any]) -> file_messages.FileMessage:
    """Return the one answer among some actions."""
    (reply,) = [action for action in actions if isinstance(action, Reply)]
    return file_messages.parse([bytes(frame) for frame in reply.frames])


def test_a_file_is_opened_taken_finished_and_said_to_be_stored() -> None:
    receiver = FileReceiverProtocol()
    assert offered(receiver) == [Open(1, ONE, 10)]
    assert told(receiver.opened(1, 4)).offset == 4
    assert send(receiver, 4, b"abc") == [Write(1, b"abc")]
    assert told(receiver.written(1, 7)).credit == FILE_CREDIT_BYTES
    assert send(receiver, 7, b"def") == [Write(1, b"def"), Finish(1)]
    assert receiver.written(1, 10) == []
    assert told(receiver.stored(1)).kind == FileMessageKind.STORED
    assert receiver.is_idle


def test_a_file_without_bytes_is_finished_at_once() -> None:
    receiver = FileReceiverProtocol()
    offered(receiver, n_bytes=0)
    assert receiver.opened(1, 0) == [Finish(1)]


@pytest.mark.parametrize(
    ("offset", "payload"), [(1, b"a"), (0, b"x" * 11), (20, b"abc")], ids=["a gap", "too much", "far beyond"]
)
def test_what_breaks_the_rules_costs_the_session_and_nothing_is_written(offset: int, payload: bytes) -> None:
    receiver = FileReceiverProtocol()
    offered(receiver)
    receiver.opened(1, 0)
    actions = send(receiver, offset, payload)
    assert told(actions).kind == MessageKind.RESET
    assert Close(1) in actions
    assert told(send(receiver, 0, b"a")).reason == "session is unknown here"


def test_nobody_sends_more_than_the_credit() -> None:
    receiver = FileReceiverProtocol()
    offered(receiver, n_bytes=1 << 40)
    receiver.opened(1, 0)
    payload = bytes(FILE_CHUNK_BYTES)
    for index in range(FILE_CREDIT_BYTES // FILE_CHUNK_BYTES):
        assert len(send(receiver, index * FILE_CHUNK_BYTES, payload)) == 1
    assert told(send(receiver, FILE_CREDIT_BYTES, payload)).kind == MessageKind.RESET


def test_bytes_that_are_there_already_are_not_written_again() -> None:
    receiver = FileReceiverProtocol()
    offered(receiver)
    receiver.opened(1, 6)
    assert told(send(receiver, 0, b"abcdef")).offset == 6
    assert send(receiver, 4, b"efgh") == [Write(1, b"gh")]


def test_only_so_many_files_are_taken_at_once_and_the_store_decides_when_one_has_ended() -> None:
    receiver = FileReceiverProtocol()
    for number in range(FILES_AT_ONCE):
        digest, session = bytes([number]) * 32, bytes([number]) * 8
        assert offered(receiver, digest, sender=bytes([number]) * 16, session=session) == [Open(number + 1, digest, 10)]
    assert told(offered(receiver, ONE, sender=OTHER)).kind == FileMessageKind.DENIED
    assert receiver.tick(PEER_SILENT_S + 1) == [Close(number + 1) for number in range(FILES_AT_ONCE)]
    assert told(offered(receiver, ONE, sender=OTHER)).kind == FileMessageKind.DENIED
    receiver.closed(1)
    assert offered(receiver, ONE, sender=OTHER) == [Open(FILES_AT_ONCE + 1, ONE, 10)]


def test_a_sender_that_offers_again_goes_on_where_its_file_stands() -> None:
    receiver = FileReceiverProtocol()
    offered(receiver)
    receiver.opened(1, 0)
    send(receiver, 0, b"abc")
    assert told(offered(receiver, session=b"session2")).offset == 3
    assert told(send(receiver, 3, b"d")).kind == MessageKind.RESET
    assert send(receiver, 3, b"d", b"session2") == [Write(1, b"d")]


def test_a_sender_that_turns_to_another_file_lets_go_of_the_first() -> None:
    receiver = FileReceiverProtocol()
    offered(receiver)
    assert offered(receiver, TWO, session=b"session2") == [Close(1), Open(2, TWO, 10)]
    assert receiver.opened(1, 0) == []


def test_of_two_agents_with_one_content_the_second_waits() -> None:
    receiver = FileReceiverProtocol()
    offered(receiver)
    reply = told(offered(receiver, sender=OTHER, session=b"session2"))
    assert (reply.kind, reply.reason) == (FileMessageKind.DENIED, "another agent is delivering this content")


def test_a_key_speaks_for_its_nodes_and_its_own_sessions_only() -> None:
    keyed = Permission("a", frozenset({Role.AGENT}), ("node-a",), "public")
    other = Permission("b", frozenset({Role.AGENT}), ("*",), "public2")
    receiver = FileReceiverProtocol()
    refused = told(offered(receiver, info={"node": "node-b"}, permit=keyed))
    assert refused.kind == FileMessageKind.DENIED
    assert "may speak for node-a" in refused.reason
    assert offered(receiver, permit=keyed) == [Open(1, ONE, 10)]
    receiver.opened(1, 0)
    assert told(send(receiver, 0, b"a", permit=other)).kind == MessageKind.RESET
    assert told(send(receiver, 0, b"a")).kind == MessageKind.RESET
    same_16_bytes = offered(receiver, session=b"session2", permit=other)
    assert told(same_16_bytes).kind == FileMessageKind.DENIED
    assert send(receiver, 0, b"a", permit=keyed) == [Write(1, b"a")]


def test_a_key_that_makes_up_senders_leaves_room_for_files_of_others() -> None:
    greedy = Permission("a", frozenset({Role.AGENT}), ("*",), "public")
    other = Permission("b", frozenset({Role.AGENT}), ("*",), "public2")
    receiver = FileReceiverProtocol()

    def offers(number: int, permit: Permission) -> list[Any]:
        made_up = bytes([number])
        return offered(receiver, made_up * 32, sender=made_up * 16, session=made_up * 8, permit=permit)

    for number in range(FILES_PER_KEY_AT_ONCE):
        assert offers(number, greedy) == [Open(number + 1, bytes([number]) * 32, 10)]
    refused = told(offers(10, greedy))
    assert refused.kind == FileMessageKind.DENIED
    assert "key 'a'" in refused.reason
    assert [type(action) for action in offers(11, other)] == [Open]
    receiver.tick(PEER_SILENT_S + 1)
    receiver.closed(1)
    assert [type(action) for action in offers(12, greedy)] == [Open], "a closed file no longer counts"


def test_what_is_no_message_is_counted() -> None:
    receiver = FileReceiverProtocol()
    good = file_messages.offer(b"session1", SENDER, ONE, 10, {})
    for bad in ([b""], [good[0][:-1]], [*good, b"x"], file_messages.chunk(b"session1", 0, b"")):
        assert receiver.receive(b"route", [bytes(frame) for frame in bad], 0.0) == []
    assert receiver.malformed == 4


def test_a_version_that_is_not_spoken_is_named() -> None:
    frames = file_messages.offer(b"session1", SENDER, ONE, 10, {})
    newer = frames[0].replace(b"\x92\x01\x01", b"\x92\x02\x03")
    reply = told(FileReceiverProtocol().receive(b"route", [newer], 0.0))
    assert "file versions 2..3 are not supported here (1..1)" in reply.reason
