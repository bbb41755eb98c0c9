"""The agent's own values: what they are, and when it is alive and ready."""

import os
import time

import pytest

from chiplog_agent.pipeline.health import OF_GPUS, AgentHealth, Counts, device_labels, health_of
from chiplog_schemas.model.codes import RefusalReason
from chiplog_schemas.model.exposed import Exposed
from chiplog_schemas.model.system_metrics import PIPELINE_METRICS
from tests.support.safeguard import proves


def test_values_are_due_each_ten_seconds_and_have_the_names_of_the_table() -> None:
    health = AgentHealth("node-a", 100.0)
    assert not health.turn(0, 0, is_open=True, now=109.9)
    assert health.turn(5, 0, is_open=True, now=110.0)
    counts = Counts(received=7, lost=1, refusals={RefusalReason.OTHER_KEY: 2}, sampler_pid=os.getppid())
    device, names, values = health.read(counts, 110.0)
    found = dict(zip(names, values, strict=True))
    assert device == "chiplog" and found.keys() == {n for n in PIPELINE_METRICS if n.startswith("chiplog.agent.")}
    assert (found["chiplog.agent.events.received"], found["chiplog.agent.events.lost"]) == (7.0, 1.0)
    assert (found["chiplog.agent.refused.other_key"], found["chiplog.agent.refused.version"]) == (2.0, 0.0)
    assert found["chiplog.agent.memory"] > 1 << 20 and found["chiplog.agent.cpu_time"] > 0
    assert not health.turn(5, 5, is_open=True, now=119.9)
    assert health.turn(5, 5, is_open=True, now=120.0)
    found = dict(zip(*health.read(Counts(), 120.0)[1:], strict=True))
    assert found["chiplog.agent.acknowledgement"] == pytest.approx(9.9)


@proves("agents-of-a-node-apart", "the values of two agents of a node are two series", value="PIPELINE_DEVICE")
def test_a_further_agent_of_a_node_has_a_device_of_its_own() -> None:
    health = AgentHealth("node-a", 100.0)
    assert health.read(Counts(samples_host=False), 110.0)[0] == f"chiplog:{os.getpid()}"
    assert health.read(Counts(samples_host=True), 120.0)[0] == "chiplog", "the first agent has ended"


def test_what_waited_before_the_agents_start_has_its_age() -> None:
    health = AgentHealth("node-a", 100.0, [(5, 700.0)])
    health.turn(5, 0, is_open=False, now=110.0)
    assert dict(zip(*health.read(Counts(), 110.0)[1:], strict=True))["chiplog.agent.spool_oldest"] == 710.0
    health.turn(5, 5, is_open=True, now=120.0)
    found = dict(zip(*health.read(Counts(), 120.0)[1:], strict=True))
    assert (found["chiplog.agent.spool_oldest"], found["chiplog.agent.acknowledgement"]) == (0.0, 0.0)


def test_an_agent_is_ready_while_events_reach_the_collector_and_alive_while_it_turns() -> None:
    now = time.monotonic()
    health = AgentHealth("node-a", now)
    asked = health_of(health, lambda: [Exposed({"node": "node-a"}, ("hw.power",), (1.0,))])
    health.turn(0, 0, is_open=True, now=now)
    assert (asked.is_alive(), asked.is_ready()) == ("", "")
    health.turn(0, 0, is_open=False, now=now)
    assert asked.is_ready() == "", "a collector may take 30 s to start again"
    assert [exposed.names for exposed in asked.collect()] == [("hw.power",)], "own values come after 10 s"
    health = AgentHealth("node-a", now - 31)
    asked = health_of(health, list)
    health.turn(9, 0, is_open=True, now=now - 31)
    assert asked.is_ready() == "the collector takes no events: no event has reached its stable storage for 31 s"
    health.turn(9, 0, is_open=False, now=now - 31)
    assert asked.is_ready() == "the collector takes no events: it does not answer for 31 s"
    assert asked.is_alive() == "the agent's loop has not turned for 31 s"
    health.turn(9, 9, is_open=True, now=now)
    assert (asked.is_alive(), asked.is_ready()) == ("", "")


def test_the_cpu_time_of_former_samplers_stays_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = {os.getpid(): 100, 7: 50, 8: 5}
    monkeypatch.setattr(
        "chiplog_agent.pipeline.health.read_proc_stat", lambda pid: ["0"] * 11 + [str(ticks[pid]), "0"] + ["0"] * 9
    )
    health = AgentHealth("node-a", 0.0)
    rate = os.sysconf("SC_CLK_TCK")
    found = [dict(zip(*health.read(Counts(sampler_pid=pid), 0.0)[1:], strict=True)) for pid in (7, 7, 8, None)]
    assert [of["chiplog.agent.cpu_time"] * rate for of in found] == [150, 150, 155, 155]


def test_labels_name_the_device_but_no_process() -> None:
    assert device_labels("n", "") == device_labels("n", "pid:7") == {"node": "n"}
    assert device_labels("n", "GPU-1") == {"node": "n", "uuid": "GPU-1"}
    assert device_labels("n", "MIG-2") == {"node": "n", "uuid": "MIG-2"}
    assert device_labels("n", "nic:eth0") == {"node": "n", "device": "nic:eth0"}


def test_what_all_ranks_report_is_in_the_sample_and_not_in_metrics() -> None:
    health = AgentHealth("node-a", 0.0)
    _, names, values = health.read(Counts(sdk={"chiplog.sdk.events": 7.0}), 0.0)
    assert dict(zip(names, values, strict=True))["chiplog.sdk.events"] == 7.0
    [exposed] = health.exposed()
    assert "chiplog.sdk.events" not in exposed.names


def test_states_of_gpus_are_in_the_sample_and_in_metrics_by_gpu() -> None:
    health = AgentHealth("node-a", 0.0)
    _, names, _ = health.read(Counts(gpus_lost=1), 0.0)
    asked = health_of(health, list, lambda: [Exposed({"uuid": "GPU-1"}, (OF_GPUS[0],), (1.0,))])
    assert set(OF_GPUS) <= set(names)
    shown = [(exposed.labels, name) for exposed in asked.collect() for name in exposed.names if name in OF_GPUS]
    assert shown == [({"uuid": "GPU-1"}, OF_GPUS[0])]
