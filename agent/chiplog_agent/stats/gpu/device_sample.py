"""What one reading of a device collects: values by their period, failures, and what the device does not support."""

from collections.abc import Iterable
from typing import Any

from chiplog_agent.stats.gpu.nvml import GpuLostError, Handle, Nvml, dead_codes

Group = tuple[tuple[str, ...], tuple[float, ...]]


class NvmlDevice:
    """A device of NVML, and what an error of a call on it means.

    parent: of a MIG instance, the GPU. gpu_instance: its number there.
    """

    def __init__(
        self, nvml: Nvml, handle: Handle, *, parent: Handle | None = None, gpu_instance: int | None = None
    ) -> None:
        self.nvml = nvml
        self.handle = handle
        self.parent = parent
        self.gpu_instance = gpu_instance
        self._final = frozenset(
            (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_INVALID_ARGUMENT,
                nvml.NVML_ERROR_NO_PERMISSION,
                nvml.NVML_ERROR_DEPRECATED,
                nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            )
        )
        self._dead = dead_codes(nvml)

    @property
    def is_instance(self) -> bool:
        """Return True for a MIG instance."""
        return self.parent is not None

    def is_final(self, code: int) -> bool:
        """Return True if no retry can change an error. Raises GpuLostError if the handle is dead."""
        if code in self._dead:
            is_unloaded = code == self.nvml.NVML_ERROR_DRIVER_NOT_LOADED
            raise GpuLostError(str(self.nvml.NVMLError(code)), is_unloaded=is_unloaded)
        return code in self._final

    def error(self, code: int) -> Any:
        """Return NVML's error with its text."""
        return self.nvml.NVMLError(code)


class DeviceSample:
    """One reading of a device. now: monotonic, s. is_slow: the metrics that change rarely are due too.

    rates: of counters, per second since the reading before, as GPM measures them; for those that wrap.
    """

    def __init__(self, now: float, *, is_slow: bool) -> None:
        self.now = now
        self.is_slow = is_slow
        self.failures: list[str] = []
        self.unsupported: list[str] = []
        self.rates: dict[str, float] = {}
        self._fast: dict[str, float] = {}
        self._slow: dict[str, float] = {}

    def add(self, names: Iterable[str], values: Iterable[float], *, slow: bool = False) -> None:
        """Add values of metrics. They correspond by position."""
        (self._slow if slow else self._fast).update(zip(names, values, strict=True))

    def groups(self) -> list[Group]:
        """Return (names, values) of what is read each time, then of the slow metrics; without empty ones."""
        return [(tuple(values), tuple(values.values())) for values in (self._fast, self._slow) if values]
