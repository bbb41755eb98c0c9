"""Canaries: events that go through real daemons into SQL, where each is counted and compared."""

import json
import signal
from pathlib import Path

import pytest

from chiplog_cli import canary
from chiplog_schemas.paths import paths_for_root
from tests.support.command_line import run_cli
from tests.support.node import Node


def test_canaries_come_out_once_and_unaltered(node: Node) -> None:
    code, out, err = run_cli(node.root, "doctor", "--canary", "--events", "5000", "--format", "json")
    assert (code, err) == (0, "")
    found = {entry["check"]: entry for entry in json.loads(out)}["canary"]
    assert found["verdict"] == "ok"
    assert "5,000 events sent, 5,000 arrived, 0 lost, 0 doubled, 0 altered" in found["found"]
    assert node.sql("SELECT count(*) AS n FROM runs") == [{"n": 0}]


@pytest.mark.full
def test_doctor_counts_what_a_stopped_collector_keeps_from_sql(node: Node) -> None:
    assert node.collector is not None
    node.collector.send_signal(signal.SIGSTOP)
    try:
        code, out, _ = run_cli(
            node.root, "doctor", "--canary", "--events", "10", "--timeout-s", "3", "--format", "json"
        )
    finally:
        node.collector.send_signal(signal.SIGCONT)
    found = json.loads(out)[-1]
    assert (code, found["verdict"]) == (1, "bad")
    assert found["found"].startswith("10 of 10 events missing in SQL after 3 s")


def test_altered_and_doubled_canaries_are_counted() -> None:
    class Answers:
        def sql(self, query: str, params: object) -> "Answers":
            return self

        def tuples(self) -> list[tuple[int, float]]:
            return [(0, 0.5), (1, 0.25), (1, 0.25), (2, 9.0)]

    assert canary._compare(Answers(), "token", [0.5, 0.25, 0.125, 1.0]) == (3, 1, 1)  # type: ignore[arg-type]


def test_without_an_agent_all_are_missing_and_the_reason_is_named(tmp_path: Path) -> None:
    result = canary.send_canaries(paths_for_root(tmp_path), f"ipc://{tmp_path}/nowhere.sock", 3.0, 3)
    assert (result.acknowledged_s, result.visible_s, result.lost, result.ok) == (None, None, 3, False)
    assert "nowhere.sock" in result.reason


def test_a_result_is_ok_only_if_each_event_arrived_once_and_unaltered() -> None:
    assert canary.CanaryResult(0.1, 0.2, sent=3, arrived=3).ok
    for counts in ({"arrived": 2}, {"arrived": 3, "doubled": 1}, {"arrived": 3, "altered": 1}):
        assert not canary.CanaryResult(0.1, 0.2, sent=3, **counts).ok
