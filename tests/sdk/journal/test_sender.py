"""The sender thread: a lack of keys or descriptors ends neither the thread nor the maintenance of the journal."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from chiplog.journal import sender as sender_module
from chiplog.journal.journal import Journal
from chiplog.journal.sender import SenderThread
from chiplog_schemas.limits import HEARTBEAT_INTERVAL_S
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.messages import MessageKind
from chiplog_schemas.transport.collector_memory import RememberedCollector, remember_collector
from tests.support.lock_holder import lock_holder
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until


class Ran:
    """A journal, its sender, and the sender's warnings."""

    def __init__(self, place: Paths, address: str | None, online: bool, hurries: bool = False) -> None:
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
            must_hurry=lambda: hurries,
        )
        self.thread.start()

    def _tick(self) -> None:
        self.ticks += 1

    def until_ticked(self) -> None:
        before = self.ticks
        wait_until(lambda: self.ticks > before + 2, "the thread goes round", WAIT_S)

    def until_asleep(self) -> None:
        def sleeps() -> bool:
            before = self.ticks
            time.sleep(0.5)
            return self.ticks == before

        wait_until(sleeps, "the thread sleeps", WAIT_S)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Ran]]:
    ran: list[Ran] = []

    def begin_one(address: str | None = f"ipc://{tmp_path}/agent", online: bool = True, hurries: bool = False) -> Ran:
        place = paths_for_root(tmp_path / "chiplog")
        ran.append(Ran(place, address, online, hurries))
        return ran[0]

    yield begin_one
    for one in ran:
        one.thread.stop()
        wait_until(lambda one=one: not one.thread._thread.is_alive(), "the end of the thread")
        one.journal.close(remove=True)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[[], int]]:
    """Answer as an agent that has everything on stable storage at once; return the number after the last record."""
    with answering(tmp_path) as behind:
        yield behind


@pytest.fixture
def slow_agent(tmp_path: Path) -> Iterator[Callable[[], int]]:
    """Answer as an agent that syncs only on request."""
    with answering(tmp_path, on_request=True) as behind:
        yield behind


@pytest.fixture
def queried_agent(tmp_path: Path) -> Iterator[None]:
    """Answer as an agent whose collector is asked."""
    with answering(tmp_path, queried=True):
        yield


@contextlib.contextmanager
def answering(tmp_path: Path, *, on_request: bool = False, queried: bool = False) -> Iterator[Callable[[], int]]:
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
                router.send_multipart([routing, *messages.welcome(message.session, behind, 1 << 24)])
            elif message.kind in (MessageKind.DATA, MessageKind.PING):
                behind = max(behind, message.last + 1 if message.kind == MessageKind.DATA else 0)
                if message.kind == MessageKind.PING or not on_request:
                    router.send_multipart([routing, *messages.ack(message.session, behind, 1 << 24, queried=queried)])

    thread = threading.Thread(target=serve)
    thread.start()
    yield lambda: behind
    done.set()
    thread.join(WAIT_S)
    router.close(0)
    context.term()


def refuse(error: Exception) -> Callable[..., Any]:
    def refusing(*_: object, **__: object) -> Any:
        raise error

    return refusing


@proves(
    "unreadable-keys-end-nothing",
    "keys that the system does not let us read do not end the care for the journal",
    value="ZeroDivisionError",
)
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


@proves(
    "keys-of-stand-in-checked",
    "a rank names the keys that an agent in place of a configured one lacks",
    condition=False,
)
def test_a_rank_names_the_keys_that_an_agent_in_place_of_a_configured_one_lacks(begin, tmp_path: Path) -> None:
    place = paths_for_root(tmp_path / "chiplog")
    ensure_private_dir(place.agent)
    remember_collector(place.agent, RememberedCollector("tcp://192.0.2.1:9", f"{tmp_path}/keys", "site", True))
    ran = begin(None)
    wait_until(lambda: ran.said, "a line")
    assert ran.said[0].startswith("no agent could be started: ") and f"{tmp_path}/keys" in ran.said[0]


@proves(
    "rank-reports-former-collector",
    "a rank reports that it delivers to the collector that an earlier run named",
    condition=False,
)
@pytest.mark.parametrize("is_configured", [False, True])
def test_a_rank_reports_the_collector_that_only_an_earlier_run_named(
    begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_configured: bool
) -> None:
    monkeypatch.delenv("CHIPLOG_COLLECTOR", raising=False)
    place = paths_for_root(tmp_path / "chiplog")
    ensure_private_dir(place.agent)
    remember_collector(place.agent, RememberedCollector("tcp://192.0.2.1:9", f"{tmp_path}/keys", "site", is_configured))
    ran = begin(None)
    ran.until_ticked()
    lines = [line for line in ran.said if line.startswith("this run goes to tcp://192.0.2.1:9, ")]
    assert len(lines) == (not is_configured), ran.said


def test_a_sender_that_waits_for_descriptors_ends_when_it_is_told(begin, monkeypatch) -> None:
    monkeypatch.setattr(sender_module, "require_free_fds", refuse(OSError(24, "too few")))
    ran = begin()
    ran.until_ticked()
    assert not ran.thread.stop()
    assert ran.thread._done.is_set(), "within what finish() waits"


@pytest.fixture
def hourly(monkeypatch) -> None:
    monkeypatch.setattr(sender_module, "SEND_INTERVAL_SLOW_S", 3600.0)


@pytest.mark.usefixtures("hourly", "agent")
def test_a_rank_sends_seldom_while_no_client_asks_and_at_once_when_it_ends(begin) -> None:
    ran = begin()
    ran.until_asleep()
    ran.journal.append(b"more")
    assert ran.thread.stop()
    assert ran.journal.acked == 2


@proves("queried-rank-sends-often", "a rank sends at short intervals while clients ask", value="False")
@pytest.mark.usefixtures("hourly", "queried_agent")
def test_a_rank_sends_often_while_clients_ask(begin) -> None:
    ran = begin()
    ran.until_asleep()
    ran.thread.wake()  # to read the first acknowledgement
    ran.until_ticked()


@proves("busy-journal-sent-often", "a journal that fills fast is sent at short intervals", value="False")
@pytest.mark.usefixtures("hourly", "slow_agent")
def test_a_rank_that_has_much_in_flight_sends_often(begin) -> None:
    ran = begin()
    ran.until_asleep()
    ran.journal.append(bytes(sender_module._BUSY_BYTES))
    ran.thread.wake()
    ran.until_ticked()


@pytest.mark.usefixtures("hourly", "agent")
def test_a_rank_with_values_on_a_device_ticks_often(begin) -> None:
    ran = begin(hurries=True)
    wait_until(lambda: ran.journal.acked == 1, "the first acknowledgement", WAIT_S)
    ran.until_ticked()


@proves("finish-requests-acknowledgement", "a run that ends does not wait for the agent's interval")
def test_a_run_that_ends_requests_its_acknowledgement(begin, slow_agent) -> None:
    ran = begin()
    wait_until(lambda: slow_agent() == 1, "the first event arrives")
    for _ in range(3):
        ran.journal.append(b"more")
    assert ran.thread.stop(HEARTBEAT_INTERVAL_S / 2), "nothing was acknowledged before the first heartbeat"
    assert slow_agent() == 4


@pytest.mark.parametrize("online", [True, False])
def test_a_sender_without_a_descriptor_to_be_woken_by_works_all_the_same(begin, agent, monkeypatch, online) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "eventfd", refuse(OSError(24, "Too many open files")))
        ran = begin(online=online)
    ran.until_ticked()
    ran.thread.wake()
    if online:  # on a busy machine that may take longer than stop() waits
        wait_until(lambda: ran.journal.acked == 1, f"the acknowledgement; said {ran.said}", WAIT_S)
    assert ran.thread.stop() is online, ran.said
    assert (agent() == 1) is online


def test_a_run_that_ends_before_its_thread_has_begun_is_delivered(begin, agent, monkeypatch) -> None:
    has_ended = threading.Event()
    monkeypatch.setattr(SenderThread, "_report_place", lambda self: has_ended.wait(WAIT_S))
    monkeypatch.setattr(SenderThread, "wake", lambda self: has_ended.set())
    ran = begin()
    ran.thread._reports_place = True
    assert ran.thread.stop(WAIT_S), ran.said
    assert agent() == 1


@proves("slow-agent-awaited", "a rank starts no other agent beside one that is slow to answer", value="False")
@pytest.mark.parametrize("listens", [True, False])
def test_another_agent_is_started_only_if_the_one_that_runs_cannot_answer(
    begin, monkeypatch, tmp_path, listens
) -> None:
    started: list[str] = []
    monkeypatch.setattr(sender_module, "start_daemon_once", lambda module, *rest: bool(started.append(module)))
    place = paths_for_root(tmp_path / "chiplog")
    listens_at = Path(place.agent_address.removeprefix("ipc://")) if listens else None
    with lock_holder(place.agent / "lock", listens_at):
        ran = begin(None)
        wait_until(lambda: started or ran.ticks > 20, "many ticks", WAIT_S)
        assert bool(started) is not listens
