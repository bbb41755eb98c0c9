"""Agent, receiver and index stopped for longer than every timeout: training continues, nothing is lost or duplicated.

A stopped process holds its locks and sockets and answers no peer: it looks dead, and then continues. In `make test` it
is stopped for 12 s: longer than the limit for a silent peer, for an idle agent, and for a daemon that waits for a lock.
A soak stops it for 45 s and more: also longer than the kernel retransmits, than the limits for the end of an index, for
an idle collector, and for a query.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from chiplog_schemas.limits import FINISH_WAIT_S, PEER_SILENT_S
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.process.procfs import read_proc_stat
from tests.support.index_process import index_of
from tests.support.marks import everyday
from tests.support.node import Node, end_daemons
from tests.support.oracle import compare
from tests.support.rounds import Rounds
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

STOPPED_S = PEER_SILENT_S + 2.0
STOPPED_LONG_S = 45.0  # in a soak
LONGER_S = 3.0  # not all of them continue at the same moment
LAST_S = 4.0  # before its agent continues, one rank ends: its finish() has no peer
NOISE_S = 4.0  # time that finish() may take in addition to its second, because of a busy machine
AFTERWARDS_S = 1.0  # for which ranks still log when all have been continued
SOAK = bool(os.environ.get("CHIPLOG_SOAK_MINUTES"))
TEST = "test_what_is_stopped_for_longer_than_every_timeout_goes_on_where_it_was"

# A rank as the oracle has it, that also measures log(), until its file `end` appears.
RANK = """
import os, struct, sys, threading, time
from pathlib import Path
import chiplog
file, label, end = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
run = chiplog.init(project="stopped", run_id=label, label=label, capture_console=False)
target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
step, took = 0, []
while step % 100 or not end.exists():
    before = time.perf_counter_ns()
    run.log({"value": step * 0.7, "other": 1.0}, step=step)
    took.append(time.perf_counter_ns() - before)
    os.write(target, f"{step} {struct.pack('<d', step * 0.7).hex()}\\n".encode())
    step += 1
    time.sleep(0.002)
took.sort()
print(took[len(took) // 2] / 1e3, took[len(took) * 999 // 1000] / 1e3, took[-1] / 1e3)
ticks, ended = 0, threading.Event()
def tick():
    global ticks
    while not ended.wait(0.02):
        ticks += 1
ticker = threading.Thread(target=tick)
ticker.start()
begun = time.monotonic()
run.finish()
took_s = time.monotonic() - begun
ended.set()
ticker.join()
# Also as measured by a thread that only sleeps, which a busy machine delays too.
print(took_s, min(took_s, 0.02 * ticks))
"""


class Pipeline:
    """A rank, an agent and a collector as a training starts them, and which of them to stop."""

    def __init__(self, root: Path, victim: str) -> None:
        self.root = root
        self.victim = victim
        self.place = paths_for_root(root / "chiplog")
        self.node = Node(self.place.root)
        self.file, self.end = root / "oracle", root / "end"
        self.label = victim.replace(" ", "-")
        root.mkdir(parents=True)
        self.rank = subprocess.Popen(
            [sys.executable, "-P", "-c", RANK, str(self.file), self.label, str(self.end)],
            env=os.environ | {"CHIPLOG_DIR": str(self.place.root)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.victims: list[int] = []
        self.daemons: set[int] = set()

    def find(self) -> None:
        """Wait until events come out at the other end, and note who runs."""
        self.node.until("SELECT count(*) AS n FROM metrics", lambda rows: rows[0]["n"] > 100)
        agent = lock_holder_pid(self.place.agent / "lock")
        receiver = lock_holder_pid(self.place.collector / "lock")
        by_name = {"agent": agent, "receiver": receiver, "index": index_of(self.place)}
        self.victims = [by_name[name] for name in self.victim.split(" and ")]
        self.daemons = set(by_name.values())
        assert all(pid > 0 for pid in self.daemons)

    def signal(self, number: int) -> None:
        for pid in self.victims:
            os.kill(pid, number)

    def steps(self) -> int:
        return self.file.stat().st_size // 20  # at least; a line has about as many bytes

    def finish(self, seed: int) -> None:
        """Let the rank finish, and measure the time."""
        self.end.touch()
        printed, _ = self.rank.communicate(timeout=WAIT_S)
        assert self.rank.returncode == 0, (seed, self.victim)
        log_us, finish_s = printed.strip().splitlines()
        print(f"{self.victim} stopped: log() p50, p99.9, worst in µs: {log_us}; finish() {finish_s} s")
        took_s, quiet_s = map(float, finish_s.split())
        assert quiet_s < FINISH_WAIT_S + NOISE_S, (seed, self.victim, f"finish() took {took_s:.1f} s")

    def check(self, seed: int) -> None:
        """Let the rank finish if it did not, and compare."""
        if self.rank.poll() is None:
            self.finish(seed)
        query = "SELECT l.state, c.pending, c.lost FROM labels l JOIN completeness c USING (run_id, label, attempt)"
        rows = self.node.until(query, lambda rows: rows[0]["state"] != "running" and rows[0]["pending"] == 0)
        assert rows == [{"state": "finished", "pending": 0, "lost": 0}], (seed, self.victim)
        verdict = compare(self.file, self.node.sql("SELECT step, value FROM metrics WHERE key = 'value'"))
        assert verdict.ok and not verdict.extra, (seed, self.victim, verdict)
        if SOAK:  # a collector without agents for so long exits, and is started again
            self.daemons |= {wait_until(lambda: lock_holder_pid(self.place.collector / "lock"), "a collector")}
            self.daemons |= {wait_until(lambda: index_of(self.place), "an index")}
        for directory in (self.place.agent, self.place.collector):
            holder = lock_holder_pid(directory / "lock")
            # On a busy machine it may have had nothing to do for so long that it exited.
            has_left = "; exiting\n" in (self.place.run / f"chiplog_{directory.name}.out").read_text()
            assert holder in self.daemons or (holder == 0 and has_left), (seed, self.victim, directory.name, holder)
        # A daemon that was started while another is stopped waits for its lock, and exits.
        wait_until(lambda: self.serving() <= self.daemons, f"second daemons to leave ({seed}, {self.victim})")

    def serving(self) -> set[int]:
        """Return the PIDs of all daemons of this directory from /proc, independent of chiplog's locks.

        Without forks of a daemon: the index has one that parses queries.
        """
        marker = f"CHIPLOG_DIR={self.place.root}".encode()
        found = {}
        for entry in filter(lambda entry: entry.name.isdigit(), Path("/proc").iterdir()):
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it ended in between
            daemons = {b"chiplog_agent", b"chiplog_collector", b"chiplog_collector.index"}
            if marker in environment and daemons & set(arguments):
                found[int(entry.name)] = arguments
        parents = {pid: int((read_proc_stat(pid)[1:2] or [0])[0]) for pid in found}
        return {pid for pid, arguments in found.items() if found.get(parents[pid]) != arguments}

    def close(self) -> None:
        self.rank.kill()
        self.rank.communicate()
        for pid in self.victims:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass  # it was replaced
        end_daemons(self.place)


def stop_and_go_on(root: Path, seed: int, victims: Sequence[str], stopped_s: Callable[[], float]) -> None:
    """Stop one victim in each of several pipelines, all at the same time, and compare afterwards.

    If only the agent is stopped, the rank ends during the stop: the agent delivers its journal when it continues.
    """
    pipelines = [Pipeline(root / victim, victim) for victim in victims]
    try:
        for pipeline in pipelines:
            pipeline.find()
        for pipeline in pipelines:
            pipeline.signal(signal.SIGSTOP)
        before = [pipeline.steps() for pipeline in pipelines]
        until = sorted((time.monotonic() + stopped_s(), number) for number in range(len(pipelines)))
        last = victims.index("agent")
        time.sleep(max(0.0, until[0][0] - LAST_S - time.monotonic()))
        assert pipelines[last].steps() > before[last] + 100, (seed, victims[last], "training stood still")
        pipelines[last].finish(seed)
        for at, number in until:
            time.sleep(max(0.0, at - time.monotonic()))
            assert pipelines[number].steps() > before[number] + 100, (seed, victims[number], "training stood still")
            pipelines[number].signal(signal.SIGCONT)
        time.sleep(AFTERWARDS_S)
        for pipeline in pipelines:
            pipeline.check(seed)
    finally:
        for pipeline in pipelines:
            pipeline.close()


@proves(
    "stopped-daemon-keeps-lock",
    "a stopped daemon keeps its lock, and with it every other one away",
    new='return Lock(path.with_name(f"second-{os.getpid()}"), note=note)',
)
@proves(
    "log-never-waits",
    "log() does not wait for the agent",
    new="while self.next_seq > self.acked + 80:\n    __import__('time').sleep(0.01)\n...",
    environment={"CHIPLOG_NATIVE": "0"},
)
@proves("finish-waits-one-second", "finish() waits a second for an agent that does not answer", new="wait_s = 8.0\n...")
@pytest.mark.promise(3)
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "victims", everyday(1, [["agent", "receiver"], ["agent", "index", "agent and receiver"]]), ids=str
)
def test_what_is_stopped_for_longer_than_every_timeout_goes_on_where_it_was(
    victims: list[str], rounds: Rounds, tmp_path: Path
) -> None:
    for seed in rounds(1):
        chooser = random.Random(seed)
        shortest_s, longest_s = (STOPPED_LONG_S, STOPPED_LONG_S + LONGER_S) if SOAK else (STOPPED_S, STOPPED_S)
        stop_and_go_on(tmp_path / str(seed), seed, victims, lambda: chooser.uniform(shortest_s, longest_s))  # noqa: B023  in this round
        rounds.count("processes stopped", sum(len(victim.split(" and ")) for victim in victims))
