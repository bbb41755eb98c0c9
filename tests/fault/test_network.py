"""The network between agents and collector fails in every way: events come late, never wrong; training waits for none.

Real hosts as far as one machine has them: network namespaces (network.py). Agents on the first hosts, the collector on
the last, TCP with keys between them, and on each agent's host a rank that logs all the while, judged by the oracle.
All faults of this module run at the same time, each in a network of its own; each test then looks at one.
"""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zmq

import chiplog
from chiplog_schemas.limits import PEER_SILENT_S
from chiplog_schemas.paths import make_private, places
from chiplog_schemas.process.file_lock import holder_of
from chiplog_schemas.security.key_files import KeyPair, read_public, write_pair, write_permit
from chiplog_schemas.security.permissions import Permit, Role
from tests.conftest import wait_until
from tests.fault.network import Network, need, need_network_tools
from tests.fault.oracle import ORACLE, compare
from tests.fault.switch_off import Safeguard
from tests.soak import SOAK_MINUTES, Rounds

pytestmark = pytest.mark.xdist_group("network")  # one worker: what its fixture does is costly

PORT = 7447
PAUSE_S = 0.002  # between two log() calls
SLOW_PAUSE_S = 0.01  # what a link with loss can carry five times
BEFORE_S = 2.0  # of undisturbed logging, to compare with
LONG_S = PEER_SILENT_S + 3.0
RECONNECT_S = 120.0  # generous: it takes up to five, of a machine that has nothing else to do
SETTLE_S = 180.0
LOOK_S = 0.1
FAST = 5.0  # a backlog comes so many times as fast as it arose
TRIES = 3  # for one that nothing disturbs: a machine that is busy may stand still for seconds
AGAIN_S = 5.0  # of a cut in a further try
LATE_S = 0.2  # a look that came so much too late: this process itself was not let run, so nor were others
IDLE_LEAST = 0.1  # of the machine's time; below it, what drains waits for a processor
RESETS = 6
BEGIN_S = 0.5  # until a fault that was ordered is there
EXTRA_EVENTS = 10  # that a rank says besides the oracle's

SAFEGUARDS = [
    Safeguard(
        "a peer that fell silent is given up",
        "schemas/chiplog_schemas/protocol/delivery.py",
        old="        if now - self._heard_at > PEER_SILENT_S:\n            return self._close(",
        new="        if False:\n            return self._close(",
        test="test_a_connection_that_was_forgotten_on_the_way_is_replaced_and_dropped",
    ),
    Safeguard(
        "a connection on which nothing is acknowledged is closed by the kernel",
        "schemas/chiplog_schemas/transport/router.py",
        old="    router.setsockopt(zmq.TCP_MAXRT,",
        new="    (zmq.TCP_MAXRT,",
        test="test_a_connection_that_was_forgotten_on_the_way_is_replaced_and_dropped",
    ),
    Safeguard(
        "an idle connection is probed by the kernel",
        "schemas/chiplog_schemas/transport/router.py",
        old="    router.setsockopt(zmq.TCP_KEEPALIVE, 1)",
        new="    router.setsockopt(zmq.TCP_KEEPALIVE, 0)",
        test="test_the_connection_of_a_host_that_vanished_is_dropped",
    ),
    Safeguard(
        "what was sent in a session that ended is sent again",
        "schemas/chiplog_schemas/transport/dealer.py",
        old="                    self._source.seek(number)\n",
        new="",
        test="test_connections_that_are_reset_are_replaced",
    ),
    Safeguard(
        "what was sent in a session that a cut ended is sent again",
        "schemas/chiplog_schemas/transport/dealer.py",
        old="                    self._source.seek(number)\n",
        new="",
        test="test_a_cut_towards_the_collector_only_delays",
    ),
    Safeguard(
        "a peer that was given up is tried again soon",
        "schemas/chiplog_schemas/protocol/delivery.py",
        old="        self._retry_at = now + self._backoff_s * self._jitter()\n",
        new="        self._retry_at = now + 600.0\n",
        test="test_a_cut_towards_the_agent_only_delays",
    ),
    Safeguard(
        "what a session that was given up had in flight no longer counts against the credit",
        "schemas/chiplog_schemas/protocol/delivery.py",
        old="        self._in_flight.clear()\n        self.in_flight_bytes = 0\n",
        new="        self._in_flight.clear()\n        self.in_flight_bytes = 1 << 40\n",
        test="test_a_pulled_cable_only_delays",
    ),
    Safeguard(
        "a backlog is sent in large pieces, many of them before the first is acknowledged",
        "schemas/chiplog_schemas/transport/dealer.py",
        old="            piece = self._source.read(min(window, BATCH_BYTES_MAX))\n",
        new="            piece = None if self.machine.in_flight_bytes else self._source.read(1)\n",
        test="test_a_slow_and_lossy_link_drains_five_times_as_fast_as_events_arrive",
    ),
    Safeguard(
        "a backlog is sent as fast as the collector takes it",
        "schemas/chiplog_schemas/transport/dealer.py",
        old="            piece = self._source.read(min(window, BATCH_BYTES_MAX))\n",
        new="            if now < getattr(self, '_paced_until', 0.0):\n                return\n"
        "            self._paced_until = now + 0.04\n            piece = self._source.read(1)\n",
        test="test_a_long_cut_of_one_node_delays_that_node_alone",
    ),
    Safeguard(
        "the spool keeps what the collector has not acknowledged",
        "schemas/chiplog_schemas/transport/dealer.py",
        old="                self._act([self.machine.data(piece.first, piece.last, piece.payload, now)])\n",
        new="                self._act([self.machine.data(piece.first, piece.last, piece.payload, now)])\n"
        "                self._source.acknowledged(piece.last + 1)\n",
        test="test_a_collector_whose_host_vanished_goes_on_at_another",
    ),
    Safeguard(
        "each session that opens says where to read on",
        "schemas/chiplog_schemas/protocol/delivery.py",
        old="            return [Resume(message.next)]\n",
        new="            return [Resume(message.next)] if self.sessions == 1 else []\n",
        test="test_a_flapping_link_only_delays",
    ),
    Safeguard(
        "whatever ends a session, another is tried soon",
        "schemas/chiplog_schemas/protocol/delivery.py",
        old="        self._retry_at = now + self._backoff_s * self._jitter()\n",
        new="        self._retry_at = now + 600.0\n",
        test="test_a_network_that_fails_at_random_loses_and_doubles_nothing",
        environment={"CHIPLOG_FAULT_SEED": "561"},
    ),
]

_opening = threading.Semaphore(2)  # the start of daemons is what costs
_OWN = ("CHIPLOG_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "MPI_")


class Look(NamedTuple):
    """How many there were at one moment."""

    at: float
    count: int


class Watch:
    """Looks at one label again and again, in two threads: at the oracle's file, and at SQL."""

    def __init__(self, site: "Site", label: str, file: Path) -> None:
        self.logged: list[Look] = [Look(time.monotonic(), 0)]  # lines in the file
        self.stored: list[Look] = [Look(time.monotonic(), 0)]  # events in SQL
        self._site = site
        self._label = label
        self._file = file
        self._idle: list[tuple[float, float, float]] = []  # moment, idle and all seconds of the machine so far
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=look, daemon=True) for look in (self._look_at_file, self._look_at_sql)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def logged_at(self, moment: float) -> float:
        """Return how many lines there were, between two looks by the rule of proportion."""
        looks = self.logged[:]
        after = next((look for look in looks if look.at >= moment), looks[-1])
        before = [look for look in looks if look.at <= moment][-1]
        share = (moment - before.at) / (after.at - before.at) if after.at > before.at else 0.0
        return before.count + share * (after.count - before.count)

    def stored_at(self, moment: float) -> int:
        return [look for look in self.stored if look.at <= moment][-1].count

    def logged_per_s(self, begun: float, ended: float) -> float:
        return (self.logged_at(ended) - self.logged_at(begun)) / (ended - begun)

    def longest_pause_s(self, begun: float, ended: float) -> float:
        """Return how long no line was written at a stretch."""
        looks = [look for look in self.logged if begun <= look.at <= ended]
        grown = [begun] + [b.at for a, b in itertools.pairwise(looks) if b.count > a.count] + [ended]
        return max(b - a for a, b in itertools.pairwise(grown))

    def disturbance(self, begun: float, ended: float) -> str:
        """Return how the machine was kept busy by others meanwhile, '' when it was not."""
        looks = [look.at for look in self.logged if begun - LOOK_S <= look.at <= ended + LOOK_S]
        latest_s = max((b - a for a, b in itertools.pairwise(looks)), default=ended - begun) - LOOK_S
        if latest_s > LATE_S:
            return f"this process stood still for {latest_s:.1f} s"
        idle = [(idle, total) for at, idle, total in self._idle if begun - LOOK_S <= at <= ended + LOOK_S]
        share = (idle[-1][0] - idle[0][0]) / max(idle[-1][1] - idle[0][1], 1e-9) if idle else 0.0
        return f"the machine was idle for {share:.0%} only" if share < IDLE_LEAST else ""

    def _look_at_file(self) -> None:
        size = count = 0
        while not self._stopping.wait(LOOK_S):
            if self._file.exists():
                with open(self._file, "rb") as file:
                    file.seek(size)
                    new = file.read()
                size += len(new)
                count += new.count(b"\n")
            self.logged.append(Look(time.monotonic(), count))
            self._idle.append((self.logged[-1].at, *_processors()))

    def _look_at_sql(self) -> None:
        while not self._stopping.wait(LOOK_S):
            rows = self._site.sql("SELECT stored FROM completeness WHERE label = ?", [self._label])
            if rows:
                self.stored.append(Look(time.monotonic(), rows[0]["stored"]))


def _processors() -> tuple[float, float]:
    """Return the idle and all time of the machine's processors so far, in ticks."""
    times = [int(word) for word in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return times[3] + times[4], sum(times)


@dataclass
class Drain:
    """How a backlog came out: how many times as fast as it had arisen, and what kept the machine busy meanwhile."""

    ratio: float
    disturbance: str


class Site:
    """A collector on the last host of a network, an agent and a rank on each other."""

    def __init__(self, directory: Path, network: Network, hosts: int, pause_s: float = PAUSE_S) -> None:
        self.network = network
        self.collector_host = hosts
        self.nodes = list(range(1, hosts))
        self.log: list[str] = []
        self._directory = directory
        self._client: chiplog.query.client.Client | None = None
        self._lock = threading.Lock()
        self._collector: subprocess.Popen[bytes] | None = None
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self._pause_s = pause_s
        self._ranks: list[subprocess.Popen[bytes]] = []
        self.address = f"tcp://{network.address(hosts)}:{PORT}"
        self.watches: dict[int, Watch] = {}

    def open(self) -> None:
        """Start everything, and wait until events of each rank are in SQL."""
        self._make_keys()
        with _opening:
            self._open()
        time.sleep(BEFORE_S)

    def _open(self) -> None:
        self.start_collector()
        for node in self.nodes:
            self.start_agent(node)
        for node in self.nodes:
            wait_until(lambda node=node: holder_of(places(self.root(node)).agent / "lock") > 0, "an agent")
            self._start_rank(node)
        self.watches = {node: Watch(self, self.label(node), self.file(node)) for node in self.nodes}
        for node in self.nodes:
            wait_until(lambda node=node: self.watches[node].stored[-1].count > 100, "events of a rank in SQL")

    def label(self, node: int) -> str:
        return f"rank{node}"

    def root(self, host: int) -> Path:
        return self._directory / f"node{host}"

    def file(self, node: int) -> Path:
        return self._directory / f"{self.label(node)}.oracle"

    # -- processes --

    def start_collector(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None
        self._collector = self._start(self.collector_host, ["-m", "chiplog_collector"], "--bind", self.address)

    def start_agent(self, node: int) -> None:
        self.agents[node] = self._start(node, ["-m", "chiplog_agent"], "--no-stats", "--collector", self.address)

    def _environ(self, host: int) -> dict[str, str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
        return {**environ, "CHIPLOG_DIR": str(self.root(host))}

    def _start(self, host: int, program: Sequence[str], *arguments: str) -> "subprocess.Popen[bytes]":
        self.root(host).mkdir(mode=0o700, exist_ok=True)
        with open(self.root(host) / f"{Path(program[-1]).stem}.log", "ab") as log:
            command = [sys.executable, "-P", *program, *arguments]
            return self.network.start(
                host, command, env=self._environ(host), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _start_rank(self, node: int) -> None:
        count = ["--events", "100000000", "--pause-s", str(self._pause_s), "--label", self.label(node)]
        self._ranks.append(self._start(node, [ORACLE], str(self.file(node)), *count))

    def _make_keys(self) -> None:
        """Give each host its key; the collector's public half to all, theirs to the collector."""
        server = self._new_key(self.collector_host, Role.COLLECTOR)
        make_private(server / "allowed")
        for node in self.nodes:
            own = self._new_key(node, Role.AGENT)
            shutil.copy(server / "collector.pub", own)
            key = read_public(own / "agent.pub")
            write_permit(server / "allowed", Permit(key.name, frozenset({Role.AGENT}), (key.name,), key.public))

    def _new_key(self, host: int, role: Role) -> Path:
        directory = self.root(host) / "keys"
        make_private(directory)
        public, secret = zmq.curve_keypair()
        write_pair(directory, KeyPair(f"node{host}", role, public.decode(), secret.decode()))
        return directory

    # -- questions, which pass no network: they are asked at the collector's Unix socket --

    def sql(self, query: str, params: list[Any]) -> list[dict[str, Any]]:
        """Return the rows; none while nobody answers."""
        with self._lock:
            try:
                if self._client is None:
                    self._client = chiplog.connect(dir=self.root(self.collector_host))
                rows: list[dict[str, Any]] = self._client.sql(query, params).rows()
                return rows
            except (chiplog.query.client.QueryError, chiplog.query.client.NoDataError):
                return []

    # -- what a fault did --

    def check_fault(self, begun: float, ended: float, node: int = 1, *, silent: bool = True) -> None:
        """Check that the rank went on at its pace during a fault, and in a silent one that nothing came through."""
        watch = self.watches[node]
        before = watch.logged_per_s(begun - BEFORE_S, begun)
        during = watch.logged_per_s(begun, ended)
        pause_s = watch.longest_pause_s(begun, ended)
        self.say(
            f"{ended - begun:.1f} s of fault; log() {before:.0f}/s before, {during:.0f}/s meanwhile, "
            f"at most {pause_s:.1f} s between two looks that saw a new one"
        )
        assert during > before / 5, f"the rank logged {during:.0f}/s during the fault, {before:.0f}/s before"
        assert pause_s < max(2.0, (ended - begun) / 2), f"the rank stood still for {pause_s:.1f} s"
        if silent:  # what was on its way when it began may arrive
            stored, logged = watch.stored_at(ended), watch.logged_at(begun + BEGIN_S) + EXTRA_EVENTS
            assert stored <= logged, f"{stored} events are in SQL, {logged:.0f} were logged: this was no fault"

    def check_healed(self, healed: float, node: int = 1) -> Drain:
        """Wait until what waited is stored; return how much faster it came than it was logged."""
        watch = self.watches[node]
        before = watch.stored_at(healed)
        found = lambda: [look for look in watch.stored if look.at > healed and look.count > before + 5]  # noqa: E731
        opened = wait_until(found, "events after the fault", RECONNECT_S)[0]
        last = [look for look in watch.stored if look.at < opened.at][-1]
        rate = watch.logged_per_s(healed - BEFORE_S, healed)

        waited = watch.logged_at(healed)
        there = lambda: [look for look in found() if look.count >= waited]  # noqa: E731
        done = wait_until(there, "all that waited in SQL", SETTLE_S)[0]
        drained, took_s = done.count - last.count, done.at - last.at
        self.say(
            f"reconnected {opened.at - healed:.1f} s after healing; {drained} events drained in {took_s:.1f} s: "
            f"{drained / took_s:.0f}/s, {drained / took_s / rate:.1f} times the rate of arrival"
        )
        return Drain(drained / took_s / rate, watch.disturbance(healed - BEFORE_S, done.at))

    def finish(self) -> None:
        """Kill the ranks, let everything come out, and compare."""
        for rank in self._ranks:
            rank.send_signal(signal.SIGKILL)
            rank.wait()
        for node in self.nodes:
            self._check_all_is_there(node)
        for watch in self.watches.values():
            watch.stop()

    def _check_all_is_there(self, node: int) -> None:
        query = (
            "SELECT c.* FROM completeness c JOIN labels USING (run_id, label, attempt) WHERE label = ? "
            "AND state = 'crashed' AND pending = 0 AND reason NOT LIKE 'node % is lost%'"
        )
        label = self.label(node)
        [row] = wait_until(lambda: self.sql(query, [label]), f"{label} complete; {self.outputs()}", SETTLE_S)
        assert row["lost"] == 0, row
        rows = self.sql("SELECT step, value FROM metrics WHERE label = ? AND key = 'value'", [label])
        verdict = compare(self.file(node), rows)
        assert verdict.ok, verdict
        assert len(verdict.extra) <= 1, verdict
        self.say(f"{label}: {verdict.expected} events, 0 lost, 0 doubled, 0 pending")

    def say(self, line: str) -> None:
        self.log.append(line)

    def outputs(self) -> str:
        logs = sorted(self._directory.glob("node*/*.log"))
        return "\n".join(f"{log.parent.name}/{log.name}:\n{log.read_text()[-2000:]}" for log in logs)

    def close(self) -> None:
        for watch in self.watches.values():
            watch.stop()
        if self._client is not None:
            self._client.close()


# -- the faults -------------------------------------------------------------------------------------------------------


@dataclass
class Fault:
    """One way to fail: `run` breaks and mends the network of a site, and checks what follows."""

    run: Callable[[Site], None]
    hosts: int = 2
    pause_s: float = PAUSE_S
    slow: tuple[int, ...] = ()


def hold(site: Site, seconds: float, heal: Callable[[], object], *, silent: bool = True) -> Drain:
    """Let a fault that was just begun last, end it, check both; return how what waited drained."""
    begun = time.monotonic()
    time.sleep(seconds)
    ended = time.monotonic()
    heal()
    site.check_fault(begun, ended, silent=silent)
    return site.check_healed(ended)


def drain_fast(site: Site, seconds: float, cut: Callable[[], object], heal: Callable[[], object]) -> None:
    """Let a cut last, and want what waited to come FAST times as fast as it arose.

    The first try that nothing disturbed counts. Where all were, all that can be wanted is that it came faster than it
    arose.
    """
    ratios: list[float] = []
    for is_again in range(TRIES):
        cut()
        drain = hold(site, AGAIN_S if is_again else seconds, heal)
        site.say(f"this try was disturbed: {drain.disturbance}" if drain.disturbance else "nothing disturbed this try")
        if not drain.disturbance:
            assert drain.ratio >= FAST, f"what waited came {drain.ratio:.1f} times as fast as it arose, undisturbed"
            return
        ratios.append(drain.ratio)
    assert max(ratios) > 1.0, f"what waited came {ratios} times as fast as it arose"


def cut_towards_collector(site: Site) -> None:
    site.network.cut(2, 1)
    hold(site, LONG_S, lambda: site.network.heal(2))


def cut_towards_agent(site: Site) -> None:
    site.network.cut(1, 2)
    hold(site, LONG_S, lambda: site.network.heal(1), silent=False)  # its last word arrives, and again


def long_cut_of_one_node(site: Site) -> None:
    begun = time.monotonic()

    def cut() -> None:
        site.network.cut(3, 1)
        site.network.cut(1, 3)

    drain_fast(site, LONG_S, cut, lambda: (site.network.heal(1), site.network.heal(3)))
    other, ended = site.watches[2], begun + LONG_S
    came = other.stored_at(ended) - other.stored_at(begun)
    assert came > (other.logged_at(ended) - other.logged_at(begun)) / 2, "the other node had to wait too"


def cable_pulled(site: Site) -> None:
    site.network.unplug(1)
    hold(site, LONG_S, lambda: site.network.plug(1))


def host_vanishes(site: Site) -> None:
    """The collector's host is gone without a word; another with the same address and disk takes its place."""
    begun = time.monotonic()
    site.network.vanish(2)
    time.sleep(4.0)
    ended = time.monotonic()
    site.network.appear(2)
    site.start_collector()
    site.check_fault(begun, ended, silent=False)
    site.check_healed(ended)


def connection_forgotten(site: Site) -> None:
    """A middlebox forgets the connection: both ends think that it stands, for ever. New ones pass."""
    begun = time.monotonic()
    ports = site.network.forget_flows(2, 1, PORT)
    assert ports, "the agent was not connected"
    time.sleep(1.5)  # what was in the collector's hands already
    site.check_healed(time.monotonic())
    still = lambda: set(ports) & set(site.network.connected_ports(2, 1, PORT))  # noqa: E731
    wait_until(lambda: not still(), "the collector to drop what is dead")
    site.say(f"the collector dropped the dead connection {time.monotonic() - begun:.0f} s after its last word")


def agents_host_vanishes(site: Site) -> None:
    """An agent's host is gone without a word, and its connection was idle: nothing waits for an answer."""
    site.agents[1].send_signal(signal.SIGSTOP)
    time.sleep(1.0)
    begun = time.monotonic()
    assert site.network.connected_ports(2, 1, PORT), "the agent was not connected"
    site.network.vanish(1)
    wait_until(lambda: not site.network.connected_ports(2, 1, PORT), "the collector to drop what is dead")
    site.say(f"the collector dropped the dead connection after {time.monotonic() - begun:.0f} s")
    site.network.appear(1)
    site.start_agent(1)


def connections_reset(site: Site) -> None:
    for _ in range(RESETS):  # what they meet may be an acknowledgement, and nothing lost
        site.network.reset(2, 1)
        time.sleep(0.3)
        site.network.heal(2)
        time.sleep(0.5)
    site.network.reset(2, 1)
    hold(site, 4.0, lambda: site.network.heal(2))


def slow_and_lossy(site: Site) -> None:
    """50 ms ± 20 each way, 2 % of the frames lost; and then cut on top of it."""
    about = site.network.run(1, "ss", "-Htin", f"dport = :{PORT}")
    round_trip_ms = float(about.partition(" rtt:")[2].partition("/")[0])
    site.say(f"round trips of {round_trip_ms:.0f} ms")
    assert round_trip_ms > 60, "this link is not slow"
    drain_fast(site, 8.0, lambda: site.network.cut(2, 1), lambda: site.network.heal(2))


def flapping(site: Site) -> None:
    """The cable is loose; each other time a firewall on the way forgets what passed it, and resets connections."""
    chooser = random.Random(1)
    begun = time.monotonic()
    for number in range(10):
        site.network.reset(2, 1) if number % 2 else site.network.unplug(1)
        time.sleep(chooser.uniform(0.1, 1.2))
        site.network.heal(2) if number % 2 else site.network.plug(1)
        time.sleep(chooser.uniform(0.1, 0.6))
    ended = time.monotonic()
    site.check_fault(begun, ended, silent=False)
    site.check_healed(ended)


FAULTS = {
    "test_a_cut_towards_the_collector_only_delays": Fault(cut_towards_collector),
    "test_a_cut_towards_the_agent_only_delays": Fault(cut_towards_agent),
    "test_a_long_cut_of_one_node_delays_that_node_alone": Fault(long_cut_of_one_node, hosts=3),
    "test_a_pulled_cable_only_delays": Fault(cable_pulled),
    "test_a_collector_whose_host_vanished_goes_on_at_another": Fault(host_vanishes),
    "test_a_connection_that_was_forgotten_on_the_way_is_replaced_and_dropped": Fault(connection_forgotten),
    "test_the_connection_of_a_host_that_vanished_is_dropped": Fault(agents_host_vanishes),
    "test_connections_that_are_reset_are_replaced": Fault(connections_reset),
    "test_a_slow_and_lossy_link_drains_five_times_as_fast_as_events_arrive": Fault(
        slow_and_lossy, pause_s=SLOW_PAUSE_S, slow=(2,)
    ),
    "test_a_flapping_link_only_delays": Fault(flapping),
}


def suffer(fault: Fault, directory: Path) -> list[str]:
    """Run one fault in a network of its own; return what was seen."""
    directory.mkdir(exist_ok=True)
    with Network(fault.hosts, slow=fault.slow) as network:
        site = Site(directory, network, fault.hosts, fault.pause_s)
        try:
            site.open()
            fault.run(site)
            site.finish()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{site.log}\n{site.outputs()}") from error
        finally:
            site.close()
        return site.log


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, "Future[list[str]]"]]:
    """All faults whose tests were asked for, at the same time: most of their time is waiting."""
    need_network_tools()
    names = [item.name for item in request.session.items if item.path == request.path and item.name in FAULTS]
    with ThreadPoolExecutor(len(FAULTS)) as pool:
        root = tmp_path_factory.mktemp("network")
        yield {name: pool.submit(suffer, FAULTS[name], root / str(n)) for n, name in enumerate(names)}


Outcomes = dict[str, "Future[list[str]]"]


def seen(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    for line in outcomes[request.node.name].result():
        print(line)


def test_a_cut_towards_the_collector_only_delays(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


def test_a_cut_towards_the_agent_only_delays(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


def test_a_long_cut_of_one_node_delays_that_node_alone(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


def test_a_pulled_cable_only_delays(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


def test_a_collector_whose_host_vanished_goes_on_at_another(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


def test_a_connection_that_was_forgotten_on_the_way_is_replaced_and_dropped(
    outcomes: Outcomes, request: pytest.FixtureRequest
) -> None:
    seen(outcomes, request)


def test_the_connection_of_a_host_that_vanished_is_dropped(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


def test_connections_that_are_reset_are_replaced(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


def test_a_slow_and_lossy_link_drains_five_times_as_fast_as_events_arrive(
    outcomes: Outcomes, request: pytest.FixtureRequest
) -> None:
    seen(outcomes, request)


def test_a_flapping_link_only_delays(outcomes: Outcomes, request: pytest.FixtureRequest) -> None:
    seen(outcomes, request)


def test_a_missing_command_is_named_with_its_package() -> None:
    with pytest.raises(pytest.fail.Exception, match="the command no-such-command is missing; apt-get install no-such"):
        need({"sh": "dash", "no-such-command": "no-such"})


# -- at random --------------------------------------------------------------------------------------------------------


def fail_at_random(site: Site, chooser: random.Random, longest_s: float) -> str:
    """Break one thing for a while; return its name."""
    network, collector = site.network, site.collector_host
    node = chooser.choice(site.nodes)
    fault = chooser.choice(["cut in", "cut out", "cut both ways", "unplug", "reset", "forget", "unplug collector"])
    if fault in ("cut in", "cut both ways"):
        network.cut(node, collector)
    if fault in ("cut out", "cut both ways"):
        network.cut(collector, node)
    if fault == "reset":
        network.reset(collector, node)
    if fault == "forget":
        network.forget_flows(collector, node, PORT)
    if fault.startswith("unplug"):
        network.unplug(collector if fault == "unplug collector" else node)
    time.sleep(chooser.uniform(0.1, longest_s))
    for host in (node, collector):
        if fault != "forget":
            network.heal(host)
        network.plug(host)
    time.sleep(chooser.choice([0.0, 0.2, 2.0]))
    return fault


@pytest.mark.soak(2)
def test_a_network_that_fails_at_random_loses_and_doubles_nothing(tmp_path: Path, rounds: Rounds) -> None:
    """Invariant: whatever happens between two agents and their collector, all events come out once."""
    longest_s, faults = (1.5 * PEER_SILENT_S, 2) if SOAK_MINUTES else (1.5, 3)
    for seed in rounds(1):
        chooser = random.Random(seed)
        directory = tmp_path / str(seed)
        directory.mkdir()
        slow = chooser.choice([(), (3,)])
        with Network(3, slow=slow) as network:
            site = Site(directory, network, 3, SLOW_PAUSE_S)
            try:
                site.open()
                for _ in range(faults):
                    rounds.count(fail_at_random(site, chooser, longest_s))
                healed = time.monotonic()
                for node in site.nodes:
                    site.check_healed(healed, node)
                site.finish()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, slow {slow}: {error}\n{site.log}\n{site.outputs()}") from error
            finally:
                site.close()
        print(f"seed {seed}:", *site.log, sep="\n")
