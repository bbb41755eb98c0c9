"""The refusals that the index reports to the receiver, and the receiver to its senders."""

from pathlib import Path

from chiplog_collector.refusals import Refused, RefusedEvents, read_refused, write_refused
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.actions import Reply
from chiplog_schemas.protocol.receiver import ReceiverProtocol
from chiplog_schemas.security.permissions import Permission
from tests.support.safeguard import proves

SENDER, SESSION = b"S" * 16, b"12345678"


def permit(*nodes: str) -> Permission:
    return Permission("k", frozenset({"agent"}), nodes, "p" * 40)


def sent(actions: list) -> list[messages.Message]:
    return [
        messages.parse([bytes(frame) for frame in action.frames]) for action in actions if isinstance(action, Reply)
    ]


def test_counts_survive_the_file_and_anything_else_is_none(tmp_path: Path) -> None:
    path = tmp_path / "refused"
    assert read_refused(path) == {}
    write_refused(path, {SENDER: Refused(7, 2)})
    assert read_refused(path) == {SENDER: Refused(7, 2)}
    for junk in ("", "[]", '{"x": [1, 2]}', '{"00": 1}', "{"):
        path.write_text(junk)
        assert read_refused(path) == {}
    write_refused(tmp_path / "missing" / "refused", {})


def test_refused_events_are_counted_from_the_start_on_and_never_fewer() -> None:
    events = RefusedEvents()
    found = []
    for kept in ({SENDER: 7}, {SENDER: 7}, {SENDER: 9, b"T": 4}, {}, {SENDER: 5}):
        events.note({sender: Refused(n_events, 1) for sender, n_events in kept.items()})
        found.append((events.n_kept, events.n_refused))
    assert found == [(7, 0), (7, 0), (13, 6), (0, 6), (5, 11)]


@proves("refused-sender-without-credit", "a sender with too many refusals gets no credit", value="self.credit")
def test_a_sender_of_whom_too_much_is_kept_gets_no_credit() -> None:
    receiver = ReceiverProtocol({}, credit=100)
    receiver.receive(b"r", messages.hello(SESSION, SENDER, 0, {}), 1.0)
    [ack] = sent(receiver.set_refused({SENDER: 5}, set()))
    assert (ack.refused, ack.credit) == (5, 100)
    assert receiver.set_refused({SENDER: 5}, set()) == []
    [ack] = sent(receiver.set_refused({SENDER: 9}, {SENDER}))
    assert (ack.refused, ack.credit) == (9, 0)
    [ack] = sent(receiver.set_refused({}, set()))
    assert (ack.refused, ack.credit) == (0, 100)


@proves("session-ends-with-key", "a session ends when its key does not cover its node any more", value="None")
def test_a_session_ends_when_its_key_covers_other_nodes() -> None:
    receiver = ReceiverProtocol({}, scopes=True)
    receiver.receive(b"r", messages.hello(SESSION, SENDER, 0, {"node": "node-a"}), 1.0, permit("node-a"))
    [ack] = sent(receiver.receive(b"r", messages.ping(SESSION, 0), 2.0, permit("node-*")))
    assert ack.kind == messages.MessageKind.ACK
    [reset] = sent(receiver.receive(b"r", messages.ping(SESSION, 0), 3.0, permit("node-b")))
    assert reset.kind == messages.MessageKind.RESET and "node-a" in reset.reason
    assert receiver.senders == set()
