"""A disk whose syncs take longer than the limit for a silent peer: sessions stay, and data arrives.

Times are nearly a third of the real ones: silence 3 s, heartbeat 0.5 s, a sync 4 s. A busy machine may stand still for
a second.
"""

from pathlib import Path

import pytest

from tests.support.disk.faults import SYNC, Faults, FaultyNode, Rank, build_library, settled
from tests.support.patched import patch_daemons
from tests.support.safeguard import proves
from tests.support.waiting import wait_until

QUICK = """
import chiplog_schemas.limits as limits
limits.PEER_SILENT_S, limits.HEARTBEAT_INTERVAL_S = 3.0, 0.5
import sys
from chiplog_schemas.protocol.receiver import ReceiverProtocol
greet = ReceiverProtocol._hello
def noted(self, *arguments):
    print("a session begins", file=sys.stderr, flush=True)
    return greet(self, *arguments)
ReceiverProtocol._hello = noted
"""
SYNC_MS = 4_000
N_SYNCS = 2


def sessions(node: FaultyNode) -> tuple[int, int]:
    """Return how many sessions began, at the agent and at the collector."""
    agent, collector = (node.output(name).count("a session begins") for name in ("chiplog_agent", "chiplog_collector"))
    return agent, collector


@proves(
    "receiver-beats-while-syncing",
    "a collector whose disk is slow sends heartbeats to its agents",
    new="self.log.commit()",
)
@proves("agent-beats-to-ranks", "an agent whose disk is slow sends heartbeats to its ranks")
@proves("agent-beats-to-collector", "an agent whose disk is slow sends heartbeats to its collector")
@proves("clock-read-after-sync", "what arrived while the agent's disk was slow is no silence of the collector")
@pytest.mark.parametrize("slow", ["collector", "agent"])
def test_syncs_longer_than_the_silence_of_a_lost_peer_cost_no_session(
    tmp_path: Path, chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    faults = Faults(build_library(tmp_path), tmp_path / "rules")
    patch_daemons(monkeypatch, tmp_path / "patch", QUICK)
    root = chiplog_dir
    environment = {slow: faults.environment}
    with FaultyNode(root, environment.get("agent", {}), environment.get("collector", {})) as node:
        node.start()
        rank = Rank(tmp_path / "oracle", root).ready()
        rank.log(100)
        node.until("SELECT count(*) AS n FROM metrics", lambda rows: rows[0]["n"] >= 100)
        before = sessions(node)
        faults.delay(SYNC, root / slow, SYNC_MS, ".seg")
        for _ in range(N_SYNCS):
            n_synced = faults.hits[0]
            rank.log(10)
            wait_until(lambda n=n_synced: faults.hits[0] > n, "a sync that is slow")
        faults.heal()
        rank.finish()
        verdict, row = settled(node, rank)
        rank.close()
        lost = node.sql("SELECT count(*) AS n FROM events WHERE kind IN ('node_lost', 'node_back')")
        assert verdict.ok, (verdict, row)
    assert sessions(node) == before, node.output("chiplog_agent")
    assert "out of reach" not in node.output("chiplog_agent")
    assert lost == [{"n": 0}]
    assert "is lost" not in node.output("chiplog_collector")
