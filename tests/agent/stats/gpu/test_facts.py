"""What the GPUs of a node are, as the stand-in for NVML tells it."""

import pynvml

from chiplog_agent.stats.gpu import facts
from chiplog_agent.stats.sampler_process import Message, NodeFacts
from tests.support.gpu_sampler import GPU0, GPU1, GpuSampler, of


def told(messages: list[Message]) -> list[NodeFacts]:
    return [message for message in messages if isinstance(message, NodeFacts)]


def test_host_and_gpus_are_told_together_once_and_again_when_they_change(node: GpuSampler) -> None:
    node.feed.start()
    messages = node.run(lambda messages: bool(told(messages)) and len(of(messages, "")) >= 10)
    [first] = told(messages)
    assert first.facts["driver"] == "580.95.05" and first.facts["cuda"] == "13.0" and first.facts["memory_bytes"] > 0
    assert [gpu["uuid"] for gpu in first.facts["gpus"]] == [GPU0, GPU1]
    assert {gpu["model"] for gpu in first.facts["gpus"]} == {"NVIDIA H100 80GB HBM3"}
    assert first.facts["gpus"][0]["pci"] == "00000000:10:00.0"
    assert first.facts["topology"] == [[GPU0, GPU1, "SYS"]]
    node.tell("gpus=3")
    [second] = told(node.run(lambda messages: bool(told(messages))))
    assert len(second.facts["gpus"]) == 3 and len(second.facts["topology"]) == 3


def test_levels_of_the_topology_are_those_of_pynvml() -> None:
    words = {
        "INTERNAL": "internal",
        "SINGLE": "PIX",
        "MULTIPLE": "PXB",
        "HOSTBRIDGE": "PHB",
        "NODE": "NODE",
        "SYSTEM": "SYS",
    }
    assert {getattr(pynvml, f"NVML_TOPOLOGY_{name}"): word for name, word in words.items()} == facts._TOPOLOGY


def test_what_the_driver_does_not_tell_is_absent(node: GpuSampler) -> None:
    program = """
from chiplog_agent.stats.gpu.facts import gpu_facts
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
tell("lost0")
show(gpu_facts(pynvml, {"GPU-0": handle}))
"""
    [found] = node.ask(program)
    assert found["gpus"] == [{"uuid": "GPU-0"}] and "topology" not in found and found["driver"]
