"""Names of samples as people read them: a title, and what the values count; in the order of the page."""

from typing import NamedTuple


class SampleName(NamedTuple):
    """What a name of a sample means.

    Attributes:
        title: A few plain words.
        quantity: What the values count, which decides about units: share, cores, bytes, hertz, watts, celsius, joules,
            seconds or "" for plain numbers.
    """

    title: str
    quantity: str = ""


# The names of agent/chiplog_agent/stats: gpu.py, host.py and process_tree.py say how each is measured.
SAMPLE_NAMES = {
    "hw.gpu.utilization": SampleName("GPU utilization", "share"),
    "hw.gpu.memory.usage": SampleName("GPU memory used", "bytes"),
    "hw.gpu.memory.limit": SampleName("GPU memory, total", "bytes"),
    "hw.power": SampleName("GPU power", "watts"),
    "hw.power.limit": SampleName("GPU power limit", "watts"),
    "hw.energy": SampleName("GPU power, from the energy counter", "joules"),
    "hw.temperature.core": SampleName("GPU temperature", "celsius"),
    "hw.temperature.memory": SampleName("GPU memory temperature", "celsius"),
    "hw.gpu.clock.sm": SampleName("GPU clock", "hertz"),
    "hw.gpu.clock.mem": SampleName("GPU memory clock", "hertz"),
    "hw.errors.ecc_corrected": SampleName("GPU ECC errors, corrected"),
    "hw.errors.ecc_uncorrected": SampleName("GPU ECC errors, uncorrected"),
    "system.cpu.utilization": SampleName("Host CPU utilization", "share"),
    "system.cpu.load_average.1m": SampleName("Host load average (1 min)"),
    "system.memory.usage": SampleName("Host memory used", "bytes"),
    "system.memory.limit": SampleName("Host memory, total", "bytes"),
    "system.disk.io.read": SampleName("Disk reads", "bytes"),
    "system.disk.io.write": SampleName("Disk writes", "bytes"),
    "system.filesystem.usage": SampleName("Root file system used", "bytes"),
    "system.network.io.receive": SampleName("Network received", "bytes"),
    "system.network.io.transmit": SampleName("Network sent", "bytes"),
    "system.network.errors": SampleName("Network errors"),
    "system.network.dropped": SampleName("Network packets dropped"),
    "system.paging.faults": SampleName("Page faults"),
    "system.pressure.cpu": SampleName("CPU pressure (some task stalled)", "seconds"),
    "system.pressure.memory": SampleName("Memory pressure (some task stalled)", "seconds"),
    "system.pressure.io": SampleName("I/O pressure (some task stalled)", "seconds"),
    "process.cpu.utilization": SampleName("CPU usage of the rank", "cores"),
    "process.memory.usage": SampleName("Memory of the rank", "bytes"),
    "process.threads": SampleName("Threads of the rank"),
    "process.open_file_descriptors": SampleName("Open files and sockets of the rank"),
    "cgroup.memory.usage": SampleName("Memory of the rank's container", "bytes"),
    "cgroup.memory.limit": SampleName("Memory limit of the rank's container", "bytes"),
}
_PLACES = {name: place for place, name in enumerate(SAMPLE_NAMES)}


def sample_name(name: str) -> SampleName:
    """Return what a name means; a name of another agent is its own title."""
    return SAMPLE_NAMES.get(name) or SampleName(name)


def sample_place(name: str) -> tuple[int, str]:
    """Return a key that sorts names in the order of the page, those of other agents last."""
    return _PLACES.get(name, len(_PLACES)), name
