"""The processes of a device: memory and time of each."""

from tests.support.gpu_sampler import GpuSampler

BEGIN = """
from chiplog_agent.stats.gpu.processes import ProcessReader

def read(reader):
    sample = DeviceSample(0.0, is_slow=False)
    return *reader.read(sample), sample.unsupported
"""


def test_memory_is_in_bytes_and_unknown_memory_is_marked(node: GpuSampler) -> None:
    node.tell("pid0=123:500 pid0=77: pid1=123:1")
    memory, *_ = node.ask(BEGIN + "show(*read(ProcessReader(device())))")
    assert memory == {"123": 500 << 20, "77": -1}


def test_the_newest_sample_of_each_process_since_the_last_call_counts(node: GpuSampler) -> None:
    """An unused entry of the driver's table, without time and with a share of 40 million, is no process."""
    program = """
tell("pid0=123:500 pid0=77:1 busy0=123:40 busy0=88:10")
reader = ProcessReader(device())
first = read(reader)[1]
tell("pid0=123:500 busy0=123:90")
second = read(reader)[1]
tell("pid0=123:500")
show(first, second, read(reader))
"""
    first, second, third = node.ask(BEGIN + program)
    assert first == {"123": 0.4, "88": 0.1}
    assert second == {"123": 0.9}
    assert third[1:] == [{}, []], "none has used it since"


def test_a_mig_instance_has_the_memory_of_its_processes_and_no_shares(node: GpuSampler) -> None:
    node.tell("mig1 pidm0=123:500 busy1=123:40")
    memory, shares, unsupported = node.ask(BEGIN + "show(*read(ProcessReader(instance(0))))")
    assert memory == {"123": 500 << 20} and shares is None and unsupported == []


def test_a_device_without_shares_says_so_once(node: GpuSampler) -> None:
    node.tell("bare0 pid0=123:500")
    program = "reader = ProcessReader(device()); show(read(reader), read(reader))"
    first, second = node.ask(BEGIN + program)
    assert first == [{"123": 500 << 20}, None, ["process.gpu.utilization"]]
    assert second == [{"123": 500 << 20}, None, []]
