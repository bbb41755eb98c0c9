"""One agent of a node samples its host and GPUs, for each collector: a lease that ends with its process."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_agent.stats.sampler_lease import SamplerLease
from chiplog_schemas.process.file_lock import lock_holder_pid
from tests.support.hosts import Centre
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.waiting import wait_until


@pytest.fixture
def boot() -> str:
    return uuid.uuid4().hex


def test_a_lease_has_one_holder_and_is_free_once_that_closes_it(boot: str) -> None:
    first, second = (SamplerLease(boot, "node-a", "tcp://head:4100") for _ in range(2))
    assert first.poll(1.0) and first.is_held
    assert second.poll(1.0) and not second.is_held, "that another has it is news"
    assert second.holder() == (os.getpid(), os.geteuid())
    assert not second.poll(1.5) and not second.poll(100.0), "once"
    first.close()
    first.close()
    assert second.holder() == (0, -1)
    assert second.poll(200.0) and second.is_held
    assert not second.poll(300.0)
    second.close()


@proves(
    "lease-per-collector", "agents of different collectors each sample", part="node, _canonical(collector)", new="node"
)
def test_a_lease_is_of_one_boot_node_and_collector(boot: str) -> None:
    cases = [
        (boot, "node-a", "tcp://head:4100"),
        (boot, "node-a", "tcp://head:4200"),
        (boot, "node-b", "tcp://head:4100"),
        (f"{boot}-2", "node-a", "tcp://head:4100"),
        (boot, "node-a", "tcp://localhost:4100"),
        (boot, "node-a", "ipc:///run/x/collector.sock"),
    ]
    leases = [SamplerLease(*case) for case in cases]
    assert [lease.poll(1.0) and lease.is_held for lease in leases] == [True] * len(cases)
    for alias in ("tcp://127.0.0.1:4100", "tcp://localhost:4100", "ipc:///run/x/../x/collector.sock"):
        other = SamplerLease(boot, "node-a", alias)
        assert other.poll(1.0) and not other.is_held, alias
    for lease in leases:
        lease.close()


def test_a_lease_ends_with_a_killed_process_and_is_not_inherited(boot: str) -> None:
    script = (
        "import os, sys, subprocess; from chiplog_agent.stats.sampler_lease import SamplerLease\n"
        "lease = SamplerLease(sys.argv[1], 'n', 'c'); assert lease.poll(1.0) and lease.is_held\n"
        "child = subprocess.Popen(['sleep', '60'], close_fds=False); print(child.pid, flush=True); input()"
    )
    command = [sys.executable, "-c", script, boot]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            lease = SamplerLease(boot, "n", "c")
            assert lease.poll(1.0) and not lease.is_held
            assert lease.holder()[0] == process.pid
            process.kill()
            process.wait()
            wait_until(lambda: lease.poll(time.monotonic() + 10.0) and lease.is_held, "a lease that is free")
            lease.close()
        finally:
            os.kill(child, signal.SIGKILL)


class Second(Node):
    """Another agent of the same node, with a directory of its own."""

    def start_sampling(self, collector: str) -> None:
        flags = ("--sample-interval-s", "0.2", "--node", "node-a", "--collector", collector)
        self.agent = self._start("chiplog_agent", *flags)
        pid = self.agent.pid
        wait_until(lambda: lock_holder_pid(self.place.agent / "lock") == pid, "an agent that holds its lock")


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[tuple[Centre, Second, Second]]:
    centre, first, second = (kind(tmp_path / name) for kind, name in ((Centre, "c"), (Second, "1"), (Second, "2")))
    centre.start_collector()
    yield centre, first, second
    for node in (first, second, centre):
        node.stop()


@proves("one-agent-samples-host", "one agent of a node samples the host", condition=False)
def test_a_second_agent_of_a_collector_leaves_the_host_to_the_first_until_that_is_killed(
    agents: tuple[Centre, Second, Second],
) -> None:
    centre, first, second = agents
    samplers = (
        "SELECT p.pid, count(*) AS n FROM base.system_facts s JOIN base.producers p ON p.producer = s.producer "
        "JOIN base.names d ON d.id = s.device WHERE d.name = '' GROUP BY ALL ORDER BY min(s.ts)"
    )
    first.start_sampling(centre.address)
    assert first.agent is not None
    centre.until(samplers)
    second.start_sampling(centre.address.replace("127.0.0.1", "localhost"))
    assert second.agent is not None
    wait_until(lambda: f"(process {first.agent.pid} of uid" in second.output(), "a line that names the first")
    before = centre.sql(samplers)[0]["n"]
    rows = centre.until(samplers, lambda rows: rows[0]["n"] > before + 50)
    assert [row["pid"] for row in rows] == [first.agent.pid]
    first.kill_agent()
    rows = centre.until(samplers, lambda rows: len(rows) == 2)
    assert [row["pid"] for row in rows] == [first.agent.pid, second.agent.pid]
    assert "this agent samples the host" in second.output()


@pytest.mark.full
def test_agents_of_different_collectors_each_sample(agents: tuple[Centre, Second, Second], tmp_path: Path) -> None:
    centre, first, second = agents
    other = Centre(tmp_path / "other")
    other.start_collector()
    try:
        first.start_sampling(centre.address)
        second.start_sampling(other.address)
        for collector in (centre, other):
            collector.until("SELECT 1 FROM system_samples WHERE device = '' LIMIT 1")
    finally:
        second.stop()
        other.stop()
