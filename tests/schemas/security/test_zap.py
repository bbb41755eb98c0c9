"""The gate on real sockets: who is let in, who is not, what becomes of a key that is revoked, and of a dead handler."""

import contextlib
import gc
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.actions import Reply
from chiplog_schemas.protocol.receiver import ReceiverProtocol
from chiplog_schemas.security.curve import HANDSHAKE_FAILED, ClientCurve, HandshakeFailure, parse_handshake_failure
from chiplog_schemas.security.key_files import KeyPair, Keys, PublicKey, write_pair, write_permit
from chiplog_schemas.security.permissions import Permission, Role
from chiplog_schemas.security.zap import ZapAuthenticator, open_authenticator, receive
from chiplog_schemas.transport.router import RouterSocket
from tests.support.ports import free_ports
from tests.support.rounds import SOAK_MINUTES, Rounds
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_MS, WAIT_S, wait_until

HELLO = messages.hello(b"12345678", bytes(16), 0, {"node": "node1"})
_LATE_S = 0.6  # an answer that must not come is waited for so long; one that must come has a minute
_MEMORY_BYTES = 32 << 20 if SOAK_MINUTES else 3 << 20  # so much may be left; one kept session is over 8 KiB
_FILES = 24
_EVENT = struct.Struct("=Hi")


class Site:
    """A daemon's door with a gate, and clients that knock."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.keys = Keys(directory / "keys")
        self.keys.allowed.mkdir(parents=True)
        os.chmod(self.keys.directory, 0o700)
        self.knocking: list[Client] = []
        self.server = self.pair("center", Role.COLLECTOR)
        write_pair(self.keys.directory, self.server)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.clients: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        gate = open_authenticator(self.context, self.keys, Role.COLLECTOR)
        assert gate is not None
        self.gate: ZapAuthenticator = gate
        self.ipc = f"ipc://{directory}/run/a.sock"
        port = free_ports(1)
        self.tcp = f"tcp://127.0.0.1:{port}"
        self.door = RouterSocket(self.context, [self.tcp, self.ipc], gate, "ingest")

    @staticmethod
    def pair(name: str, role: Role = Role.AGENT) -> KeyPair:
        public, secret = zmq.curve_keypair()
        return KeyPair(name, str(role), public.decode(), secret.decode())

    def allow(self, pair: KeyPair, *roles: str) -> Permission:
        permit = Permission(pair.name, frozenset(roles or ("agent",)), ("node1",), pair.public)
        write_permit(self.keys.allowed, permit)
        return permit

    def curve(self, pair: KeyPair, server: KeyPair | None = None) -> ClientCurve:
        whose = PublicKey("center", "collector", (server or self.server).public)
        return ClientCurve(pair.name, pair.public, pair.secret, pair.role, whose, self.keys.directory)

    def knock(self, address: str, curve: ClientCurve | None = None) -> "Client":
        self.knocking.append(client := Client(self.clients, address, curve))
        return client

    def serve(self) -> "list[tuple[list[bytes], Permission | None]]":
        """Read all messages, answer each HELLO by a WELCOME, and return the accepted messages."""
        taken = []
        while self.door.socket.poll(0):
            received = self.door.receive(time.monotonic())
            if received is not None:
                permit = received.client.permit
                taken.append((received.frames, permit))
                session = messages.parse(received.frames).session
                self.door.reply(Reply(received.routing, messages.welcome(session, 7, 1), permit), time.monotonic())
        return taken

    def close(self) -> None:
        self.door.close(0)
        self.gate.close()
        for client in self.knocking:
            client.close()
        self.clients.destroy(0)
        self.context.term()


class Client:
    """A DEALER with a monitor."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, curve: ClientCurve | None) -> None:
        self.address, self.curve = address, curve
        self.socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if curve is not None:
            curve.configure(self.socket)
        self.monitor = self.socket.get_monitor_socket(HANDSHAKE_FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.socket.connect(address)

    def handshake(self) -> HandshakeFailure | None:
        """Wait for the end of the handshake; return why it failed."""
        assert self.monitor.poll(WAIT_MS), "no end of a handshake"
        message = self.monitor.recv_multipart()
        if _EVENT.unpack_from(message[0])[0] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            return None
        failure = parse_handshake_failure(message, self.address, self.curve)
        assert failure is not None and "\n" not in failure.reason
        return failure

    def close(self) -> None:
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.monitor.close(0)
            self.socket.close(0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.close()


def is_answered(site: Site, client: Client, wait_s: float = 60.0) -> bool:
    """Send HELLO and return True if a WELCOME arrives."""
    with contextlib.suppress(zmq.Again):  # ZeroMQ has given up a connection that was refused
        client.socket.send_multipart(HELLO, zmq.DONTWAIT)
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        site.serve()
        if client.socket.poll(5):
            return messages.parse(client.socket.recv_multipart()).kind == messages.MessageKind.WELCOME
    return False


@proves("unix-bound-before-keys", "the Unix sockets are bound before the keys are set", value="addresses")
def test_unix_sockets_go_without_keys_beside_tcp_that_does_not(site: Site) -> None:
    local = site.knock(site.ipc)
    local.socket.send_multipart(HELLO)
    taken = wait_until(site.serve, "a message through the Unix socket")
    assert taken == [(HELLO, None)]
    plain = site.knock(site.tcp)
    failure = plain.handshake()
    assert failure is not None and "keys" in failure.reason
    assert not is_answered(site, plain, _LATE_S)


@proves(
    "permit-from-handshake",
    "a message is known by the key that its handshake showed",
    part="public.encode()",
    new='b""',
)
def test_an_allowed_key_is_let_in_and_known_by_its_permit(site: Site) -> None:
    pair = site.pair("node1")
    permit = site.allow(pair)
    client = site.knock(site.tcp, site.curve(pair))
    client.socket.send_multipart(HELLO)
    assert wait_until(site.serve, "a message of a key") == [(HELLO, permit)]
    assert client.handshake() is None
    assert client.socket.poll(WAIT_MS)


@proves("handshake-checks-key", "the handshake asks the list of allowed keys", new="if public:")
@proves("domain-needs-role", "a key is let in for its role alone", part="in permit.roles")
@pytest.mark.parametrize("roles", [(), ("reader",), ("rank", "reader")])
def test_a_stranger_fails_in_the_handshake(site: Site, roles: tuple[str, ...]) -> None:
    pair = site.pair("mallory")
    if roles:
        site.allow(pair, *roles)
    client = site.knock(site.tcp, site.curve(pair))
    failure = client.handshake()
    assert failure is not None and failure.is_final
    assert "mallory" in failure.reason and "chiplog keys allow" in failure.reason
    assert not is_answered(site, client, _LATE_S)
    assert site.gate.refused == 1


def test_a_client_that_expects_another_server_sends_nothing(site: Site) -> None:
    pair = site.pair("node1")
    site.allow(pair)
    client = site.knock(site.tcp, site.curve(pair, server=site.pair("other", Role.COLLECTOR)))
    failure = client.handshake()
    assert failure is not None and "collector.pub" in failure.reason
    assert not is_answered(site, client, _LATE_S)


def test_a_client_with_keys_sends_nothing_to_a_plain_server(site: Site) -> None:
    plain = RouterSocket(site.context, [address := f"tcp://127.0.0.1:{free_ports(1)}"])
    client = site.knock(address, site.curve(site.pair("node1")))
    client.socket.send_multipart(HELLO)
    failure = client.handshake()
    assert failure is not None
    assert not plain.socket.poll(int(_LATE_S * 1000))
    plain.close(0)


@proves("tcp-peer-never-local", "a peer that came through TCP without a key is never local", value="True")
def test_a_message_without_a_key_counts_only_from_a_unix_socket(site: Site) -> None:
    plain: zmq.Socket[bytes] = site.context.socket(zmq.ROUTER)
    port = plain.bind_to_random_port("tcp://127.0.0.1")
    client = site.knock(f"tcp://127.0.0.1:{port}")
    client.socket.send_multipart(HELLO)
    with contextlib.closing(plain):
        assert plain.poll(WAIT_MS)
        assert receive(plain, site.gate, "ingest", time.monotonic()).client.is_refused


@proves("each-message-checked", "every message is checked against the list", condition=True)
def test_a_key_that_is_revoked_while_connected_is_told_so_and_counts_no_more(site: Site) -> None:
    pair = site.pair("node1")
    site.allow(pair)
    client = site.knock(site.tcp, site.curve(pair))
    assert is_answered(site, client)
    (site.keys.allowed / "node1.pub").unlink()

    def answer() -> messages.Message | None:
        client.socket.send_multipart(messages.data(b"12345678", 0, 0, b"payload"))
        site.serve()
        if not client.socket.poll(50):
            return None
        message = messages.parse(client.socket.recv_multipart())
        return message if message.kind == messages.MessageKind.RESET else None

    reset = wait_until(answer, "a RESET")
    assert "node1" in reset.reason and "chiplog keys allow" in reset.reason
    while site.door.socket.poll(int(_LATE_S * 1000)):
        site.serve()
    before = site.gate.refused
    client.socket.send_multipart(messages.data(b"12345678", 0, 0, b"payload"))
    wait_until(lambda: site.door.socket.poll(10), "a message")
    assert site.serve() == []
    assert site.gate.refused == before + 1
    site.allow(pair)
    wait_until(lambda: is_answered(site, client, 0.1), "the key that is allowed again, on the same connection")


@proves("revoked-key-gets-nothing", "what is meant for a revoked key is not sent", condition=True)
def test_a_key_that_is_revoked_while_connected_gets_no_answer_that_was_under_way(site: Site) -> None:
    pair = site.pair("node1")
    permit = site.allow(pair)
    client = site.knock(site.tcp, site.curve(pair))
    client.socket.send_multipart(HELLO)
    assert site.door.socket.poll(WAIT_MS)
    received = site.door.receive(time.monotonic())
    assert received is not None
    reply = Reply(received.routing, messages.welcome(b"12345678", 0, 1), permit)
    site.door.reply(reply, time.monotonic())
    assert client.socket.poll(WAIT_MS)
    client.socket.recv_multipart()
    (site.keys.allowed / "node1.pub").unlink()
    wait_until(lambda: site.gate.permission_for(pair.public, "ingest", time.monotonic()) is None, "the revocation")
    site.door.reply(reply, time.monotonic())
    assert not client.socket.poll(int(_LATE_S * 1000))


@proves("no-admission-without-handler", "without a handler no client is admitted", part="1", new="0")
def test_without_a_handler_nobody_is_let_in(site: Site) -> None:
    pair = site.pair("node1")
    site.allow(pair)
    standing = site.knock(site.tcp, site.curve(pair))
    assert is_answered(site, standing)
    site.gate.close()
    client = site.knock(site.tcp, site.curve(pair))
    assert not is_answered(site, client, 2 * _LATE_S)
    assert client.handshake() is not None
    assert is_answered(site, standing), "a connection that stands is checked message by message, without the handler"


@proves("zap-handler-restarts", "a handler that died is started again", new="return")
def test_a_handler_that_dies_lets_nobody_in_and_is_started_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pair = site.pair("node1")
    site.allow(pair)

    def die(*_: object) -> Permission:
        raise MemoryError("no more")

    monkeypatch.setattr(site.gate, "_answer", die)
    client = site.knock(site.tcp, site.curve(pair))
    assert not is_answered(site, client, 2 * _LATE_S)
    wait_until(lambda: "ZAP handler ended" in caplog.text, "a line in the log")
    monkeypatch.undo()
    client.close()
    again = site.knock(site.tcp, site.curve(pair))
    assert is_answered(site, again), "the handler did not come back"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a handshake have less time than five seconds."""
    monkeypatch.setattr("chiplog_schemas.security.zap.HANDSHAKE_MS", 500)


@proves("handshake-bounded", "an unfinished handshake is aborted", part="HANDSHAKE_MS", new="0")
def test_garbage_in_place_of_a_handshake_leaves_the_gate_standing(hasty: None, site: Site) -> None:
    """Some of it is dropped by its sender, some left as it is, to be broken off by the gate."""
    chooser = random.Random(7)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(15) + b"\x01" + bytes(31)
    held = []
    try:
        for number in range(200):
            peer = socket.create_connection(("127.0.0.1", int(site.tcp.rpartition(":")[2])), timeout=WAIT_S)
            held.append(peer)
            data = chooser.randbytes(chooser.randrange(300))
            peer.sendall(greeting + data if number % 2 else data)
            if number % 4 < 2:
                held.pop().close()
        for peer in held:
            peer.settimeout(WAIT_S)
            assert is_broken_off(peer), "a half handshake is kept forever"
    finally:
        for peer in held:
            peer.close()
    pair = site.pair("node1")
    site.allow(pair)
    assert is_answered(site, site.knock(site.tcp, site.curve(pair)))


def is_broken_off(peer: socket.socket) -> bool:
    """Wait until the other end closes a connection; False when it does not."""
    try:
        while peer.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass  # reset
    return True


@proves(
    "handshake-leaves-nothing",
    "nothing is kept of a stranger's handshake",
    new="...\nself._kept = [*getattr(self, '_kept', []), b'x' * 131072]",
)
@pytest.mark.full
@pytest.mark.soak
def test_ten_thousand_handshakes_leave_nothing_behind(site: Site, rounds: Rounds) -> None:
    pair, stranger = site.pair("node1"), site.pair("mallory")
    site.allow(pair)

    def one(curve: ClientCurve, counts: bool) -> None:
        client = site.knock(site.tcp, curve)
        if counts:
            assert is_answered(site, client)
        else:
            assert client.handshake() is not None
        site.knocking.pop().close()

    for _ in range(50):
        one(site.curve(pair), True)
    gc.collect()
    memory, files = _resident_bytes(), len(os.listdir("/proc/self/fd"))
    batch = 10_000 if SOAK_MINUTES else 100
    for _ in rounds(2):
        for number in range(batch):
            one(site.curve(stranger if number % 4 == 3 else pair), number % 4 != 3)
        rounds.count("handshakes", batch)
        if SOAK_MINUTES and rounds.counts["handshakes"] >= 10_000:
            break
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files + _FILES, "closed files")
    gc.collect()
    grown = _resident_bytes() - memory
    print(f"{grown >> 10} KiB more after {rounds.counts['handshakes']} handshakes")
    assert grown < _MEMORY_BYTES
    assert is_answered(site, site.knock(site.tcp, site.curve(pair)))


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


# -- the receiving end knows senders by key --


def permit(name: str, *nodes: str) -> Permission:
    return Permission(name, frozenset({"agent"}), nodes, name)


def hello(session: bytes, first: int, node: str = "node1") -> list[bytes]:
    return messages.hello(session, bytes(16), first, {"node": node})


def kinds(actions: list[object]) -> list[str]:
    return [
        messages.MessageKind(messages.parse([bytes(frame) for frame in action.frames]).kind).name
        if isinstance(action, Reply)
        else type(action).__name__
        for action in actions
    ]


def test_a_node_that_the_key_does_not_carry_is_reset() -> None:
    machine = ReceiverProtocol(scopes=True)
    [reply] = machine.receive(b"r", hello(b"11111111", 0, "node2"), 0.0, permit("a", "node1"))
    assert isinstance(reply, Reply)
    message = messages.parse([bytes(frame) for frame in reply.frames])
    assert message.kind == messages.MessageKind.RESET and "node2" in message.reason
    assert not machine.senders


def test_no_key_takes_over_or_pushes_forward_the_numbers_of_another() -> None:
    machine = ReceiverProtocol(scopes=True)
    good, bad = permit("good", "node1"), permit("bad", "node1")
    machine.receive(b"r", hello(b"11111111", 5), 0.0, good)
    assert kinds(machine.receive(b"x", hello(b"22222222", 10**9), 0.0, bad)) == ["WELCOME", "SessionOpened"]
    assert len(machine.next_numbers) == 2
    assert sorted(machine.next_numbers.values()) == [5, 10**9]
    taken = machine.receive(b"r", messages.data(b"11111111", 5, 5, b"payload"), 0.0, good)
    assert kinds(taken) == ["DataReceived"]


def test_a_session_is_of_one_key() -> None:
    machine = ReceiverProtocol(scopes=True)
    good, bad = permit("good", "node1"), permit("bad", "node1")
    machine.receive(b"r", hello(b"11111111", 0), 0.0, good)
    for stranger in (bad, None):
        assert kinds(machine.receive(b"x", messages.data(b"11111111", 0, 0, b"payload"), 0.0, stranger)) == ["RESET"]
        assert machine.receive(b"x", messages.bye(b"11111111"), 0.0, stranger) == []
    assert kinds(machine.receive(b"r", messages.data(b"11111111", 0, 0, b"payload"), 0.0, good)) == ["DataReceived"]


def test_a_producer_belongs_to_the_key_that_came_with_it_first() -> None:
    machine = ReceiverProtocol()
    machine.receive(b"r", hello(b"11111111", 0), 0.0)
    assert kinds(machine.receive(b"x", hello(b"22222222", 10**9), 0.0, permit("bad", "*"))) == ["RESET"]
    assert machine.next_numbers == {bytes(16): 0}
    machine.forget(bytes(16))
    assert kinds(machine.receive(b"x", hello(b"22222222", 3), 0.0, permit("good", "*"))) == ["WELCOME", "SessionOpened"]
