"""One torchrun on each of two hosts, an agent on each, one collector on a third: network namespaces, TCP with keys."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from tests.launchers.scripts import RANKS
from tests.launchers.training import TORCHRUN, Training, finished
from tests.support.network import Network
from tests.support.site import Site
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("network")  # one worker for all that has hosts


def test_torchrun_on_two_hosts_is_one_run(tmp_path: Path, record: Callable[[dict[str, Any]], None]) -> None:
    """The --rdzv-id is not unique and the ranks have no common parent: they agree through their store."""
    with Network(3) as network:
        site = Site(tmp_path, network, 3)
        site._make_keys()
        site.start_collector()
        for host in site.nodes:
            site.start_agent(host)
            lock = paths_for_root(site.root(host)).agent / "lock"
            wait_until(lambda lock=lock: lock_holder_pid(lock) > 0, "an agent: without one, a rank starts its own")
        training = Training("torchrun --nnodes 2, two hosts", tmp_path / "training", tmp_path, site.sql, record)
        try:
            train(training, site)
            wait_until(lambda: site.sql("SELECT 1 AS one", []), "a collector that answers")
            training.check(finished(2))
            rows = site.sql("SELECT node, rank FROM labels ORDER BY rank", [])
            assert sorted(row["node"] for row in rows) == ["node1", "node2"], rows
        finally:
            training.close()
            site.close()


def train(training: Training, site: Site) -> None:
    """Start torchrun on both hosts, and wait for both."""
    script = training.script(RANKS)
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-id", "100", "--rdzv-endpoint", f"{site.network.address(1)}:29400"]
    launchers = []
    for host in site.nodes:
        # With the rendezvous host given, it uses no name service, which a namespace lacks.
        command = [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", *rendezvous]
        command += ["--rdzv-conf", f"is_host={host == 1}".lower()]
        own = {"CHIPLOG_DIR": str(site.root(host)), "GLOO_SOCKET_IFNAME": "e0"}
        launchers.append(
            training.start([*command, "--local-addr", site.network.address(host), script], own, on=(site.network, host))
        )
    for launcher in launchers:
        training.end(launcher)
