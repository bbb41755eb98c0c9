"""All readings of one device: periods, and lines that are written once."""

from chiplog_agent.stats.gpu.gpm import GPM_METRICS
from chiplog_schemas.model.system_metrics import GPU_METRICS, SLOW_S
from tests.support.gpu_sampler import GpuSampler

BEGIN = """
from chiplog_agent.stats.gpu.readings import DeviceReadings
readings = DeviceReadings("GPU-0", device())
"""
WITHOUT = {"hw.gpu.retired_pages.single_bit", "hw.gpu.retired_pages.double_bit"}  # rows are remapped there


def test_slow_metrics_come_every_10_s_and_one_field_call_serves_both(node: GpuSampler) -> None:
    program = "show([readings.sample(100.0 + second * 0.9999)[0] for second in range(21)])  # a timer that wakes early"
    [samples] = node.ask(BEGIN + program)
    slow = [second for second, groups in enumerate(samples) if len(groups) == 2]
    assert slow == [0, 10, 20] and SLOW_S == 10.0
    assert node.calls.read_bytes() == b"0" * 21
    assert list(GPM_METRICS) + samples[0][0][0] == samples[1][0][0]
    assert {*samples[1][0][0], *samples[10][1][0]} == GPU_METRICS.keys() - WITHOUT
    periods = {name: bool(metric.period_s) for name, metric in GPU_METRICS.items()}
    assert not any(periods[name] for name in samples[1][0][0]) and all(periods[name] for name in samples[10][1][0])


def test_the_slowest_reading_since_the_last_slow_one_is_a_metric_itself(node: GpuSampler) -> None:
    program = """
def latency(now):
    groups, _ = readings.sample(now)
    return dict(zip(*groups[-1])).get("chiplog.agent.nvml_call")

latency(1.0)
tell("slow0")
latency(2.0)
tell("")
show(latency(3.0), latency(11.0), latency(21.0))
"""
    fast, slowest, later = node.ask(BEGIN + program)
    assert fast is None and slowest >= 0.2, "the field call took that long, once"
    assert 0.0 < later < slowest


def test_gaps_and_failures_are_written_once(node: GpuSampler) -> None:
    node.tell("f0.230=no f0.83=fails")
    program = """
lines = [readings.sample(now)[1] for now in (1.0, 2.0)]
tell("")
lines += [readings.sample(now)[1] for now in (3.0, 4.0)]
show(lines)
"""
    [first, second, third, fourth] = node.ask(BEGIN + program)[0]
    assert len(first) == 2 and "hw.gpu.recovery_action" in first[0] and "NVML fails: hw.energy" in first[1]
    assert second == [] and third == ["GPU-0: NVML answers again"] and fourth == []


def test_a_failure_of_gpm_takes_nothing_else_away(node: GpuSampler) -> None:
    program = "readings.sample(1.0); tell('gpm0=fails'); show(readings.sample(2.0)[0][0][0])"
    [names] = node.ask(BEGIN + program)
    assert {name for name, metric in GPU_METRICS.items() if not metric.period_s} - {*names} == GPM_METRICS.keys()


def test_a_device_that_lacks_processes_says_so_apart_from_its_values(node: GpuSampler) -> None:
    node.tell("bare0 pid0=5:1")
    use, later = node.ask(BEGIN + "show(readings.use(1.0)[1], readings.use(2.0)[1])")
    assert len(use) == 1 and "process.gpu.utilization" in use[0] and later == []
