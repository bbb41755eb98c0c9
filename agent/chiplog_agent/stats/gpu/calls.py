"""Readings of a GPU for which NVML has a call each.

To add a metric, add it to SYSTEM_METRICS, and a row to CALLS.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from chiplog_agent.stats.gpu.device_sample import DeviceSample, NvmlDevice
from chiplog_agent.stats.gpu.nvml import Handle, Nvml

_MEGA = 1e6
_MILLI = 1e-3
_PERCENT = 1e-2


class Attempt(NamedTuple):
    """One way to read some metrics."""

    names: tuple[str, ...]
    read: Callable[[Nvml, Handle], tuple[float, ...]]


class Call(NamedTuple):
    """Metrics of one call. `attempts` are tried in order until one is supported, which is then kept.

    slow: read when slow metrics are due. on_instances: MIG instances have it too; other calls fail there, or
    return the value of the whole GPU.
    """

    attempts: tuple[Attempt, ...]
    slow: bool = False
    on_instances: bool = False


def _utilization(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu * _PERCENT, rates.memory * _PERCENT


def _memory_v2(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    return float(memory.used), float(memory.total), float(memory.reserved)


def _memory(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return float(memory.used), float(memory.total)


def _power_limit(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetEnforcedPowerLimit(handle) * _MILLI,)


def _power(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetPowerUsage(handle) * _MILLI,)


def _energy(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * _MILLI,)


def _temperature(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    return (float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),)


def _clock_sm(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * _MEGA,)


def _clock_mem(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * _MEGA,)


def _event_reasons(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    return (float(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),)


def _throttle_reasons(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    return (float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),)  # the name before driver 535


def _encoder(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetEncoderUtilization(handle)[0] * _PERCENT,)


def _decoder(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetDecoderUtilization(handle)[0] * _PERCENT,)


def _retired_pages(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    causes = (
        nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    )
    single, double = (float(len(nvml.nvmlDeviceGetRetiredPages(handle, cause))) for cause in causes)
    return single, double


_MEMORY = ("hw.gpu.memory.usage", "hw.gpu.memory.limit")
_REASONS = ("hw.gpu.throttle.reasons",)
CALLS = (
    Call((Attempt(("hw.gpu.utilization", "hw.gpu.memory.utilization"), _utilization),)),
    Call((Attempt((*_MEMORY, "hw.gpu.memory.reserved"), _memory_v2), Attempt(_MEMORY, _memory)), on_instances=True),
    Call((Attempt(("hw.power.limit",), _power_limit),)),  # as the driver enforces it now
    Call((Attempt(("hw.temperature.core",), _temperature),)),
    Call((Attempt(("hw.gpu.clock.sm",), _clock_sm),)),
    Call((Attempt(("hw.gpu.clock.mem",), _clock_mem),)),
    Call((Attempt(_REASONS, _event_reasons), Attempt(_REASONS, _throttle_reasons))),
    Call((Attempt(("hw.gpu.encoder.utilization",), _encoder),), slow=True),
    Call((Attempt(("hw.gpu.decoder.utilization",), _decoder),), slow=True),
)
# Where the field of the same value, or row remapping, is missing.
POWER = Call((Attempt(("hw.power",), _power),))
ENERGY = Call((Attempt(("hw.energy",), _energy),))
RETIRED_PAGES = Call(
    (Attempt(("hw.gpu.retired_pages.single_bit", "hw.gpu.retired_pages.double_bit"), _retired_pages),), slow=True
)


class CallReader:
    """Makes the calls of one device. A call that the device does not support is never made again."""

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._calls = [call for call in CALLS if call.on_instances or not device.is_instance]

    def extend(self, calls: Iterable[Call]) -> None:
        """Make further calls from now on."""
        self._calls += calls

    def read(self, sample: DeviceSample) -> None:
        """Add what is due to a sample. Raises GpuLostError."""
        self._calls = [
            kept
            for call in self._calls
            if (kept := self._read(call, sample) if sample.is_slow or not call.slow else call) is not None
        ]

    def _read(self, call: Call, sample: DeviceSample) -> Call | None:
        """Make a call. Return what to try next time; None if no attempt is supported."""
        device = self._device
        while call.attempts:
            names, read = call.attempts[0]
            try:
                values = read(device.nvml, device.handle)
            except device.nvml.NVMLError as error:
                if not device.is_final(error.value):
                    sample.failures.append(f"{names[0]}: {error}")
                    return call
                call = call._replace(attempts=call.attempts[1:])
                left = {name for attempt in call.attempts for name in attempt.names}
                sample.unsupported += [name for name in names if name not in left]
            else:
                sample.add(names, values, slow=call.slow)
                return call
        return None
