"""The sender of saved files, message by message."""

from chiplog_schemas.limits import PEER_SILENT_S
from chiplog_schemas.protocol import file_messages, messages
from chiplog_schemas.protocol.actions import Send
from chiplog_schemas.protocol.file_sender import FileSenderProtocol, PeerTimeout
from tests.support.file_delivery import ONE, SENDER, sessions


def test_a_sender_offers_again_after_quiet_and_gives_the_socket_up_after_silence() -> None:
    sender = FileSenderProtocol(SENDER, {}, sessions())
    assert len(sender.offer(ONE, 10, 0.0)) == 1
    assert sender.tick(1.9) == []
    (again,) = sender.tick(2.1)
    assert isinstance(again, Send)
    assert sender.tick(PEER_SILENT_S + 0.1) == [PeerTimeout()]
    assert not sender.digest
    assert sender.tick(100.0) == []


def test_a_sender_takes_no_word_of_another_session() -> None:
    sender = FileSenderProtocol(SENDER, {}, sessions())
    sender.offer(ONE, 10, 0.0)
    assert sender.receive(file_messages.stored(b"another!"), 0.0) == []
    assert sender.receive([b"\xc1"], 0.0) == []
    assert sender.digest == ONE


def test_a_reset_is_answered_with_an_offer_after_a_growing_pause() -> None:
    sender = FileSenderProtocol(SENDER, {}, sessions())
    sender.offer(ONE, 10, 0.0)
    now, pauses = 0.0, []
    for number in range(1, 9):
        for _ in range(2):  # each chunk that was under way brings one
            sender.receive(messages.reset(number.to_bytes(8, "big"), "unknown"), now)
        begun = now
        while not sender.tick(now):
            now += 0.01
        pauses.append(now - begun)
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.1 < 1.0 < pauses[-1]


def test_an_offset_beyond_the_file_opens_nothing() -> None:
    sender = FileSenderProtocol(SENDER, {}, sessions())
    sender.offer(ONE, 10, 0.0)
    sender.receive(file_messages.want((1).to_bytes(8, "big"), 11, 100), 0.0)
    assert sender.window() == 0
