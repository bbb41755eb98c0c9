"""Deletions beside faults: processes that are killed, a disk that is nearly full.

A deletion that was answered stays; one that was not is there or not, as a whole for each run, and the same after a
rebuild. Real processes: a collector with its index, clients that ask for deletions as the commands do.
"""

import os
import signal
import threading
from pathlib import Path

import pytest

from chiplog_client.client import QueryError, connect
from chiplog_collector.maintenance import rebuild
from chiplog_schemas.paths import Paths
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.messages import MessageKind
from tests.support.agent_by_hand import Agent
from tests.support.collector_log import Rank, whole
from tests.support.disk.faults import small_disk
from tests.support.index import Index
from tests.support.index_process import index_of
from tests.support.kept_log import finished
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.sample_log import place_of
from tests.support.waiting import WAIT_S, wait_until

N_RUNS = 12


def runs_in(place: Paths) -> list[str]:
    with connect(dir=place.root, start=False) as client:
        return [run for (run,) in client.sql("SELECT run_id FROM runs ORDER BY ALL").tuples()]


def node_with(directory: Path, *ranks: Rank) -> Node:
    """Return a node whose collector has these ranks' events, and is not started yet."""
    place = place_of(Index(directory).take(whole(*ranks)))
    os.chmod(place.root, 0o700)
    return Node(place.root)


def end(node: Node) -> None:
    if node.collector is not None and node.collector.poll() is None:
        node.collector.terminate()
        node.collector.wait(WAIT_S)


@pytest.mark.full
def test_a_deletion_that_was_answered_survives_kills_and_a_rebuild(tmp_path: Path) -> None:
    node = node_with(tmp_path, *(finished(n, f"run-{n:02}") for n in range(1, N_RUNS + 1)))
    node.start_collector()
    answered: list[str] = []
    over = threading.Event()

    def delete() -> None:
        for number in range(1, N_RUNS + 1):
            run = f"run-{number:02}"
            while not over.is_set():
                try:
                    with connect(dir=node.root, start=False) as client:
                        client.delete_runs([run])
                    answered.append(run)
                    break
                except QueryError as error:
                    if "unknown" in error.message:  # carried out before its answer was lost
                        break

    deleting = threading.Thread(target=delete, daemon=True)
    deleting.start()
    try:
        for count in (2, 5):
            wait_until(lambda count=count: len(answered) >= count or not deleting.is_alive(), "some deletions")
            os.kill(index_of(node.place), signal.SIGKILL)
        assert node.collector is not None
        wait_until(lambda: len(answered) >= 8 or not deleting.is_alive(), "some deletions")
        node.collector.kill()
        node.collector.wait()
        shown = set(answered)
        node.start_collector()
        wait_until(lambda: node.try_sql("SELECT 1"), "a collector that answers")
        assert not shown & set(runs_in(node.place))
        deleting.join(WAIT_S)
        assert not deleting.is_alive()
    finally:
        over.set()
        deleting.join()
        end(node)
    assert runs_in(node.place) == []
    rebuild(node.place)
    assert runs_in(node.place) == []


@proves(
    "events-stay-with-agents-on-full-disk",
    "a collector takes no events before its disk is full, so that there is room to delete",
    condition=False,
)
def test_a_collector_on_a_nearly_full_disk_takes_no_events_and_still_deletes(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 96 << 20) as disk:
        node = node_with(disk.path / "node", finished(1, "old"), finished(2, "kept"))
        disk.fill(but=900_000)
        node.start_collector()
        agent = Agent(node.place.collector_address)
        log = node.root / "chiplog_collector.log"
        try:
            wait_until(lambda: "no events are taken" in log.read_text(), "a full disk")
            wait_until(lambda: node.try_sql("SELECT 1"), "a collector that answers")
            agent.session = b"session1"
            agent.socket.send_multipart(messages.hello(agent.session, agent.sender, 0, {"node": "a"}))
            with connect(dir=node.root, start=False) as client:
                assert client.delete_runs(["old"])["runs"] == 1
                assert client.sql("SELECT run_id FROM runs").tuples() == [("kept",)]
            assert not agent.socket.poll(0), "an agent is not answered: it keeps its events"
            disk.free()
            assert agent.receive().kind == MessageKind.WELCOME
            agent.send(0, whole(finished(3, "late")))
            agent.acknowledged(1)
            wait_until(lambda: "late" in runs_in(node.place), "events that are taken again")
        finally:
            agent.close()
            end(node)
