"""GPUs through the real pynvml and a small libnvidia-ml.so.1 that can fail and hang on demand."""

import os
import subprocess
import sys
from typing import Any

import pytest

from chiplog_agent.stats.claims import Claims
from chiplog_agent.stats.frames import MigDevice
from chiplog_agent.stats.gpu.gpm import GPM_METRICS
from chiplog_agent.stats.sampler_process import (
    DeviceEvent,
    DeviceStale,
    Holders,
    Message,
)
from chiplog_schemas.model.system_metrics import GPU_METRICS
from tests.support.gpu_sampler import GPU0, GPU1, GpuSampler, lines, of, tables
from tests.support.safeguard import proves

MIG = [f"MIG-00000001-0000-0000-0000-00000000000{number}" for number in range(2)]


MEMORY = {"hw.gpu.memory.usage", "hw.gpu.memory.limit", "hw.gpu.memory.reserved"}


def test_every_metric_of_a_gpu_reaches_the_agent_with_one_field_call_each_period(node: GpuSampler) -> None:
    node.tell("gpus=8")
    node.feed.start()
    gpus = [f"{GPU0[:-1]}{number}" for number in range(8)]
    messages = node.run(lambda messages: all(len(of(messages, gpu)) >= 8 for gpu in gpus))
    os.kill(node.feed.pid or 0, 19)  # SIGSTOP: the counts below must not move
    messages += node.feed.read()
    expected = GPU_METRICS.keys() - {"hw.gpu.retired_pages.single_bit", "hw.gpu.retired_pages.double_bit"}
    calls = node.calls.read_bytes()
    for number, gpu in enumerate(gpus):
        names = [sample.names for sample in of(messages, gpu)]
        assert {name for group in names for name in group} == expected
        assert sum("hw.errors.ecc_corrected" in group for group in names) == 1  # the group of the slow metrics
        fast = sum("hw.gpu.utilization" in group for group in names)
        assert fast <= calls.count(str(number).encode()) <= fast + 5  # samples under way at the stop


def test_unsupported_metrics_are_told_once_and_left_out(node: GpuSampler) -> None:
    node.tell("bare1")
    node.feed.start()
    messages = node.run(lambda messages: len(of(messages, GPU1)) >= 4)
    names = {name for sample in of(messages, GPU1) for name in sample.names}
    assert names == MEMORY | {"chiplog.agent.nvml_call"}
    told = [text for text in lines(messages) if GPU1 in text]
    assert len(told) == 1 and "hw.temperature.memory" in told[0] and "hw.gpu.memory.usage" not in told[0]
    assert "hw.power" in of(messages, GPU0)[0].names


def test_mig_instances_are_devices_with_memory_and_gpm_and_their_parent(node: GpuSampler) -> None:
    node.tell("mig1")
    node.feed.start()
    devices = (*MIG, GPU0, GPU1)
    messages = node.run(lambda found: all(len(of(found, uuid)) >= 4 for uuid in devices) and bool(tables(found)))
    for instance in MIG:
        assert {name for sample in of(messages, instance) for name in sample.names} == MEMORY | GPM_METRICS.keys()
    assert not [text for text in lines(messages) if "MIG-" in text], "what an instance never has is no gap"
    [table] = tables(messages)
    assert table.gpus[0].instances == ()
    assert table.gpus[1].instances == (MigDevice(MIG[0], 3, 0), MigDevice(MIG[1], 4, 0))


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ({"visible": MIG[1]}, MIG[1]),
        ({"visible": f"MIG-{GPU1}/4/0"}, MIG[1]),
        ({"given": [f"MIG-{GPU1}/3/0"]}, MIG[0]),
        ({"given": [MIG[1][:20], MIG[1]]}, MIG[1]),
        ({"visible": "1", "order": "PCI_BUS_ID", "local": 0}, MIG[0]),
    ],
)
def test_what_ranks_claim_is_resolved_to_instances(node: GpuSampler, claim: dict[str, Any], expected: str) -> None:
    node.tell("mig1")
    node.feed.start()
    [table, *_] = tables(node.run(lambda found: bool(tables(found))))
    claims = Claims()
    claims.set_gpus(table.gpus)
    claims.set_claims({b"rank": (7, claim)})
    assert claims.take_changes() == [(b"rank", (expected,))]


def test_a_rank_on_an_instance_is_found_there_with_its_memory(node: GpuSampler) -> None:
    rank = os.getpid()
    node.tell(f"mig1 pidm1={rank}:500 busy1={rank}:40")
    node.feed.watch([rank])
    node.feed.start()
    messages = node.run(lambda found: Holders(rank, (MIG[1],)) in found and bool(used(found, rank)))
    assert used(messages, rank)[-1] == {"process.gpu.memory.usage": 500 * 2**20}


def test_a_rank_has_memory_and_time_of_its_gpus_each_2_s(node: GpuSampler) -> None:
    rank = os.getpid()
    node.tell(f"pid0={rank}:500 pid1={rank}:1000 busy0={rank}:40 busy1={rank}:20")
    node.feed.watch([rank])
    node.feed.start()
    expected = {"process.gpu.memory.usage": 1500 * 2**20, "process.gpu.utilization": pytest.approx(0.6)}
    messages = node.run(lambda found: expected in used(found, rank) and len(of(found, f"pid:{rank}")) >= 8)
    with_gpus = len(used(messages, rank))
    assert with_gpus < len(of(messages, f"pid:{rank}"))


def used(messages: list[Message], rank: int) -> list[dict[str, float]]:
    """Return what the samples of a rank have about its GPUs."""
    rows = [dict(zip(sample.names, sample.values, strict=True)) for sample in of(messages, f"pid:{rank}")]
    gpus = [{name: value for name, value in row.items() if name.startswith("process.gpu.")} for row in rows]
    return [values for values in gpus if values]


@proves("mig-change-noticed", "a changed MIG mode is noticed", condition=False)
@proves("removed-instance-is-not-lost", "a MIG instance that was removed is not lost", value="[]")
def test_a_changed_mig_mode_enumerates_again_and_loses_nothing(node: GpuSampler) -> None:
    node.feed.start()
    node.run(lambda found: len(of(found, GPU1)) >= 2 and bool(tables(found)))
    node.tell("mig1")
    messages = node.run(lambda found: all(len(of(found, uuid)) >= 2 for uuid in MIG) and bool(tables(found)))
    assert [len(gpu.instances) for gpu in tables(messages)[-1].gpus] == [0, 2]
    node.tell("")
    messages += node.run(lambda found: bool(tables(found)))
    assert [len(gpu.instances) for gpu in tables(messages)[-1].gpus] == [0, 0]
    messages += node.run(lambda found: len(of(found, GPU1)) >= 60)
    assert not [message for message in messages if isinstance(message, DeviceEvent | DeviceStale)]


def test_a_mig_mode_that_cannot_be_read_is_one_line_until_it_can(node: GpuSampler) -> None:
    node.tell("mig1 modefails1")
    node.feed.start()
    messages = node.run(lambda found: len(of(found, GPU1)) >= 30 and bool(tables(found)))
    assert [text for text in lines(messages) if "MIG" in text] == [f"MIG instances of {GPU1} are absent: Unknown Error"]
    node.tell("mig1")
    messages = node.run(lambda found: all(len(of(found, uuid)) >= 2 for uuid in MIG))
    assert not [text for text in lines(messages) if "MIG" in text]


def test_two_gpus_with_one_uuid_are_one_and_a_line_says_so(node: GpuSampler) -> None:
    node.tell("twins")
    node.feed.start()
    messages = node.run(lambda found: len(of(found, GPU0)) >= 30)
    assert lines(messages) == [f"GPU 1 is absent: another one has its UUID, {GPU0}"]


@proves(
    "bare-context-is-incidental",
    "a bare context on another GPU makes it not a rank's",
    part="_INCIDENTAL_SHARE",
    new="0",
)
def test_the_gpus_that_a_ranks_processes_use_are_told_when_they_change(node: GpuSampler) -> None:
    """Its child trains on GPU 1; the first GPU holds a bare context by mistake. A stranger is on both."""
    code = "import subprocess, sys; c = subprocess.Popen(['sleep', '600']); print(c.pid, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            child = int(rank.stdout.readline())
            node.tell(f"pid0={rank.pid}:500 pid1={child}:20000 pid0={os.getpid()}:9000 pid1={os.getpid()}:9000")
            node.feed.watch([rank.pid])
            node.feed.start()
            messages = node.run(lambda messages: Holders(rank.pid, (GPU1,)) in messages)
            node.tell(f"pid0={rank.pid}:20000 pid1={child}:20000")
            node.run(lambda messages: Holders(rank.pid, (GPU0, GPU1)) in messages)
            node.tell("")
            messages = node.run(lambda messages: Holders(rank.pid, ()) in messages)
            assert [message for message in messages if isinstance(message, Holders)] == [Holders(rank.pid, ())]
        finally:
            os.kill(child, 9)
            rank.kill()
