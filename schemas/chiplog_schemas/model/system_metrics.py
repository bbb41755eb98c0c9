"""Every metric that the agent samples: the one table behind its sources, the page's titles, /metrics and the reference.

To add a metric, add a row here and let a source of the agent give its value. Names follow OpenTelemetry's semantic
conventions where these have one. Units are UCUM.
"""

from collections.abc import Iterable
from typing import NamedTuple

SLOW_S = 10.0  # between two readings of what costs more or changes rarely
_QUANTITIES = {
    "1": "share",
    "{cpu}": "cores",
    "By": "bytes",
    "Hz": "hertz",
    "W": "watts",
    "Cel": "celsius",
    "J": "joules",
    "s": "seconds",
}


class SystemMetric(NamedTuple):
    """What a name of a sample means.

    Attributes:
        name: As in `system.name`.
        unit: UCUM; `1` is a share, `{…}` counts things.
        title: A few plain words.
        source: Where the value is read.
        is_counter: Whether it counts up from a start that is not the run's; a rate is what people look at.
        period_s: Between two readings, in s; 0 is the interval of the agent, 1 s by default.
        is_hidden: Whether the page shows it in another form.
    """

    name: str
    unit: str
    title: str
    source: str
    is_counter: bool = False
    period_s: float = 0.0
    is_hidden: bool = False

    @property
    def quantity(self) -> str:
        """What the values count, which decides about the unit that people see; "" for plain numbers."""
        return _QUANTITIES.get(self.unit, "")


def _gauge(name: str, unit: str, title: str, source: str, period_s: float = 0.0) -> SystemMetric:
    return SystemMetric(name, unit, title, source, period_s=period_s)


def _count(name: str, unit: str, title: str, source: str, period_s: float = 0.0) -> SystemMetric:
    return SystemMetric(name, unit, title, source, is_counter=True, period_s=period_s)


# Of a GPU, or of a MIG instance where the driver gives it. Numbers are those of nvml.h, NVML_FI_DEV_*.
_GPU = (
    _gauge("hw.gpu.utilization", "1", "GPU utilization", "nvmlDeviceGetUtilizationRates; not under MIG"),
    _gauge("hw.gpu.memory.usage", "By", "GPU memory used", "nvmlDeviceGetMemoryInfo"),
    _gauge("hw.gpu.memory.limit", "By", "GPU memory, total", "nvmlDeviceGetMemoryInfo"),
    _gauge("hw.power", "W", "GPU power", "field 186, else nvmlDeviceGetPowerUsage"),
    _gauge("hw.power.limit", "W", "GPU power limit", "nvmlDeviceGetEnforcedPowerLimit"),
    _count("hw.energy", "J", "GPU power, from the energy counter", "field 83"),
    _gauge("hw.temperature.core", "Cel", "GPU temperature", "nvmlDeviceGetTemperature"),
    _gauge("hw.temperature.memory", "Cel", "GPU memory temperature", "field 82"),
    _gauge("hw.gpu.clock.sm", "Hz", "GPU clock", "nvmlDeviceGetClockInfo"),
    _gauge("hw.gpu.clock.mem", "Hz", "GPU memory clock", "nvmlDeviceGetClockInfo"),
    SystemMetric(
        "hw.gpu.throttle.reasons",
        "{mask}",
        "GPU throttle reasons",
        "nvmlDeviceGetCurrentClocksEventReasons: bits of nvmlClocksEventReasons",
        is_hidden=True,
    ),
    _count("hw.errors.ecc_corrected", "{error}", "GPU ECC errors, corrected", "field 3", SLOW_S),
    _count("hw.errors.ecc_uncorrected", "{error}", "GPU ECC errors, uncorrected", "field 4", SLOW_S),
)
_HOST = (
    _gauge("system.cpu.utilization", "1", "Host CPU utilization", "/proc/stat; waiting for I/O is idle"),
    _gauge("system.cpu.load_average.1m", "{thread}", "Host load average (1 min)", "getloadavg"),
    _gauge("system.memory.usage", "By", "Host memory used", "/proc/meminfo, total - available, of the whole host"),
    _gauge("system.memory.limit", "By", "Host memory, total", "/proc/meminfo"),
    _count("system.disk.io.read", "By", "Disk reads", "/proc/diskstats; device empty: the sum of real disks"),
    _count("system.disk.io.write", "By", "Disk writes", "likewise"),
    _gauge("system.filesystem.usage", "By", "File system used", "statvfs; device empty: the root file system"),
    _count("system.network.io.receive", "By", "Network received", "/proc/net/dev; device empty: the sum of real NICs"),
    _count("system.network.io.transmit", "By", "Network sent", "likewise"),
    _count("system.network.errors", "{error}", "Network errors", "likewise, both directions"),
    _count("system.network.dropped", "{packet}", "Network packets dropped", "likewise, both directions"),
    _count("system.paging.faults", "{fault}", "Page faults", "/proc/vmstat, minor and major"),
    _count("system.pressure.cpu", "s", "CPU pressure (some task stalled)", "/proc/pressure/cpu, line some"),
    _count("system.pressure.memory", "s", "Memory pressure (some task stalled)", "/proc/pressure/memory, line some"),
    _count("system.pressure.io", "s", "I/O pressure (some task stalled)", "/proc/pressure/io, line some"),
)
# Of a rank: the sum over its process tree, DataLoader workers included; device `pid:<PID>`.
_RANK = (
    _gauge("process.cpu.utilization", "{cpu}", "CPU usage of the rank", "/proc/PID/stat, with children that ended"),
    _gauge("process.memory.usage", "By", "Memory of the rank", "/proc/PID/stat; shared pages count in each process"),
    _gauge("process.threads", "{thread}", "Threads of the rank", "/proc/PID/stat"),
    _gauge("process.open_file_descriptors", "{fd}", "Open files and sockets of the rank", "/proc/PID/fd"),
    _gauge("cgroup.memory.usage", "By", "Memory of the rank's container", "memory.current less inactive page cache"),
    _gauge("cgroup.memory.limit", "By", "Memory limit of the rank's container", "memory.max, the tightest one above"),
)


def _by_name(metrics: Iterable[SystemMetric]) -> dict[str, SystemMetric]:
    return {metric.name: metric for metric in metrics}


SYSTEM_METRICS = _by_name((*_GPU, *_HOST, *_RANK))  # in the order of the page
GPU_METRICS, HOST_METRICS, RANK_METRICS = map(_by_name, (_GPU, _HOST, _RANK))
