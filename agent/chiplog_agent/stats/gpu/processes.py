"""Which processes compute on a device, their memory there, and how much of its time they use."""

from typing import NamedTuple

from chiplog_agent.stats.gpu.device_sample import DeviceSample, NvmlDevice

_PERCENT = 1e-2
_UNKNOWN_BYTES = -1
_MEMORY_NAME = "process.gpu.memory.usage"
_SHARES_NAME = "process.gpu.utilization"


class DeviceUse(NamedTuple):
    """The processes on one device. memory: by PID, in bytes; -1 if unknown.

    shares: of the device's time, by PID; a process that is missing there used none. None: unknown.
    """

    memory: dict[int, int]
    shares: dict[int, float] | None


class ProcessReader:
    """Queries the processes of one device."""

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._has_memory = True
        self._has_shares = not device.is_instance  # NVML: not under MIG
        self._seen_us = 0  # the newest sample of the driver that was read, in its time

    def read(self, sample: DeviceSample) -> DeviceUse:
        """Return the processes now, and how busy each was since the last call. Raises GpuLostError."""
        memory = self._memory(sample) if self._has_memory else {}
        return DeviceUse(memory, self._shares(sample) if memory and self._has_shares else None)

    def _memory(self, sample: DeviceSample) -> dict[int, int]:
        try:
            found = self._device.nvml.nvmlDeviceGetComputeRunningProcesses(self._device.handle)
        except self._device.nvml.NVMLError as error:
            if self._device.is_final(error.value):
                self._has_memory = False
                sample.unsupported.append(_MEMORY_NAME)
            else:
                sample.failures.append(f"{_MEMORY_NAME}: {error}")
            return {}
        return {entry.pid: _UNKNOWN_BYTES if entry.usedGpuMemory is None else entry.usedGpuMemory for entry in found}

    def _shares(self, sample: DeviceSample) -> dict[int, float] | None:
        nvml = self._device.nvml
        try:
            found = nvml.nvmlDeviceGetProcessUtilization(self._device.handle, self._seen_us)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_SUCCESS):  # no process has used it since
                return {}
            if self._device.is_final(error.value):
                self._has_shares = False
                sample.unsupported.append(_SHARES_NAME)
            else:
                sample.failures.append(f"{_SHARES_NAME}: {error}")
            return None
        newest: dict[int, tuple[int, float]] = {}
        for entry in found:
            pid, at_us, share = entry.pid, entry.timeStamp, entry.smUtil * _PERCENT
            # Entries that the driver does not use hold random bytes: no time, or a share above 1.
            if at_us > self._seen_us and share <= 1.0 and at_us > newest.get(pid, (0, 0.0))[0]:
                newest[pid] = at_us, share
        self._seen_us = max([self._seen_us, *(at_us for at_us, _ in newest.values())])
        return {pid: share for pid, (_, share) in newest.items()}
