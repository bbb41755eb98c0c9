"""The sender thread: a lack of keys or descriptors ends neither the thread nor the maintenance of the journal."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from chiplog.journal import sender as sender_module
from chiplog.journal.journal import Journal
from chiplog.journal.sender import SenderThread
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.messages import MessageKind
from tests.support.safeguard import Safeguard
from tests.support.waiting import wait_until

SAFEGUARDS = [
    Safeguard(
        "keys that the system does not let us read do not end the care for the journal",
        "unreadable-keys-end-nothing",
        value="ZeroDivisionError",
        test="test_keys_that_cannot_be_read_for_a_while_only_delay",
    ),
]


class Ran:
    """A journal, its sender, and the sender's warnings."""

    def __init__(self, place: Paths, address: str, online: bool) -> None:
        self.journal = Journal(place.journals / ("ab" * 16), b"\xab" * 16, b"\x80")
        self.journal.append(b"first")
        self.journal.publish()
        self.ticks = 0
        self.said: list[str] = []
        self.thread = SenderThread(
            self.journal,
            place,
            {},
            agent_address=address,
            online=online,
            on_tick=self._tick,
            warn=self.said.append,
        )
        self.thread.start()

    def _tick(self) -> None:
        self.ticks += 1

    def until_ticked(self) -> None:
        before = self.ticks
        wait_until(lambda: self.ticks > before + 2, "the thread goes round")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Ran]]:
    ran: list[Ran] = []

    def begin_one(address: str = f"ipc://{tmp_path}/agent", online: bool = True) -> Ran:
        place = paths_for_root(tmp_path / "chiplog")
        ran.append(Ran(place, address, online))
        return ran[0]

    yield begin_one
    for one in ran:
        one.thread.stop()
        wait_until(lambda one=one: not one.thread._thread.is_alive(), "the end of the thread")
        one.journal.close(remove=True)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[[], int]]:
    """Answer as an agent that has everything on stable storage at once; return the number after the last record."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(f"ipc://{tmp_path}/agent")
    behind, done = 0, threading.Event()

    def serve() -> None:
        nonlocal behind
        while not done.is_set():
            if not router.poll(20):
                continue
            routing, *frames = router.recv_multipart()
            message = messages.parse(frames)
            if message.kind == MessageKind.HELLO:
                router.send_multipart([routing, *messages.welcome(message.session, behind, 1 << 20)])
            elif message.kind in (MessageKind.DATA, MessageKind.PING):
                behind = max(behind, message.last + 1 if message.kind == MessageKind.DATA else 0)
                router.send_multipart([routing, *messages.ack(message.session, behind, 1 << 20)])

    thread = threading.Thread(target=serve)
    thread.start()
    yield lambda: behind
    done.set()
    thread.join(120)
    router.close(0)
    context.term()


def refuse(error: Exception) -> Callable[..., Any]:
    def refusing(*_: object, **__: object) -> Any:
        raise error

    return refusing


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("client_curve", PermissionError(13, "Permission denied", "/keys/agent.pub")),
        ("keys_dir", FileNotFoundError(2, "No such file or directory")),  # os.getcwd() of a directory that is gone
        ("require_free_fds", OSError(24, "9 of 10 file descriptors are open")),
    ],
)
def test_keys_that_cannot_be_read_for_a_while_only_delay(begin, agent, monkeypatch, name, error) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sender_module, name, refuse(error))
        ran = begin()
        ran.until_ticked()
        ran.journal._count_dropped(ran.journal._tail, 1, None)
        wait_until(lambda: ran.journal.next_seq == 3, "the thread declares what was dropped")
        assert len(ran.said) == 1, "one warning"
        assert "cannot be reached yet" in ran.said[0]
    wait_until(lambda: ran.journal.acked == 3, "all of it delivered")
    assert ran.thread.stop()


def test_keys_that_are_no_keys_leave_the_journal_to_an_agent_and_it_is_looked_after(begin, monkeypatch) -> None:
    monkeypatch.setattr(sender_module, "client_curve", refuse(ValueError("agent.pub is no key")))
    ran = begin()
    ran.until_ticked()
    assert ran.said == [
        "no agent can be reached: agent.pub is no key; the journal keeps everything until one adopts it"
    ]
    assert not ran.thread.stop()


def test_a_sender_that_waits_for_descriptors_ends_when_it_is_told(begin, monkeypatch) -> None:
    monkeypatch.setattr(sender_module, "require_free_fds", refuse(OSError(24, "too few")))
    ran = begin()
    ran.until_ticked()
    assert not ran.thread.stop()
    assert ran.thread._done.is_set(), "within what finish() waits"


@pytest.mark.parametrize("online", [True, False])
def test_a_sender_without_a_descriptor_to_be_woken_by_works_all_the_same(begin, agent, monkeypatch, online) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "eventfd", refuse(OSError(24, "Too many open files")))
        ran = begin(online=online)
    ran.until_ticked()
    ran.thread.wake()
    assert ran.thread.stop() is online
    assert (agent() == 1) is online
