"""Where a rank runs and which process it is: the kernel's word, through containers, keys and hostnames that differ.

A container is a real PID and UTS namespace, made by unshare(1). The ranks log through their agent's Unix socket.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_schemas.storage.journal_dir import list_journals
from tests.support.hosts import Centre, Host
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.tools import NAMESPACES, needs
from tests.support.waiting import WAIT_S, wait_until

pytestmark = [
    pytest.mark.xdist_group("identity"),
    needs("unshare", NAMESPACES),
]


RANK = """
import sys, time
import chiplog
where, agent, label, until, values = sys.argv[1:]
run = chiplog.init(dir=where, agent=agent or None, run_id="r", label=label, project="pods", capture_console=False)
for value in range(int(values)):
    run.log({"x": float(value)}, step=value)
import pathlib
while until and not pathlib.Path(until).exists():
    sum(range(20_000))
run.finish()
"""


def start_rank(
    root: Path, agent: str, label: str, *, hostname: str = "", until: str = "", values: int = 100, in_pod: bool = True
) -> "subprocess.Popen[bytes]":
    """Start a rank in its own container with this hostname. until: a file that ends it."""
    rank = [sys.executable, "-P", "-c", RANK, str(root), agent, label, until, str(values)]
    if in_pod:
        command = f'hostname {hostname or label}; exec "$@"'
        rank = ["unshare", "--pid", "--uts", "--fork", "--mount-proc", "--kill-child", "sh", "-c", command, "sh", *rank]
    return subprocess.Popen(rank, stdin=subprocess.DEVNULL)


def kernel_pid(process: "subprocess.Popen[bytes]") -> int:
    """Return the PID of a container's first process, as seen from outside."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return int(wait_until(lambda: children.read_text().split(), "a container's first process")[0])


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "host")
    host.key_directory.mkdir(mode=0o700, parents=True)
    yield host
    host.stop()


@proves("agent-reports-own-node", "an agent reports its own node of what it delivers", part='{"node": self.node} |')
@pytest.mark.full
def test_a_container_with_another_hostname_delivers_all_with_its_agents_key(
    centre: Centre, host: Host, tmp_path: Path
) -> None:
    centre.admit(host, "agent", "--node", "gpu-17")
    host.start_at(centre.address, "--node", "gpu-17")
    until = tmp_path / "until"
    rank = start_rank(host.root, host.place.agent_address, "rank0", hostname="pod-7f9c", until=str(until))
    pid = kernel_pid(rank)
    try:
        query = "SELECT node, pid, hostname, rank_pid FROM labels"
        centre.until("SELECT 1 FROM metrics HAVING count(*) = 100")
        known = [{"node": "gpu-17", "pid": pid, "hostname": "pod-7f9c", "rank_pid": 1}]
        centre.until(query, lambda rows: rows == known)
    finally:
        until.touch()
        rank.wait(WAIT_S)
    assert centre.sql("SELECT * FROM events WHERE kind = 'refused_node'") == []


@proves(
    "sampled-pid-from-kernel",
    "the processes that are sampled are those that the kernel names",
    part=".origin.pid",
    new='.identity["pid"]',
)
@proves("pid-from-socket", "a rank whose journal is elsewhere is known by its socket", part="or peer_pid")
@pytest.mark.full
def test_each_rank_of_a_pid_namespace_has_its_own_statistics(bare_node: Node, tmp_path: Path) -> None:
    bare_node.start_collector()
    bare_node.agent = bare_node._start("chiplog_agent", "--sample-interval-s", "0.2", "--node", "gpu-17")
    wait_until(lambda: Path(bare_node.place.agent_address.removeprefix("ipc://")).exists(), "an agent that listens")
    until = tmp_path / "until"
    # One whose journal the agent sees, and one with a separate directory, known only by its socket.
    ranks = [
        start_rank(root, bare_node.place.agent_address, label, until=str(until))
        for root, label in ((bare_node.root, "rank0"), (tmp_path / "own", "rank1"))
    ]
    pids = [kernel_pid(rank) for rank in ranks]
    try:
        query = (
            "SELECT label, device, count(*) AS n FROM system WHERE name = 'process.cpu.utilization' AND value > 0.05 "
            "GROUP BY ALL HAVING n > 2 ORDER BY ALL"
        )
        rows = bare_node.until(query, lambda rows: len(rows) == 2)
        assert [(row["label"], row["device"]) for row in rows] == [
            ("rank0", f"pid:{pids[0]}"),
            ("rank1", f"pid:{pids[1]}"),
        ]
        labels = bare_node.sql("SELECT label, node, pid, hostname, rank_pid FROM labels ORDER BY label")
        assert [tuple(row.values()) for row in labels] == [
            ("rank0", "gpu-17", pids[0], "rank0", 1),
            ("rank1", "gpu-17", pids[1], "rank1", 1),
        ]
        devices = bare_node.sql("SELECT DISTINCT device FROM system_samples WHERE device LIKE 'pid:%' ORDER BY ALL")
        assert [row["device"] for row in devices] == sorted(f"pid:{pid}" for pid in pids), "and of no other process"
        hosts = "SELECT DISTINCT node FROM system WHERE name = 'system.memory.usage'"
        assert bare_node.sql(hosts) == [{"node": "gpu-17"}], "a node that was given its name"
    finally:
        until.touch()
        for rank in ranks:
            rank.wait(WAIT_S)


def printed(host: Host, *arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "chiplog_cli", *arguments, "--dir", str(host.root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False).stdout


def link_state(host: Host) -> str:
    return str(json.loads(printed(host, "status", "--no-canary", "--format", "json"))["agent_link_state"])


@pytest.mark.full
def test_what_a_collector_refuses_is_kept_and_reported_until_the_key_is_allowed(
    centre: Centre, host: Host, tmp_path: Path
) -> None:
    """A journal that is brought to another node: the collector knows its rank as one of the first."""
    other = Host(tmp_path / "other")
    other.key_directory.mkdir(mode=0o700, parents=True)
    for one, node in ((host, "gpu-17"), (other, "gpu-18")):
        centre.admit(one, "agent", "--node", node)
        one.start_at(centre.address, "--node", node)
    rank = start_rank(host.root, host.place.agent_address, "rank0", until=str(tmp_path / "until"), in_pod=False)
    try:
        centre.until("SELECT 1 FROM metrics HAVING count(*) = 100")
        host.kill_agent()
        rank.kill()
        rank.wait(WAIT_S)
        [journal] = [path for _, path in list_journals(host.place.journals)]
        making = other.place.journals / f".new-{journal.name}"
        shutil.copytree(journal, making)
        making.rename(other.place.journals / journal.name)
        row = "SELECT run_id, label, level FROM events WHERE kind = 'refused_node'"
        assert centre.until(row) == [{"run_id": "r", "label": "rank0", "level": "error"}]
        wait_until(lambda: link_state(other) == "refusing", "a refusal in `chiplog status`")
        assert "keys allow" in printed(other, "doctor", "--format", "csv")
        assert "refuses" in other.output()
        assert centre.until("SELECT node FROM events WHERE kind = 'refused'") == [{"node": "gpu-18"}]
        centre.keys("allow", str(other.key_directory / "agent.pub"), "--node", "gpu-18", "--node", "gpu-17")
        centre.until("SELECT 1 FROM events WHERE kind = 'accepted_node'")
        wait_until(lambda: link_state(other) == "open", "an agent of which nothing is refused")
    finally:
        rank.kill()
        rank.wait(WAIT_S)
        other.stop()
