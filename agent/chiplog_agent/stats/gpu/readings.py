"""All readings of one device: its calls, fields, performance counters and processes, and what it lacks."""

import time

from chiplog_agent.stats.gpu.calls import CallReader
from chiplog_agent.stats.gpu.device_sample import DeviceSample, Group, NvmlDevice
from chiplog_agent.stats.gpu.fields import FieldReader
from chiplog_agent.stats.gpu.gpm import GpmReader
from chiplog_agent.stats.gpu.processes import DeviceUse, ProcessReader
from chiplog_agent.stats.source import DUE_SLACK_S
from chiplog_schemas.model.system_metrics import SLOW_S

_LATENCY_NAME = "chiplog.agent.nvml_call"
_LINES_MAX = 64  # reasons reported per device; a driver that invents errors must not fill a log


class DeviceReadings:
    """Reads one GPU or MIG instance. Used by one thread at a time; any call may hang in a wedged driver."""

    def __init__(self, uuid: str, device: NvmlDevice) -> None:
        self._uuid = uuid
        self._calls = CallReader(device)
        self._fields = FieldReader(device)
        self._gpm = GpmReader(device)
        self._processes = ProcessReader(device)
        self._has_latency = not device.is_instance
        self._slowest_s = 0.0  # of the readings since the last slow one
        self._slow_at = float("-inf")
        self._failing = ""  # the last failure, to report only changes
        self._failing_use = ""
        self._lines_reported = 0

    def sample(self, now: float) -> tuple[list[Group], list[str]]:
        """Return groups of (names, values), and lines that report errors and gaps once. now: monotonic, s.

        The first group is read each time; a second one holds the slow metrics when they are due. A metric that a device
        does not support is remembered and never queried again. Any other failure leaves it out of this sample only.
        Without any group the device does not answer. Raises GpuLostError.
        """
        sample = DeviceSample(now, is_slow=now - self._slow_at >= SLOW_S - DUE_SLACK_S)
        begun = time.perf_counter()
        self._gpm.read(sample)  # first: it measures rates that fields need
        self._calls.extend(self._fields.read(sample))
        self._calls.read(sample)
        self._slowest_s = max(self._slowest_s, time.perf_counter() - begun)
        if sample.is_slow:
            self._slow_at = now
            if self._has_latency and sample.groups():  # without any, the device does not answer
                sample.add((_LATENCY_NAME,), (self._slowest_s,), slow=True)
            self._slowest_s = 0.0
        lines = self._explain(sample, self._failing)
        self._failing = "; ".join(sample.failures)
        return sample.groups(), lines

    def use(self, now: float) -> tuple[DeviceUse, list[str]]:
        """Return the processes on the device, and lines as `sample` does. Raises GpuLostError."""
        sample = DeviceSample(now, is_slow=False)
        use = self._processes.read(sample)
        lines = self._explain(sample, self._failing_use)
        self._failing_use = "; ".join(sample.failures)
        return use, lines

    def close(self) -> None:
        """Free what NVML holds for the readings."""
        self._gpm.close()

    def _explain(self, sample: DeviceSample, failing_before: str) -> list[str]:
        lines = []
        if sample.unsupported:
            lines.append(f"{self._uuid}: not supported and absent: {', '.join(sample.unsupported)}")
        failing = "; ".join(sample.failures)
        if failing != failing_before:
            lines.append(f"{self._uuid}: NVML fails: {failing}" if failing else f"{self._uuid}: NVML answers again")
        kept = lines[: _LINES_MAX - self._lines_reported]
        self._lines_reported += len(kept)
        return kept
