"""A peer that uses up an agent's descriptors delays it and never ends it. The agent frees the descriptors of ranks.

Invariant: logged events are stored once, while unknown peers open more connections than the agent may have open files.
An agent has as many descriptors after thirty runs of a process as after the first ones.
"""

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import chiplog
from tests.support.hosts import Centre, Host
from tests.support.node import Node
from tests.support.ports import free_ports
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

LIMIT = 1024  # open files of an agent under attack: it needs about 20 itself
PER_TEN_MS = 10  # how many unknown peers connect: an agent checks every 50 ms
KNOCKED_S = 3.0
STARVED_S = WAIT_S / 2  # an agent that shuts its door lets ranks of its host in within 10


class Strangers:
    """They hold three times as many TCP connections as an agent can, send nothing, and reconnect when disconnected."""

    def __init__(self, port: int, count: int) -> None:
        self._address = ("127.0.0.1", port)
        self._count = count
        self._held: list[socket.socket] = []
        self.n_came = 0
        self._going = threading.Event()
        self._thread = threading.Thread(target=self._crowd)

    def __enter__(self) -> "Strangers":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._going.set()
        self._thread.join()
        for held in self._held:
            held.close()

    def _crowd(self) -> None:
        while not self._going.wait(0.01):
            self._held = [held for held in self._held if not _is_closed(held)]
            for _ in range(min(PER_TEN_MS, self._count - len(self._held))):
                try:
                    held = socket.create_connection(self._address, 1.0)
                except OSError:
                    break  # shut
                held.setblocking(False)
                self._held.append(held)
                self.n_came += 1


def _is_closed(held: socket.socket) -> bool:
    try:
        return held.recv(100) == b"" and not held.close()
    except BlockingIOError:
        return False
    except OSError:
        held.close()
        return True


def n_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.fixture(autouse=True)
def room_for_strangers() -> Iterator[None]:
    """Let the test's own process hold them all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 8 * LIMIT:
        pytest.skip(f"this test opens {3 * LIMIT} connections, and may only open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 8 * LIMIT), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "h")
    host.root.mkdir()
    host.key_directory.mkdir(mode=0o700)
    yield host
    if chiplog.run is not None:
        chiplog.finish()
    host.stop()


@proves("strangers-shut-out", "strangers cannot keep the ranks of a host out", condition=True)
@proves("shut-sockets-reopen", "what strangers were shut out of is opened again", condition=False)
def test_strangers_that_hold_all_descriptors_only_delay_what_ranks_log(host: Host) -> None:
    """They need no key to hold a connection. Ranks come another way, through the agent's Unix socket."""
    host.keys("new", "agent")
    port = free_ports()
    host.start("--bind", f"tcp://127.0.0.1:{port}")
    agent = host.agent
    assert agent is not None
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))

    def stored(run_id: str) -> list[float]:
        assert agent.poll() is None, host.output()
        return [row["value"] for row in host.try_sql(f"SELECT value FROM metrics WHERE run_id = '{run_id}' ORDER BY 1")]

    values = [float(step) for step in range(100)]
    address = host.place.agent_address
    early = chiplog.init(dir=host.root, run_id="early", agent=address, capture_console=False)
    early.log({"x": values[0]})
    wait_until(lambda: stored("early"), "a rank that is connected")
    begun = time.monotonic()
    with Strangers(port, 3 * LIMIT) as strangers:
        wait_until(lambda: strangers.n_came >= LIMIT // 2, "strangers")
        for value in values[1:]:
            early.log({"x": value})
        wait_until(lambda: stored("early") == values, "what a rank logs that was there before")
        early.finish()
        wait_until(lambda: strangers.n_came >= LIMIT, "as many strangers as an agent has descriptors")
        for run_id in ("late", "later"):
            with chiplog.init(dir=host.root, run_id=run_id, agent=address, capture_console=False) as late:
                for value in values:
                    late.log({"x": value})
            wait_until(lambda run_id=run_id: stored(run_id) == values, f"{run_id}, during the attack", STARVED_S)
    assert [stored(run_id) for run_id in ("early", "late", "later")] == [values] * 3, "none of them twice"
    wait_until(lambda: _listens(port), "TCP that is open again")
    assert agent.poll() is None
    n_minutes = int((time.monotonic() - begun) / 60.0)
    assert 1 <= host.output().count("descriptors are running out") <= 1 + n_minutes, "logged once in a minute"


@proves("receiver-descriptors-kept", "unknown peers cannot use up a receiver's descriptors")
@proves("index-descriptors-kept", "unknown peers cannot use up an index's descriptors")
@pytest.mark.full
def test_strangers_at_a_collector_only_delay_what_its_agents_and_readers_want(tmp_path: Path) -> None:
    """At both of its ports; agent and readers come another way, through its Unix sockets."""
    centre = Centre(tmp_path / "c")
    centre.root.mkdir()
    centre.key_directory.mkdir(mode=0o700)
    centre.keys("new", "collector")
    port = int(centre.address.rpartition(":")[2])
    try:
        centre.start_collector()
        centre.start_agent()
        assert centre.collector is not None
        pids = [centre.collector.pid, *_children(centre.collector.pid)]
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        values = [float(step) for step in range(100)]
        with Strangers(port, 3 * LIMIT) as at_ingest, Strangers(port + 1, 3 * LIMIT) as at_query:
            begun = time.monotonic()
            while min(at_ingest.n_came, at_query.n_came) < LIMIT or time.monotonic() < begun + KNOCKED_S:
                assert time.monotonic() < begun + WAIT_S, "no strangers came"
                for name in ("collector.sock", "query.sock"):  # without a descriptor libzmq would abort
                    with socket.socket(socket.AF_UNIX) as knocking, contextlib.suppress(BlockingIOError):
                        knocking.setblocking(False)
                        knocking.connect(str(centre.place.run / name))
                time.sleep(0.01)
            centre.log(*values)
            wait_until(lambda: centre.stored() == values, "events of a rank during the attack", STARVED_S)
        wait_until(lambda: _listens(port) and _listens(port + 1), "TCP that is open again")
        assert [centre.collector.pid, *_children(centre.collector.pid)] == pids, "no process was ended by them"
        assert "descriptors are running out" in centre.output("chiplog_collector")
    finally:
        centre.stop()


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0):
            return True
    except OSError:
        return False


@proves("finished-producer-frees-descriptor", "an agent gives back the descriptor of a producer that finished")
@pytest.mark.full
def test_many_runs_of_one_process_cost_an_agent_no_descriptors(node: Node) -> None:
    assert node.agent is not None
    pid = node.agent.pid

    def run(number: int) -> None:
        with chiplog.init(dir=node.root, run_id=f"r{number}", agent=node.place.agent_address, capture_console=False):
            pass

    def n_ranks() -> int:
        n_found = 0
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # already closed
                n_found += "pidfd" in os.readlink(entry)
        return n_found

    run(0)
    node.until("SELECT 1 FROM labels WHERE run_id = 'r0' AND state = 'finished'")  # the agent has all that it needs
    wait_until(lambda: not list(node.place.journals.iterdir()) and not n_ranks(), "the first run, delivered")
    first = n_descriptors(pid)
    for number in range(1, 30):
        run(number)
    wait_until(lambda: n_descriptors(pid) <= first and not n_ranks(), "as few descriptors as after the first run")


@proves("hard-limit-of-files", "daemons may open as many files as the hard limit allows")
def test_daemons_take_the_hard_limit_of_open_files(bare_node: Node) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # This process may have many open files: libzmq aborts where it cannot open one more.
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, n_descriptors(os.getpid()) + 256), hard))
    try:
        bare_node.start_collector()
        bare_node.start_agent()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wait_until(lambda: bare_node.try_sql("SELECT 1"), "a collector that answers")
    assert bare_node.agent is not None and bare_node.collector is not None
    receiver = bare_node.collector.pid
    [index, *_] = _children(receiver)
    for pid in (bare_node.agent.pid, receiver, index):
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (hard, hard)
