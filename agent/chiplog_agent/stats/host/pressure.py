"""Pressure stall information: how long tasks waited for CPU, memory or I/O."""

from chiplog_agent.stats.host.files import read_file
from chiplog_agent.stats.source import HOST_DEVICE, AbsentError, Reading, Source

RESOURCES = ("cpu", "memory", "io")
_NAMES = tuple(f"system.pressure.{resource}" for resource in RESOURCES)
_US_PER_S = 1e6


class PressureSource(Source):
    """The host's pressure, where the kernel has it."""

    title = "pressure"

    def read(self) -> list[Reading]:
        """Read /proc/pressure."""
        try:
            texts = [read_file(f"/proc/pressure/{resource}") for resource in RESOURCES]
        except OSError as error:
            raise AbsentError(f"system.pressure.* is absent: {error}") from error  # psi=0 answers EOPNOTSUPP
        return [Reading(HOST_DEVICE, _NAMES, tuple(map(stalled_s, texts)))]


def stalled_s(text: bytes) -> float:
    """Return the seconds of the `some` line: `some avg10=0.00 avg60=0.00 avg300=0.00 total=<µs>`.

    Documentation/accounting/psi.rst. Raises ValueError or IndexError.
    """
    return int(text.split(b"total=", 1)[1].split(b"\n", 1)[0]) / _US_PER_S
