"""Two hosts on loopback, as real daemons with keys: which peers are accepted or rejected, and what each one reports.

Each host has its own CHIPLOG_DIR. The centre runs a collector, the nodes run agents.
"""

import hashlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

import chiplog
from chiplog_client.client import QueryError
from chiplog_schemas.security.key_files import host_key_name
from tests.support.hosts import Centre, Host, give
from tests.support.ports import free_ports
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_MS, WAIT_S, wait_until

pytestmark = pytest.mark.xdist_group("security")  # one worker: the fixture is expensive

ROOT = Path(__file__).resolve().parents[2]
HOST = host_key_name()


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Centre]:
    """One collector with keys for all tests: a rejected peer must not change its data."""
    centre = Centre(tmp_path_factory.mktemp("centre"))
    centre.keys("new", "collector")
    centre.start_collector()
    yield centre
    centre.stop()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / f"h{time.time_ns()}")
    host.root.mkdir()
    host.key_directory.mkdir(mode=0o700)
    yield host
    host.stop()


def refused(centre: Centre, host: Host, before: list[tuple[bytes, int]], *words: str, answers: int = 0) -> str:
    """Wait until an agent's log has one line why it is rejected; the collector accepts nothing of it.

    before: what the collector had accepted. answers: how often the agent was accepted before.
    """

    def line() -> str:
        assert host.output().count(" answers") == answers, "it is let in"
        assert centre.accepted() == before, "it stores"
        lines = [line for line in host.output().splitlines() if "out of reach" in line]
        return next((line for line in lines if all(word in line for word in words)), "")

    return str(wait_until(line, f"a line with {words} in:\n{host.output()}"))


# -- accepted peers --


@proves(
    "permit-from-handshake",
    "an agent's message is known by the key that its handshake showed",
    part="public.encode()",
    new='b""',
)
def test_an_allowed_agent_delivers_and_an_allowed_reader_reads(
    centre: Centre, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    centre.admit(host, "agent", "--node", HOST)
    centre.admit(host, "reader")
    host.start_at(centre.address)
    host.log(1.5, 2.5)
    monkeypatch.setenv("CHIPLOG_KEYS", str(host.key_directory))
    with chiplog.connect(centre.address) as client:
        wait_until(lambda: client.sql("SELECT 1 FROM metrics WHERE value = 2.5").rows(), "the rows, through CURVE")
    wait_until(lambda: "answers" in host.place.agent_link.read_text(), "what status shows")


@proves("tcp-bound-with-keys", "a TCP address is bound with keys, and says so to who comes without")
def test_an_agent_without_keys_is_told_that_it_needs_them(centre: Centre, host: Host) -> None:
    before = centre.accepted()
    host.start_at(centre.address, "--node", host.root.name)
    refused(centre, host, before, "requires keys")


@proves("handshake-checks-key", "a key that is not allowed fails in the handshake", new="if public:")
@proves("state-change-reported-once", "a change of state is reported once, however many retries follow", condition=True)
@pytest.mark.promise(8)
def test_an_agent_with_a_key_that_nobody_allowed_is_told_what_to_run(centre: Centre, host: Host) -> None:
    host.keys("new", "agent", "--name", host.root.name)
    give(centre, host)
    before = centre.accepted()
    host.start_at(centre.address, "--node", host.root.name)
    line = refused(centre, host, before, "chiplog keys allow")
    assert host.root.name in line and str(host.key_directory / "agent.pub") in line
    wait_until(lambda: "not allowed" in host.place.agent_link.read_text(), "what status shows")
    attempts = len(host.output().splitlines())
    time.sleep(1.0)
    assert len(host.output().splitlines()) == attempts, "one line, however often it tries"


@proves("domain-needs-role", "a reader's key delivers nothing", part="in permit.roles")
def test_an_agent_with_a_readers_key_is_refused(centre: Centre, host: Host) -> None:
    centre.admit(host, "agent", "--role", "reader")
    before = centre.accepted()
    host.start_at(centre.address, "--node", host.root.name)
    refused(centre, host, before, "chiplog keys allow")


@proves(
    "other-collector-named",
    "an agent reports that another collector answers than the one whose key it has",
    value='"it is another"',
)
def test_an_agent_that_expects_another_collector_says_so(centre: Centre, host: Host, tmp_path: Path) -> None:
    other = Host(tmp_path / "other")
    other.keys("new", "collector")
    centre.admit(host, "agent")
    give(other, host)
    before = centre.accepted()
    host.start_at(centre.address)
    refused(centre, host, before, "collector.pub")


@proves("agent-key-bound-to-node", "an agent's key is bound to its node's name", condition=False)
def test_an_agent_that_calls_itself_otherwise_stores_nothing(centre: Centre, host: Host) -> None:
    centre.admit(host, "agent", "--node", "another")
    before = centre.accepted()
    host.start_at(centre.address, "--node", host.root.name)
    line = refused(centre, host, before, "may speak for another")
    assert repr(host.root.name) in line


@proves("keys-used-or-nothing-sent", "an agent that has keys for its collector uses them or sends nothing")
def test_an_agent_with_keys_sends_nothing_to_a_collector_without(host: Host, tmp_path: Path) -> None:
    plain = Centre(tmp_path / "plain")
    plain.start_collector()
    try:
        other = Host(tmp_path / "other")
        other.keys("new", "collector")
        host.keys("new", "agent")
        give(other, host)
        before = plain.accepted()
        host.start_at(plain.address, "--node", host.root.name)
        refused(plain, host, before, "collector.pub")
    finally:
        plain.stop()


# -- revocation --


@proves("revocation-read-at-once", "a revocation counts without a restart", new="if self._seen:")
def test_a_key_that_is_revoked_during_a_connection_stores_nothing_more_until_it_is_allowed_again(
    centre: Centre, host: Host
) -> None:
    centre.admit(host, "agent", "--node", HOST)
    name = f"{host.root.name}-agent"
    host.start_at(centre.address)
    host.log(101.0)
    wait_until(lambda: 101.0 in centre.stored(), "the rows before")
    centre.keys("revoke", name)
    wait_until(lambda: "chiplog keys allow" in host.output(), "a refusal: until then the agent's own rows are accepted")
    before = centre.accepted()
    assert name in refused(centre, host, before, "chiplog keys allow", answers=1)
    host.log(102.0)
    assert centre.accepted() == before and 102.0 not in centre.stored()
    centre.keys("allow", str(host.key_directory / "agent.pub"), "--node", HOST)
    wait_until(lambda: 102.0 in centre.stored(), "the rows behind")
    assert [value for value in centre.stored() if 100 < value < 200] == [101.0, 102.0]


@proves("numbers-scoped-by-key", "no key reaches another's numbers, after a restart of the collector neither")
def test_a_copied_spool_with_another_key_leaves_the_numbers_of_the_first_alone(centre: Centre, host: Host) -> None:
    """An agent that sends under another's ID, and far ahead of it, must not make the collector think it has it all."""
    from chiplog_schemas.protocol import messages
    from chiplog_schemas.security.curve import client_curve
    from chiplog_schemas.security.key_files import Keys
    from chiplog_schemas.security.permissions import Role

    def hello(host: Host, first: int) -> messages.Message:
        curve = client_curve(Keys(host.key_directory), centre.address, Role.AGENT, Role.COLLECTOR)
        assert curve is not None
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            curve.configure(socket)
            socket.connect(centre.address)
            socket.send_multipart(messages.hello(os.urandom(8), b"S" * 16, first, {"node": "n"}))
            assert socket.poll(WAIT_MS)
            return messages.parse(socket.recv_multipart())

    thief = Host(host.root.parent / "thief")
    thief.key_directory.mkdir(mode=0o700, parents=True)
    for one in (host, thief):
        centre.admit(one, "agent", "--node", "n")
    time.sleep(1.0)  # of the daemon's next look
    assert hello(host, 5).next == 5
    assert hello(thief, 10**12).next == 10**12
    assert hello(host, 5).next == 5


# -- readers --


def asked(centre: Centre, keys: Path, monkeypatch: pytest.MonkeyPatch, query: str = "SELECT 1 AS one") -> Any:
    monkeypatch.setenv("CHIPLOG_KEYS", str(keys))
    with chiplog.connect(centre.address) as client:
        return client.sql(query).rows()


def let_in(centre: Centre, reader: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until the daemon has read that a reader's key is allowed."""

    def answers() -> bool:
        try:
            return bool(asked(centre, reader.key_directory, monkeypatch))
        except QueryError:
            return False

    wait_until(answers, "a reader that is let in")


@proves("handshake-checks-key", "a reader that is not allowed fails in the handshake", new="if public:")
@pytest.mark.promise(8)
@pytest.mark.parametrize("case", ["no key", "not allowed", "an agent's"])
def test_a_reader_that_is_not_allowed_is_told_so_at_once(
    centre: Centre, host: Host, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "not allowed":
        host.keys("new", "reader", "--name", "nosy")
        give(centre, host)
    elif case == "an agent's":
        centre.admit(host, "reader", "--role", "agent", "--node", "n")
    with pytest.raises(QueryError) as caught:
        asked(centre, host.key_directory, monkeypatch)
    assert caught.value.kind == "unreachable"
    assert "chiplog keys" in caught.value.message and "\n" not in caught.value.message


@proves("each-query-checked", "each question is checked against the list", condition=False)
def test_a_reader_that_is_revoked_can_ask_no_more_and_one_that_is_allowed_again_can(
    centre: Centre, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    centre.admit(host, "reader")
    let_in(centre, host, monkeypatch)
    with chiplog.connect(centre.address) as client:
        assert client.sql("SELECT 1 AS one").rows() == [{"one": 1}]
        centre.keys("revoke", f"{host.root.name}-reader")

        def refusal() -> QueryError | None:
            try:
                client.sql("SELECT 1")
            except QueryError as error:
                return error
            return None

        error = wait_until(refusal, "a refusal")
        assert error.kind in ("refused", "unreachable") and f"{host.root.name}-reader" in error.message
        centre.keys("allow", str(host.key_directory / "reader.pub"))
        wait_until(lambda: refusal() is None, "an answer")


@proves(
    "revoked-reader-gets-no-answer", "answers to a reader that was revoked in the meantime are not sent", value="True"
)
@pytest.mark.full
def test_a_reader_that_is_revoked_while_its_query_runs_gets_no_answer(
    centre: Centre, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chiplog_schemas.addresses import query_address_of
    from chiplog_schemas.query import query_messages
    from chiplog_schemas.security.curve import client_curve
    from chiplog_schemas.security.key_files import Keys
    from chiplog_schemas.security.permissions import Role

    centre.admit(host, "reader")
    let_in(centre, host, monkeypatch)
    address = query_address_of(centre.address)
    curve = client_curve(Keys(host.key_directory), address, Role.READER, Role.COLLECTOR)
    assert curve is not None
    slow = "SELECT count(*) FROM range(10_000_000_000) t(i) WHERE hash(i) = 7"
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        curve.configure(socket)
        socket.connect(address)
        socket.send_multipart(query_messages.request(b"12345678", slow, None, 5.0))
        time.sleep(0.3)
        centre.keys("revoke", f"{host.root.name}-reader")
        assert not socket.poll(7_000), "an answer to a key that was revoked: even that it took too long"


# -- files --


def test_a_saved_file_goes_over_tcp_by_its_agents_key_and_a_revoked_one_delivers_none(
    centre: Centre, host: Host, tmp_path: Path
) -> None:
    def save(name: str) -> Path:
        (tmp_path / name).write_text(f"{name} of {host.root.name}")
        with chiplog.init(dir=host.root, agent=host.place.agent_address, capture_console=False) as run:
            assert run.save(tmp_path / name) == [name]
        digest = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        return centre.place.files / digest[:2] / digest

    centre.admit(host, "agent", "--node", HOST)
    host.start_at(centre.address)
    wait_until(lambda: host.output().count(" answers"), "an agent that is let in")
    kept = save("first")
    wait_until(kept.exists, "a file that arrives")
    wait_until(lambda: not list(host.place.outbox.iterdir()), "a copy that is not needed any more")
    centre.keys("revoke", f"{host.root.name}-agent")
    wait_until(lambda: "chiplog keys allow" in host.output(), "an agent that is let in no more")
    kept = save("second")
    time.sleep(1.5)
    assert not kept.exists()
    assert len(list(host.place.outbox.iterdir())) == 1
    assert list(centre.place.files.glob("*.part")) == []


# -- ranks over TCP --


@proves("ranks-domain", "an agent's TCP address is for the keys of ranks", part='"ranks"', new='"ingest"')
def test_a_rank_reaches_an_agent_over_tcp_with_its_key_alone(
    centre: Centre, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    centre.admit(host, "agent", "--node", HOST)
    port = free_ports()
    host.start_at(centre.address, "--bind", f"tcp://127.0.0.1:{port}")
    far = Host(tmp_path / "far")
    far.keys("new", "rank")
    give(host, far, "agent")

    def log(value: float, until: Callable[[], object], what: str) -> None:
        with chiplog.init(dir=far.root, agent=f"tcp://127.0.0.1:{port}", capture_console=False) as run:
            run.log({"x": value})
            wait_until(until, what)

    log(301.0, lambda: "chiplog keys allow" in caplog.text, "one line, and the training continues")
    assert 301.0 not in centre.stored()
    host.keys("allow", str(far.key_directory / "rank.pub"))
    time.sleep(1.0)
    log(302.0, lambda: 302.0 in centre.stored(), "the rows of a rank with an allowed key")


@proves("no-foreign-connect-without-keys", "no rank reaches for another host without keys", condition=True)
def test_a_rank_without_keys_for_another_host_says_so_once_and_trains_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with chiplog.init(dir=tmp_path / "far", agent="tcp://192.0.2.1:4000", capture_console=False) as run:
        for value in range(10):
            run.log({"x": value})
        wait_until(lambda: "chiplog keys new rank" in caplog.text, "one line")
    lines = [record.getMessage() for record in caplog.records if "chiplog keys new rank" in record.getMessage()]
    assert len(lines) == 1 and "\n" not in lines[0]


# -- at the start --


def refused_start(module: str, root: Path, *flags: str) -> tuple[int, str]:
    """Start a daemon that must exit at once; return its exit code and its output. Fails if it keeps running."""
    output = root.parent / "output"
    command = [sys.executable, "-P", "-m", module, "--dir", str(root), *flags]
    with open(output, "wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        ended = wait_until(lambda: process.poll() is not None or " INFO " in output.read_text(), "an end")
        assert ended and process.poll() is not None, f"it serves: {output.read_text()}"
        return process.returncode, output.read_text()
    finally:
        process.terminate()
        process.wait(WAIT_S)


@proves("no-foreign-bind-without-keys", "nothing is bound beyond loopback without keys", condition=False)
@pytest.mark.parametrize(
    ("module", "flags", "remedy"),
    [
        ("chiplog_collector", ("--bind", "tcp://0.0.0.0:4100"), "chiplog keys new collector"),
        ("chiplog_collector", ("--bind", "tcp://127.0.0.1:4100", "--query", "tcp://*:4101"), "chiplog keys new"),
        ("chiplog_agent", ("--no-stats", "--bind", "tcp://0.0.0.0:4100"), "chiplog keys new agent"),
        ("chiplog_agent", ("--no-stats", "--collector", "tcp://192.0.2.1:4100"), "chiplog keys new agent"),
    ],
)
def test_daemons_refuse_other_hosts_without_keys_in_one_line(
    tmp_path: Path, module: str, flags: tuple[str, ...], remedy: str
) -> None:
    code, said = refused_start(module, tmp_path / "chiplog", *flags)
    assert code == 2
    assert remedy in said and len(said.splitlines()) == 1
    assert flags[-1] in said


@proves("no-foreign-connect-without-keys", "no client reaches for another host without keys", condition=True)
def test_a_client_refuses_another_host_without_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPLOG_KEYS", str(tmp_path))
    with pytest.raises(ValueError, match="chiplog keys new reader"):
        chiplog.connect("tcp://192.0.2.1:4100")


@proves("no-foreign-bind-without-keys", "keys are what lets a collector listen beyond loopback", part="keyed and not")
def test_with_keys_a_collector_listens_beyond_loopback(tmp_path: Path) -> None:
    centre = Centre(tmp_path / "wide")
    centre.keys("new", "collector")
    centre.address = centre.address.replace("127.0.0.1", "0.0.0.0")
    try:
        centre.start_collector()
        port = int(centre.address.rpartition(":")[2])
        for number in (port, port + 1):
            with socket.create_connection(("127.0.0.2", number), timeout=WAIT_S) as peer:
                assert peer.recv(1) == b"\xff"  # a ZMTP greeting
    finally:
        centre.stop()


@proves("writable-directory-refused", "a directory that others can write is refused", condition=False)
@pytest.mark.parametrize(
    ("module", "part"), [("chiplog_agent", "agent"), ("chiplog_collector", "collector"), ("chiplog_agent", "")]
)
def test_a_directory_that_others_can_write_stops_a_daemon_with_one_line(tmp_path: Path, module: str, part: str) -> None:
    directory = tmp_path / "chiplog" / part
    directory.mkdir(parents=True)
    os.chmod(directory, 0o770)
    flags = ("--no-stats",) if module == "chiplog_agent" else ()
    code, said = refused_start(module, tmp_path / "chiplog", *flags)
    assert code != 0
    assert f"{directory} is writable by others; chmod go-w it" in said
    assert len(said.splitlines()) == 1


@proves("writable-directory-refused", "a rank writes nothing where others can write", condition=False)
def test_a_rank_whose_directory_others_can_write_keeps_its_events_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "chiplog"
    root.mkdir()
    os.chmod(root, 0o777)
    with chiplog.init(dir=root, mode="offline", capture_console=False) as run:
        run.log({"x": 1.0})
    assert "chmod go-w" in caplog.text
    assert list(root.iterdir()) == []


@proves("private-socket", "a socket is of its user alone")
def test_sockets_and_secrets_are_of_their_user_alone(centre: Centre) -> None:
    for path in (*centre.place.run.glob("*.sock"), centre.key_directory / "collector.key"):
        assert path.stat().st_mode & 0o777 == 0o600, path
    for directory in (centre.place.run, centre.place.collector, centre.place.collector / "log", centre.key_directory):
        assert directory.stat().st_mode & 0o777 == 0o700, directory


# -- a handler that dies --

_WITH_A_MORTAL_HANDLER = """
import runpy, sys
from pathlib import Path
from chiplog_schemas.security import zap

answer, dies = zap.ZapAuthenticator._answer, Path(sys.argv.pop(1))

def mortal(self, request):
    if dies.exists():
        raise MemoryError("killed by the test")
    return answer(self, request)

zap.ZapAuthenticator._answer = mortal
runpy.run_module("chiplog_collector", run_name="__main__", alter_sys=True)
"""


@proves(
    "failed-zap-admits-none",
    "a ZAP handler that fails accepts no peer",
    new="request = socket.recv_multipart()\n"
    "try:\n"
    "    socket.send_multipart(self._answer(request))\n"
    "except MemoryError:\n"
    '    answer = [*request[:2], b"200", b"", z85.encode(request[6]), b""]\n'
    "    socket.send_multipart(answer)",
)
@proves("zap-handler-restarts", "a ZAP handler that died is started again", new="return")
@pytest.mark.full
def test_a_collector_whose_zap_handler_dies_lets_nobody_in_and_heals(host: Host, tmp_path: Path) -> None:
    centre = Centre(tmp_path / "centre")
    centre.keys("new", "collector")
    dies = tmp_path / "dies"
    dies.touch()
    with open(centre.root / "chiplog_collector.log", "ab") as log:
        flags = [str(dies), "--dir", str(centre.root), "--bind", centre.address]
        centre.collector = subprocess.Popen(
            [sys.executable, "-c", _WITH_A_MORTAL_HANDLER, *flags], stdout=log, stderr=log
        )
    try:
        centre.admit(host, "agent", "--node", HOST)
        wait_until(lambda: centre.try_sql("SELECT 1"), "a collector that answers")
        host.start_at(centre.address)
        host.log(7.0)

        def has_ended() -> bool:
            assert centre.stored() == [], "it is let in"
            return "ZAP handler ended" in centre.output("chiplog_collector")

        wait_until(has_ended, "a line in the collector's log")
        wait_until(lambda: "out of reach" in host.output(), "an agent that was not let in")
        assert centre.stored() == []
        dies.unlink()
        wait_until(lambda: centre.stored() == [7.0], "the rows, once the handler lives")
    finally:
        centre.stop()


# -- the documentation --


@proves("agent-key-names-node", "an agent's key that was allowed as the page says speaks for its node", condition=False)
def test_the_commands_of_the_deployment_page_connect_two_hosts(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deploy/README.md, section Keys, with `collector$` and `node$` as prompts of two directories."""
    page = (ROOT / "deploy" / "README.md").read_text()
    section = page[page.index("## Keys") :]
    commands = re.findall(r"^    (collector|node)\$ (.+?)(?: +#.*)?$", section, flags=re.MULTILINE)
    assert len(commands) >= 5
    centre = Centre(tmp_path / "centre")
    hosts: dict[str, Host] = {"collector": centre, "node": host}
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    environment |= {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
    for where, command in commands:
        on = hosts[where]
        on.root.mkdir(exist_ok=True)
        # What scp carries between hosts, cp carries between directories.
        command = re.sub(r"COLLECTOR_HOST:", f"{centre.root}/", command)
        command = command.replace("/var/lib/chiplog-collector/", "").replace("scp ", "cp ")
        here = environment | {"CHIPLOG_DIR": str(on.root)}
        done = subprocess.run(
            ["bash", "-ec", command], cwd=on.root, env=here, capture_output=True, text=True, timeout=WAIT_S
        )
        assert done.returncode == 0, f"{where}$ {command}\n{done.stderr}"
    try:
        centre.start_collector()
        host.start_at(centre.address)
        host.log(9.0)
        wait_until(lambda: centre.stored() == [9.0], "the rows of the node")
        assert asked(centre, host.key_directory, monkeypatch) == [{"one": 1}]
    finally:
        centre.stop()
