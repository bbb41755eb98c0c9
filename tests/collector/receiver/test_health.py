"""The collector's own values: what they are, and when it is alive and ready; and both daemons as processes."""

import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import zmq
from prometheus_client.parser import text_string_to_metric_families

from chiplog_collector.receiver.health import CollectorHealth, Counts
from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.codes import RefusalReason
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.model.system_metrics import PIPELINE_METRICS
from tests.support.node import Node
from tests.support.waiting import WAIT_S, wait_until


def test_values_have_the_names_of_the_table_and_become_a_block() -> None:
    health = CollectorHealth("node-c", 100.0, follows_index=True)
    assert not health.turn(10, 0, "", 109.9)
    assert health.turn(10, 0, "", 110.0)
    refused = {RefusalReason.VERSION: 3}
    values = health.read(Counts(connected=2, refused=refused, unapplied=4), 110.0)
    assert values.keys() == {name for name in PIPELINE_METRICS if name.startswith("chiplog.collector.")}
    assert {reason: values[f"chiplog.collector.refused.{reason}"] for reason in RefusalReason} == {
        reason: refused.get(reason, 0) for reason in RefusalReason
    }
    assert values["chiplog.collector.unapplied"] == 4
    assert values["chiplog.collector.apply_lag"] == pytest.approx(0.1)
    blocks = [decode_block(health.block(values, 1_000_000)) for _ in range(2)]
    assert [{EventKind(group.kind) for group in block.groups} for block in blocks] == [
        {EventKind.IDENTITY, EventKind.SYSTEM},
        {EventKind.SYSTEM},
    ]
    assert [had for block in blocks for _, had in block.producers] == [[(0, 1)], [(2, 2)]]


def test_a_collector_is_ready_while_its_log_takes_events_and_sql_is_near() -> None:
    now = time.monotonic()
    health = CollectorHealth("node-c", now, follows_index=True)
    asked = health.health()
    health.turn(0, 0, "", now)
    assert (asked.is_alive(), asked.is_ready(), list(asked.collect())) == ("", "", [])
    health.turn(0, 0, "the log cannot be written", now)
    assert asked.is_ready() == "the log cannot be written"
    health.turn(9, 5, "", now - 31)
    assert asked.is_ready() == "SQL is 31 s behind the log"
    assert asked.is_alive() == "the receiver's loop has not turned for 31 s"
    health.turn(9, 9, "", now)
    assert (asked.is_alive(), asked.is_ready()) == ("", "")


def test_an_agent_is_silent_until_it_comes_back_and_not_forever() -> None:
    health = CollectorHealth("node-c", 0.0, follows_index=True)
    for sender in (b"a", b"b"):
        health.agent_fell_silent(sender, 10.0)
    health.agent_came(b"a")
    assert health.read(Counts(), 20.0)["chiplog.collector.agents.silent"] == 1
    assert health.read(Counts(), 3_700.0)["chiplog.collector.agents.silent"] == 0


def address_in(node: Node, module: str) -> str:
    found: list[str] = []

    def is_there() -> bool:
        found[:] = re.findall(r"metrics are at (http://\S+)/metrics", node.output(module))
        return bool(found)

    wait_until(is_there, f"the address of metrics of {module}")
    return found[0]


def get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"


def send(address: str, *frames: bytes) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(address)
        for frame in frames:
            socket.send(frame)


RANK = "import chiplog; run = chiplog.init(run_id='r', label='rank0', capture_console=False)\ninput(); run.finish()"


def test_both_daemons_serve_what_they_measure_and_an_ended_run_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIPLOG_DIR", str(tmp_path / "d"))
    with Node(tmp_path / "d") as node:
        bound = ("--metrics-bind", "127.0.0.1:0")
        node.collector = node._start("chiplog_collector", *bound)
        node.agent = node._start("chiplog_agent", *bound)
        agent, collector = address_in(node, "chiplog_agent"), address_in(node, "chiplog_collector")
        refused = {"version": pack([1, bytes(8), [7, 9], bytes(16), 0, {}]), "malformed": b"no message"}
        for place in (node.place.agent_address, node.place.collector_address):
            send(place, *refused.values())
        with subprocess.Popen([sys.executable, "-c", RANK], stdin=subprocess.PIPE) as rank:
            wait_until(lambda: "process_cpu_utilization_cpus{" in get(f"{agent}/metrics"), "the rank's samples")
            wait_until(lambda: "chiplog_sdk_events_total{" in get(f"{agent}/metrics"), "what its SDK reports")
            text = get(f"{agent}/metrics")
            rank.communicate(b"\n", timeout=WAIT_S)
        families = {family.name: family for family in text_string_to_metric_families(text)}
        [used] = families["process_cpu_utilization_cpus"].samples
        assert {used.labels[name] for name in ("run_id", "label")} == {"r", "rank0"}
        for family in ("chiplog_sdk_events", "chiplog_sdk_journal_bytes", "chiplog_sdk_lost"):
            for sample in families[family].samples:
                assert {sample.labels[name] for name in ("run_id", "label")} == {"r", "rank0"}
        assert {sample.labels["reason"] for sample in families["chiplog_sdk_lost"].samples} == {
            "journal_full",
            "device_values",
        }
        assert families["chiplog_sdk_events"].samples[0].value > 0
        assert families["system_memory_limit_bytes"].samples[0].value > 0
        wait_until(lambda: 'run_id="r"' not in get(f"{agent}/metrics"), "an ended run's values leave")
        for address in (agent, collector):
            assert [get(f"{address}/{name}") for name in ("healthz", "readyz")] == ["ok\n", "ok\n"]
        wait_until(lambda: "chiplog_agents{" in get(f"{collector}/metrics"), "the collector's values")
        for text in (get(f"{agent}/metrics"), get(f"{collector}/metrics")):
            [counted] = [f for f in text_string_to_metric_families(text) if f.name == "chiplog_refused"]
            assert {sample.labels["reason"] for sample in counted.samples if sample.value == 1} == refused.keys()
            assert counted.documentation in ("Agent: refused", "Collector: refused")
        names = "SELECT DISTINCT split_part(name, '.', 2) AS part FROM system_samples WHERE device = 'chiplog'"
        rows = node.until(f"{names} ORDER BY part", lambda rows: len(rows) == 3)
        assert [row["part"] for row in rows] == ["agent", "collector", "sdk"]
        [row] = node.until(
            "SELECT run_id, label, max(value) > 0 AS has_events FROM system "
            "WHERE name = 'chiplog.sdk.events' AND device LIKE 'pid:%' GROUP BY ALL",
            lambda rows: len(rows) == 1,
        )
        assert row == {"run_id": "r", "label": "rank0", "has_events": True}
        node.stop_collector()
        wait_until(lambda: get(f"{agent}/readyz").startswith("503 the collector takes no events"), "an agent not ready")
        assert get(f"{agent}/healthz") == "ok\n"
