"""Fields: one call for all, their numbers and units, wrapped counters, and what takes the place of missing ones."""

import re

import pynvml
import pytest

from chiplog_agent.stats.gpu.fields import FIELDS, Unwrapped
from chiplog_schemas.model.system_metrics import GPU_METRICS
from tests.support.gpu_sampler import GpuSampler
from tests.support.safeguard import proves

BEGIN = """
from chiplog_agent.stats.gpu.fields import FieldReader

def read(reader, *, slow=True):
    sample = DeviceSample(0.0, is_slow=slow)
    calls = reader.read(sample)
    return sample, [name for call in calls for name in call.attempts[0].names]
"""
VALUES = {  # of the stand-in, in the units of SYSTEM_METRICS
    "hw.energy": 123456.789,
    "hw.temperature.memory": 72.0,
    "hw.gpu.throttle.time.sw_power": 2.5,
    "hw.gpu.throttle.time.sync_boost": 0.5,
    "hw.gpu.throttle.time.sw_thermal": 3.0,
    "hw.gpu.throttle.time.hw_thermal": 4.0,
    "hw.gpu.throttle.time.hw_brake": 5.0,
    "hw.gpu.io.pcie.receive": 2e6,
    "hw.gpu.io.pcie.transmit": 1e6,
    "hw.gpu.io.nvlink.receive": 4000 * 1024.0,
    "hw.gpu.io.nvlink.transmit": 3000 * 1024.0,
}
SLOW_VALUES = {
    "hw.gpu.throttle.time.thermal": 0.25,
    "hw.gpu.throttle.time.board_limit": 0.75,
    "hw.gpu.throttle.time.reliability": 1.25,
    "hw.errors.ecc_corrected": 7.0,
    "hw.errors.ecc_uncorrected": 1.0,
    "hw.errors.ecc_corrected.aggregate": 70.0,
    "hw.errors.ecc_uncorrected.aggregate": 10.0,
    "hw.errors.pcie_replay": 6.0,
    "hw.errors.nvlink_replay": 11.0,
    "hw.errors.nvlink_recovery": 12.0,
    "hw.errors.nvlink_crc": 13.0,
    "hw.gpu.row_remap.correctable": 2.0,
    "hw.gpu.row_remap.uncorrectable": 1.0,
    "hw.gpu.row_remap.pending": 1.0,
    "hw.gpu.row_remap.failure": 0.0,
    "hw.gpu.recovery_action": 1.0,
}


@proves(
    "one-field-call",
    "all due fields of a GPU are read with one call",
    value="[nvml.nvmlDeviceGetFieldValues(device.handle, [(of.number, of.scope)])[0] for of in due]",
)
def test_fast_and_slow_fields_of_every_scope_come_by_one_call_in_their_units(node: GpuSampler) -> None:
    program = """
reader = FieldReader(device())
first, calls = read(reader)
second, _ = read(reader, slow=False)
show(values(first), values(second), calls, first.unsupported)
"""
    first, second, calls, unsupported = node.ask(BEGIN + program)
    assert first == pytest.approx(VALUES | SLOW_VALUES)
    assert second == pytest.approx(VALUES)
    assert calls == ["hw.power"] and unsupported == [], "field 186 is missing there, and has a call in its place"
    assert node.calls.read_bytes() == b"00"


def test_field_numbers_are_those_of_pynvml_which_the_comments_name(node: GpuSampler) -> None:
    """The fields as the table's source has them: its comments name NVML's constants."""
    from chiplog_agent.stats.gpu import fields

    with open(fields.__file__, encoding="utf-8") as source:
        rows = re.findall(r"    Field\(\"\S+, (\d+).*# .*?(NVML_FI_DEV_\w+)", source.read())
    numbers = {int(number): name for number, name in rows}
    assert list(numbers) == [field.number for field in FIELDS]
    [found] = node.ask(f"show([getattr(pynvml, name) for name in {list(numbers.values())!r}])")
    assert found == list(numbers)


def test_each_recovery_action_of_pynvml_is_described() -> None:
    actions = {value for name, value in vars(pynvml).items() if name.startswith("NVML_GPU_RECOVERY_ACTION_")}
    described = {int(number) for number in re.findall(r"(\d+) [a-z]", GPU_METRICS["hw.gpu.recovery_action"].source)}
    assert actions == described and pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT == 2


def test_fields_agree_with_the_table_of_metrics_about_their_period_and_number() -> None:
    for field in FIELDS:
        metric = GPU_METRICS[field.name]
        assert bool(metric.period_s) == field.slow, field.name
        assert str(field.number) in metric.source, field.name


def test_nvlink_without_the_field_in_kib_is_read_in_bytes(node: GpuSampler) -> None:
    node.tell("f0.138=no f0.139=no f0.202=123456 f0.204=654321")
    program = """
sample, _ = read(FieldReader(device()))
show(values(sample), sample.unsupported)
"""
    found, unsupported = node.ask(BEGIN + program)
    assert (found["hw.gpu.io.nvlink.transmit"], found["hw.gpu.io.nvlink.receive"]) == (123456.0, 654321.0)
    assert unsupported == []


def test_a_gpu_without_nvlink_lacks_it_and_is_not_asked_again(node: GpuSampler) -> None:
    node.tell(" ".join(f"f0.{number}=no" for number in (138, 139, 161, 162, 163)))
    program = """
reader = FieldReader(device())
lacks = [read(reader)[0].unsupported for _ in range(3)]
tell("")
sample, _ = read(reader)
show(lacks, [name for name in values(sample) if "nvlink" in name])
"""
    (first, second, third), later = node.ask(BEGIN + program)
    errors = [f"hw.errors.nvlink_{kind}" for kind in ("replay", "recovery", "crc")]
    assert first == ["hw.gpu.io.nvlink.receive", "hw.gpu.io.nvlink.transmit", *errors]
    assert second == third == later == []


def test_retired_pages_are_read_only_where_rows_are_not_remapped(node: GpuSampler) -> None:
    node.tell(" ".join(f"f0.{number}=no" for number in (142, 143, 144, 145)))
    program = "sample, calls = read(FieldReader(device())); show(calls, sample.unsupported)"
    calls, unsupported = node.ask(BEGIN + program)
    assert calls == ["hw.power", "hw.gpu.retired_pages.single_bit", "hw.gpu.retired_pages.double_bit"]
    assert [name.rpartition(".")[2] for name in unsupported] == ["correctable", "uncorrectable", "pending", "failure"]


def test_a_field_that_fails_is_left_out_of_this_sample_only(node: GpuSampler) -> None:
    node.tell("f0.83=fails")
    program = """
reader = FieldReader(device())
first, _ = read(reader)
tell("")
second, _ = read(reader)
show(values(first), first.failures, values(second), second.failures)
"""
    first, failures, second, later = node.ask(BEGIN + program)
    assert "hw.energy" not in first and "hw.energy" in second
    assert [text.partition(":")[0] for text in failures] == ["hw.energy"] and later == []


@proves(
    "passing-error-keeps-fields", "a field that fails once does not end the one that takes its place", condition=True
)
def test_a_field_that_fails_once_does_not_end_the_one_that_takes_its_place(node: GpuSampler) -> None:
    program = """
reader = FieldReader(device())
shown = []
for words in ("f0.138=fails f0.139=fails", "f0.138=no f0.139=no", ""):
    tell(f"{words} f0.202=123 f0.204=456")
    sample, _ = read(reader, slow=False)
    shown.append([values(sample).get(f"hw.gpu.io.nvlink.{way}") for way in ("receive", "transmit")])
    shown.append([text.partition(":")[0] for text in sample.failures])
show(shown)
"""
    [shown] = node.ask(BEGIN + program)
    names = ["hw.gpu.io.nvlink.receive", "hw.gpu.io.nvlink.transmit"]
    assert shown == [[None, None], names, [456.0, 123.0], [], [456.0, 123.0], []]


@proves("pcie-counter-unwrapped", "a counter that wraps at 32 bits only grows", condition=False)
def test_a_counter_that_wraps_at_32_bits_only_grows(node: GpuSampler) -> None:
    program = """
reader, found = FieldReader(device()), []
for value in (2**32 - 10, 5, 2**32 - 1, 0):
    tell(f"f0.198={value} f0.197={value // 2}")
    sample = values(read(reader, slow=False)[0])
    found.append([sample[f"hw.gpu.io.pcie.{way}"] for way in ("receive", "transmit")])
show(*zip(*found))
"""
    receive, transmit = node.ask(BEGIN + program)
    assert receive == [2**32 - 10, 2**32 + 5, 2**33 - 1, 2**33]
    assert transmit == [2**31 - 5, 2**32 + 2, 2**32 + 2**31 - 1, 2**33]


def test_a_counter_of_64_bits_that_is_reset_continues() -> None:
    counter = Unwrapped()
    found = [counter.grow(value, now, 5e9) for now, value in enumerate((3e10, 4e10, 0.0, 1e9))]
    assert found == [3e10, 4e10, 4e10, 4.1e10]


@proves("pcie-wraps-counted", "a counter that wraps several times between samples is counted by GPM's rate", value="0")
def test_a_counter_that_wraps_several_times_between_samples_is_counted_by_a_rate() -> None:
    """32 GB/s by PCIe 4.0 or 5.0: seven wraps a second. The rate may be off by half a wrap."""
    counter, sent = Unwrapped(), 1e9
    assert counter.grow(sent, 0.0) == sent
    for second, error in enumerate((0.0, 2e9, -2e9, 0.0), 1):
        sent += 32e9
        assert counter.grow(sent % 2**32, float(second), 32e9 + error) == sent
    sent += 64e9
    assert counter.grow(sent % 2**32, 6.0, 32e9) == sent, "after a longer pause"
    assert counter.grow(sent % 2**32, 7.0, 1e15) == sent, "no bus is that fast"
    assert counter.grow(sent % 2**32, 8.0, 1e9) == sent, "a rate below a wrap adds none"


def test_traffic_above_the_counters_range_is_measured_with_gpm(node: GpuSampler) -> None:
    """GPM tells 8,192 MiB/s in each direction: two wraps a second."""
    node.tell("f0.198=1000 f0.197=2000 gpm0.20=8192 gpm0.21=8192")
    program = """
from chiplog_agent.stats.gpu.readings import DeviceReadings
readings = DeviceReadings("GPU-0", device())
found = [dict(zip(*readings.sample(now)[0][0])) for now in (0.0, 1.0, 2.0)]
show([[sample[f"hw.gpu.io.pcie.{way}"] for sample in found] for way in ("receive", "transmit")])
"""
    [[receive, transmit]] = node.ask(BEGIN + program)
    assert receive == [1000.0, 1000.0 + 2**33, 1000.0 + 2**34]
    assert transmit == [2000.0, 2000.0 + 2**33, 2000.0 + 2**34]


def test_nvlink_errors_come_from_the_sums_of_older_gpus_or_of_blackwell(node: GpuSampler) -> None:
    """Where a driver has no sum over the links for the fields of one link."""
    node.tell("f0.161=no f0.162=no f0.163=no f0.52=21 f0.59=no f0.215=22 f0.38=23")
    sample, _ = node.ask(BEGIN + "sample, calls = read(FieldReader(device())); show(values(sample), calls)")
    found = [sample[f"hw.errors.nvlink_{kind}"] for kind in ("replay", "recovery", "crc")]
    assert found == [21.0, 22.0, 23.0]


def test_what_takes_a_fields_place_is_a_metric_too() -> None:
    for field in FIELDS:
        if field.otherwise is not None:
            assert set(field.otherwise.attempts[0].names) <= GPU_METRICS.keys()
