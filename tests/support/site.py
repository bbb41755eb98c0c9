"""Hosts in network namespaces with agents, ranks and a collector, watched while the network fails."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import zmq

import chiplog
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.security.key_files import KeyPair, read_public, write_pair, write_permit
from chiplog_schemas.security.permissions import Permission, Role
from tests.support.network import Network
from tests.support.oracle import ORACLE, compare
from tests.support.waiting import WAIT_S, wait_until

PORT = 7447
PAUSE_S = 0.002  # between two log() calls
BEFORE_S = 2.0  # of undisturbed logging, to compare with
RECONNECT_S = WAIT_S  # generous: a reconnect takes up to five on an idle machine
SETTLE_S = WAIT_S
LOOK_S = 0.1
LATE_S = 0.2  # a check that is this late: this process itself was not scheduled, so others were not either
IDLE_LEAST = 0.1  # of the machine's time; below it, what drains waits for a processor
BEGIN_S = 0.5  # until a fault that was ordered is there
EXTRA_EVENTS = 10  # that a rank sends in addition to the oracle's
_opening = threading.Semaphore(2)  # the start of daemons is what costs
_OWN = ("CHIPLOG_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "MPI_")


class Look(NamedTuple):
    """How many there were at one moment."""

    at: float
    count: int


class Watch:
    """Polls one label in two threads: the oracle's file, and SQL."""

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
        """Return the number of lines at a time between two polls, by interpolation."""
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
        """Return what else kept the machine busy during the measurement, '' if nothing did."""
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
    """How a backlog came out: how many times as fast as it had arisen, and what else kept the machine busy."""

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
        self._client: chiplog.Client | None = None
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
            wait_until(
                lambda node=node: lock_holder_pid(paths_for_root(self.root(node)).agent / "lock") > 0, "an agent"
            )
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
        ensure_private_dir(server / "allowed")
        for node in self.nodes:
            own = self._new_key(node, Role.AGENT)
            shutil.copy(server / "collector.pub", own)
            key = read_public(own / "agent.pub")
            write_permit(server / "allowed", Permission(key.name, frozenset({Role.AGENT}), (key.name,), key.public))

    def _new_key(self, host: int, role: Role) -> Path:
        directory = self.root(host) / "keys"
        ensure_private_dir(directory)
        public, secret = zmq.curve_keypair()
        write_pair(directory, KeyPair(f"node{host}", role, public.decode(), secret.decode()))
        return directory

    # -- questions, which pass no network: they are asked at the collector's Unix socket --

    def sql(self, query: str, params: list[Any]) -> list[dict[str, Any]]:
        """Return the rows; none while no collector answers."""
        with self._lock:
            try:
                if self._client is None:
                    self._client = chiplog.connect(dir=self.root(self.collector_host))
                rows: list[dict[str, Any]] = self._client.sql(query, params).rows()
                return rows
            except (chiplog.QueryError, chiplog.NoDataError):
                return []

    # -- what a fault did --

    def check_fault(self, begun: float, ended: float, node: int = 1, *, silent: bool = True) -> None:
        """Check that the rank went on at its pace during a fault, and in a silent one that nothing came through."""
        watch = self.watches[node]
        before = watch.logged_per_s(begun - BEFORE_S, begun)
        during = watch.logged_per_s(begun, ended)
        pause_s = watch.longest_pause_s(begun, ended)
        self.say(
            f"{ended - begun:.1f} s of fault; log() {before:.0f}/s before, {during:.0f}/s during it, "
            f"at most {pause_s:.1f} s between two polls that saw a new one"
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
