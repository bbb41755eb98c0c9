"""Requests for changes and waits: answered once applied, one after the other, and only for those who may."""

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from chiplog_collector.index.apply.change_handlers import Changes
from chiplog_collector.index.changes import change_queue
from chiplog_collector.index.changes.change_queue import CHANGE_WAIT_S, ChangeQueue
from chiplog_collector.query.change_request import ChangeRequest
from chiplog_collector.query.service import QueryService, lock_down
from chiplog_schemas.model.change_record import decode_change
from chiplog_schemas.paths import ensure_private_dir
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import ID_BYTES, QueryMessage, QueryMessageKind
from chiplog_schemas.security.key_files import Keys, write_pair, write_permit
from chiplog_schemas.security.permissions import Permission, Role
from chiplog_schemas.security.zap import LOCAL, open_authenticator
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import Rank, whole
from tests.support.index import Index
from tests.support.keys import new_pair
from tests.support.ports import free_ports
from tests.support.query_client import Asker
from tests.support.safeguard import proves


class World:
    """A desk, the writer's turns, and the receiver's end of its channel."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.receiver, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = channel
        self.desk = ChangeQueue(channel)
        self.answers: list[QueryMessage] = []

    def submit(self, frames: list[bytes], now: float = 0.0) -> None:
        question = query_messages.parse(frames)
        said = lambda request, answer: self.answers.append(query_messages.parse(answer))  # noqa: E731
        self.desk.submit(ChangeRequest(b"peer", LOCAL, question, now, said))

    def edit(self, number: int, name: str = "n", run: str = "r") -> bytes:
        id = number.to_bytes(ID_BYTES, "big")
        self.submit(query_messages.manage(id, "edit", {"run": run, "fields": {"name": name}}))
        return id

    def turn(self, now: float = 0.0) -> None:
        follower = self.index.follower
        self.desk.turn(follower.state, self.index.database.next_number, now, failed=follower.failed_changes)

    def take_log(self) -> int:
        """Log what the desk has sent, as the receiver does, and apply it; return how many records there were."""
        n_records = 0
        while True:
            try:
                payload = self.receiver.recv(1 << 20, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return n_records
            n_records += 1
            self.index.take((Kind.MANAGE, payload))


@pytest.fixture
def world(index: Index) -> Iterator[World]:
    index.take(whole(Rank(0)))
    world = World(index)
    yield world
    world.receiver.close()
    world.channel.close()


def test_a_change_is_answered_once_it_is_applied_and_the_next_one_waits_for_it(world: World) -> None:
    first, second = world.edit(1, "one"), world.edit(2, "two")
    world.turn()
    world.turn()
    assert world.answers == []
    assert world.take_log() == 1, "one at a time"
    world.turn()
    assert [(answer.kind, answer.id) for answer in world.answers] == [(QueryMessageKind.DONE, first)]
    assert world.take_log() == 1
    world.turn()
    assert [answer.id for answer in world.answers] == [first, second]
    assert world.index.sql("SELECT name FROM runs") == [("two",)]


def test_a_refused_change_leaves_nothing_in_the_log_and_the_next_one_continues(world: World) -> None:
    world.edit(1, run="nope")
    good = world.edit(2)
    world.turn()
    assert world.take_log() == 1
    world.turn()
    assert [(a.kind, a.error_kind) for a in world.answers] == [(QueryMessageKind.ERROR, "refused"), (7, "")]
    assert world.answers[1].id == good


def test_a_request_that_is_sent_again_after_a_restart_is_carried_out_once(world: World) -> None:
    world.edit(1)
    world.turn()
    assert world.take_log() == 1
    world.index.reopen()
    world.desk = ChangeQueue(world.channel)
    world.edit(1)
    world.turn()
    assert [answer.kind for answer in world.answers] == [QueryMessageKind.DONE]
    assert world.take_log() == 0


def test_a_receiver_that_takes_nothing_is_asked_again_and_reported_in_the_end(world: World) -> None:
    while True:  # its disk refuses: the channel fills
        try:
            world.channel.send(b"x" * 4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            break
    world.edit(1)
    world.turn(now=1.0)
    assert world.answers == []
    world.turn(now=CHANGE_WAIT_S)
    assert [(a.error_kind, "ask again later" in a.message) for a in world.answers] == [("busy", True)]


@proves(
    "request-planned-on-whole-log", "what a deletion concerns is decided when the whole log is applied", condition=False
)
def test_no_request_is_planned_before_the_whole_log_is_applied(world: World) -> None:
    world.edit(1, "one")
    world.desk.turn(world.index.follower.state, 0, 1.0, is_behind=True)
    assert world.take_log() == 0
    world.turn(2.0)
    assert world.take_log() == 1
    world.turn(2.0)
    world.edit(2, "two")
    world.desk.turn(world.index.follower.state, 0, CHANGE_WAIT_S, is_behind=True)
    assert [answer.error_kind for answer in world.answers] == ["", "busy"]


@proves(
    "bad-request-costs-itself", "a request that cannot be planned is answered, and the index continues", new="raise"
)
def test_a_request_that_breaks_the_plan_costs_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_: object) -> None:
        raise RecursionError("too deep")

    with monkeypatch.context() as patch:
        patch.setattr(change_queue, "plan_request", plan)
        world.edit(1)
        world.turn()
    assert [(a.error_kind, a.message) for a in world.answers] == [("internal", "RecursionError: too deep")]
    world.edit(2)
    world.turn()
    assert world.take_log() == 1


@proves("failed-change-answered", "a change whose record is set aside is answered, and the next one continues")
@pytest.mark.parametrize("error", [ValueError("bad"), KeyError("bug")])  # invalid; of a bug
def test_a_change_whose_record_cannot_be_applied_is_refused_and_the_next_one_continues(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def edit(*_: object) -> None:
        raise error

    first, second = world.edit(1), world.edit(2)
    world.turn()
    with monkeypatch.context() as patch:
        patch.setattr(Changes, "_edit", edit)
        assert world.take_log() == 1
    caplog.clear()
    world.turn()
    assert [(a.id, a.error_kind) for a in world.answers] == [(first, "refused")]
    assert re.search("the change cannot be applied: .*(bad|bug)", world.answers[0].message)
    assert [record.getMessage() for record in caplog.records] == [world.answers[0].message]
    assert world.take_log() == 1
    world.turn()
    assert [(a.id, a.error_kind) for a in world.answers[1:]] == [(second, "")]


def test_without_a_channel_changes_are_refused_and_waits_answered(index: Index) -> None:
    world = World(index)
    world.desk = ChangeQueue()
    world.edit(1)
    world.submit(query_messages.wait_for(bytes(ID_BYTES), 0, 1.0))
    world.turn()
    assert {(a.kind, a.error_kind) for a in world.answers} == {(QueryMessageKind.ERROR, "refused"), (7, "")}
    world.receiver.close()
    world.channel.close()


def test_a_wait_ends_with_its_record_or_its_time(world: World) -> None:
    soon = world.index.database.next_number + 1
    world.submit(query_messages.wait_for(b"for good", soon, 20.0))
    world.submit(query_messages.wait_for(b"too late", soon + 100, 2.0))
    world.turn(now=1.0)
    assert world.answers == []
    world.index.take(whole(Rank(1)))
    world.turn(now=1.5)
    assert [(a.id, a.info) for a in world.answers] == [(b"for good", {"number": soon + 1})]
    world.turn(now=2.0)
    assert world.answers[1].id == b"too late"


# -- through sockets --


def ask(asker: Asker, frames: list[bytes]) -> QueryMessage:
    asker.socket.send_multipart(frames)
    return asker.receive()


class Writer(threading.Thread):
    """Stands in for the loop of the index: turns, and logs what comes."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self.world = world
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            self.world.take_log()
            self.world.turn(time.monotonic())
            time.sleep(0.005)


def test_a_client_at_the_unix_socket_changes_a_run_and_waits_for_it(world: World, tmp_path: Path) -> None:
    lock_down(world.index.database.connection)
    service = QueryService(world.index.database.connection, f"ipc://{tmp_path}/q.sock", submit=world.desk.submit)
    service.start()
    writer = Writer(world)
    writer.start()
    asker = Asker(service.address)
    try:
        id = os.urandom(ID_BYTES)
        answer = ask(asker, query_messages.manage(id, "edit", {"run": "r", "fields": {"name": "n"}}))
        assert (answer.kind, answer.id, answer.info) == (QueryMessageKind.DONE, id, {"run_id": "r"})
        answer = ask(asker, query_messages.wait_for(id, 3, 5.0))
        assert answer.info["number"] >= 3
        answer = ask(asker, query_messages.manage(id, "delete", {"runs": ["nope"]}))
        assert answer.kind == QueryMessageKind.DONE, "the ID of a change that was carried out"
        answer = ask(asker, query_messages.manage(os.urandom(ID_BYTES), "delete", {"runs": ["nope"]}))
        assert (answer.error_kind, answer.message) == ("refused", "run 'nope' is unknown; the view runs lists all")
    finally:
        writer.over.set()
        writer.join()
        asker.close()
        service.close()


@proves(
    "changes-need-admin",
    "only a client at the Unix socket, or with an administrator's key, changes what was recorded",
    condition=False,
)
@pytest.mark.parametrize("roles", [None, {Role.READER}, {Role.READER, Role.ADMIN}])
def test_over_tcp_only_an_administrators_key_may_change_anything(
    world: World, tmp_path: Path, roles: set[Role] | None
) -> None:
    """None: a TCP address on loopback without keys, which every user of the machine can reach."""
    lock_down(world.index.database.connection)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    keys, reader, server = Keys(tmp_path / "keys"), new_pair(Role.READER, "me"), new_pair(Role.COLLECTOR, "c")
    if roles is not None:
        ensure_private_dir(keys.allowed)
        write_pair(keys.directory, server)
        write_permit(keys.allowed, Permission("me", frozenset(map(str, roles)), (), reader.public))
    gate = open_authenticator(context, keys, Role.COLLECTOR)
    service = QueryService(
        world.index.database.connection, f"tcp://127.0.0.1:{free_ports(1)}", gate, context, submit=world.desk.submit
    )
    service.start()
    writer = Writer(world)
    writer.start()
    asker = Asker.__new__(Asker)
    asker.context = zmq.Context()
    asker.socket = asker.context.socket(zmq.DEALER)
    asker.socket.setsockopt(zmq.LINGER, 0)
    if roles is not None:
        asker.socket.curve_publickey, asker.socket.curve_secretkey = reader.public.encode(), reader.secret.encode()
        asker.socket.curve_serverkey = server.public.encode()
    asker.socket.connect(service.address)
    try:
        assert ask(asker, query_messages.request(os.urandom(ID_BYTES), "SELECT 1", None, 30.0)).n_rows == 1
        answer = ask(asker, query_messages.manage(os.urandom(ID_BYTES), "edit", {"run": "r", "fields": {"name": "n"}}))
        if roles == {Role.READER, Role.ADMIN}:
            assert answer.kind == QueryMessageKind.DONE
        else:
            assert answer.error_kind == "forbidden"
            assert "a key with the role admin" in answer.message
            assert world.index.sql("SELECT name FROM runs") == [(None,)]
    finally:
        writer.over.set()
        writer.join()
        asker.close()
        service.close()
        if gate is not None:
            gate.close()
        context.term()


def test_what_the_desk_sends_is_a_change(world: World) -> None:
    id = world.edit(1, "one")
    world.turn()
    change = decode_change(world.receiver.recv(1 << 20))
    assert (change.id, change.body) == (id, {"run": "r", "fields": {"name": "one"}})
