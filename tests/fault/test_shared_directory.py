"""One CHIPLOG_DIR on a file system that two nodes share, and that no list of network file systems knows (FUSE).

Every value of both nodes is in SQL, or named by one line.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patched import TAKES_OVER_SOON, patch_daemons
from tests.support.shared_directory import TOOLS, SharedNode
from tests.support.tools import needs
from tests.support.waiting import wait_until

pytestmark = needs(*TOOLS)

RANK = """
import chiplog, sys
run = chiplog.init(run_id=sys.argv[1], label=sys.argv[1], capture_console=False)
for step in range(50):
    run.log({"x": float(step)}, step=step)
run.finish()
"""
COUNT = "SELECT count(*) AS n FROM metrics WHERE run_id = '{}'"


@pytest.fixture(
    params=[
        pytest.param(False, id="own-locks"),
        pytest.param(True, id="shared-locks", marks=pytest.mark.full),
    ]
)
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[SharedNode, SharedNode]]:
    opened: list[SharedNode] = []
    try:
        opened += [SharedNode(tmp_path, "node1", has_locks=request.param)]
        opened += [SharedNode(tmp_path, "node2", has_locks=request.param)]
        yield opened[0], opened[1]
    finally:
        for node in opened:
            node.close()


def count(node: SharedNode, run_id: str) -> str:
    asked = node.chiplog("sql", COUNT.format(run_id), "--format", "csv")
    return asked.stdout.strip().splitlines()[-1] if asked.returncode == 0 else asked.stderr


def test_each_value_of_two_nodes_is_in_sql_or_named(nodes: tuple[SharedNode, SharedNode]) -> None:
    first, second = nodes
    for node in nodes:
        logged = node.run("-c", RANK, node.name)
        assert logged.returncode == 0, logged.stderr
    assert count(first, "node1") == "50"
    assert list((second.home / "var-tmp").glob("chiplog-*/*/agent/spool/*.seg")), "on the node's own disk"
    shared = {path.name for path in (second.shared.with_name("real") / "chiplog").iterdir()}
    assert not shared & {"journals", "agent", "outbox", "run"}


def test_the_second_node_names_where_its_values_are(
    nodes: tuple[SharedNode, SharedNode], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = nodes
    assert first.run("-c", RANK, "node1").stderr == ""
    assert count(first, "node1") == "50"
    line = "belongs to the collector of host node1; what is logged here waits in "
    logged = second.run("-c", RANK, "node2")
    assert line in logged.stderr and len(logged.stderr.splitlines()) == 1
    assert line in second.chiplog("runs").stderr
    assert line in second.chiplog("doctor").stdout
    assert line in second.chiplog("status", "--no-canary").stdout
    assert count(first, "node2") == "0"
    first.crash()
    second.chiplog("down")
    patch_daemons(monkeypatch, tmp_path / "patch", TAKES_OVER_SOON)
    taken = second.chiplog("up", "--take-over", "node1")
    assert taken.returncode == 0, taken.stderr
    wait_until(lambda: count(second, "node2") == "50", "the values of node 2 in SQL")
    assert count(second, "node1") == "50"
    assert second.chiplog("runs").stderr == ""
