"""The GPUs of this node and their MIG instances, by NVML, and when to enumerate them again."""

from typing import Any

from chiplog_agent.stats.frames import Gpu, MigDevice
from chiplog_agent.stats.gpu.device_sample import Group, NvmlDevice
from chiplog_agent.stats.gpu.events import GpuEvents, Post
from chiplog_agent.stats.gpu.facts import gpu_facts
from chiplog_agent.stats.gpu.nvml import (
    GpuUnavailableError,
    Handle,
    dead_codes,
    gpu_places,
    kernel_gpus,
    load,
)
from chiplog_agent.stats.gpu.processes import DeviceUse
from chiplog_agent.stats.gpu.readings import DeviceReadings

_Layout = tuple[str, ...]  # the UUIDs of a GPU's MIG instances, after a word if it is in MIG mode


class _Device:
    """One GPU or MIG instance: how NVML is called on it, and its readings."""

    def __init__(self, uuid: str, nvml_device: NvmlDevice) -> None:
        self.handle = nvml_device.handle
        self.readings = DeviceReadings(uuid, nvml_device)
        self.layout: _Layout | None = None  # of a GPU, when it was described


class GpuStats:
    """NVML from its initialisation to `close`, and its devices by UUID. Raises GpuUnavailableError without NVML.

    Any call may hang in a wedged driver: use one thread per device, and do not wait for these threads.
    """

    def __init__(self) -> None:
        self._nvml = load()
        self._devices: dict[str, _Device] = {}
        self.gpus: list[Gpu] = []  # once they have been described
        self.lines: list[str] = []  # reasons why a device is missing
        self.places: dict[str, str] = {}  # place → UUID
        self.lost: dict[str, str] = {}  # place → reason, of GPUs that were lost when NVML was initialised
        self.lines_of_mig: list[str] = []  # the same of MIG instances, once they have been described
        without_mig = self._nvml.NVML_ERROR_NOT_SUPPORTED, self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND  # before Ampere
        self._silent = {*without_mig, *dead_codes(self._nvml)}  # samples report what is lost
        self._has_failed = False
        self._rearranged: set[str] = set()  # GPUs whose MIG mode or instances have changed
        self.signature = self.inspect()
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            self.close()
            raise GpuUnavailableError(f"hw.* is absent: NVML cannot count the GPUs: {error}") from error
        for index, place in enumerate(gpu_places(count, kernel_gpus())):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = self._nvml.nvmlDeviceGetUUID(handle)
            except self._nvml.NVMLError as error:
                self._has_failed = True
                if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:  # safeguard: lost-at-start-is-lost
                    self.lost[place] = str(error)
                else:
                    self.lines.append(f"GPU {index} is absent: {error}")
                continue
            self.places[place] = uuid
            if uuid in self._devices:
                self.lines.append(f"GPU {index} is absent: another one has its UUID, {uuid}")
                continue
            self._devices[uuid] = _Device(uuid, NvmlDevice(self._nvml, handle))
        if not self._devices:
            self.close()
            why = "; ".join(["hw.* is absent: NVML shows no GPU", *self.lines])
            raise GpuUnavailableError(why, lost=self.lost)

    def describe(self) -> list[Gpu]:
        """Return the GPUs in NVML's order, and add their MIG instances as devices. Queries each GPU, and may hang."""
        self.gpus = []
        for uuid, device in list(self._devices.items()):
            try:
                is_on, instances = self._instances(device.handle)
            except self._nvml.NVMLError as error:
                is_on, instances = False, []
                if error.value not in self._silent:
                    self.lines_of_mig.append(f"MIG instances of {uuid} are absent: {error}")
            device.layout = _layout(is_on, instances)
            for instance, handle in instances:
                of = NvmlDevice(self._nvml, handle, parent=device.handle, gpu_instance=instance.gpu_instance)
                self._devices[instance.uuid] = _Device(instance.uuid, of)
            self.gpus.append(Gpu(uuid, self._speed(device.handle), tuple(instance for instance, _ in instances)))
        return self.gpus

    def _speed(self, handle: Handle) -> float:
        """Return a measure that orders GPUs as CUDA's FASTEST_FIRST does, as far as known; 0 if unknown."""
        nvml = self._nvml
        try:
            cores = nvml.nvmlDeviceGetNumGpuCores(handle)
            return float(cores * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
        except nvml.NVMLError:
            return 0.0

    def _instances(self, handle: Handle) -> tuple[bool, list[tuple[MigDevice, Handle]]]:
        """Return whether a GPU is in MIG mode, and its instances. Raises NVML's error."""
        nvml, found = self._nvml, []
        is_on = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if is_on else 0
        for index in range(count):
            try:
                mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                numbers = nvml.nvmlDeviceGetGpuInstanceId(mig), nvml.nvmlDeviceGetComputeInstanceId(mig)
                found.append((MigDevice(nvml.nvmlDeviceGetUUID(mig), *numbers), mig))
            except nvml.NVMLError:
                continue  # no instance with this number
        return is_on, found

    def facts(self) -> dict[str, Any]:
        """Return what the GPUs are. Queries each GPU, and may hang."""
        handles = {gpu.uuid: self._devices[gpu.uuid].handle for gpu in self.gpus}
        return gpu_facts(self._nvml, handles)

    def events(self, post: Post, report: Post) -> GpuEvents:
        """Return the events of the GPUs, not started; arguments as those of `GpuEvents`."""
        handles = {uuid: device.handle for uuid, device in self._devices.items()}
        return GpuEvents(self._nvml, handles, lambda: self.gpus, post, report)

    def check_layout(self, uuid: str) -> None:
        """Note it if a GPU's MIG mode or instances are others than those described. Queries the GPU, and may hang."""
        device = self._devices[uuid]
        if device.layout is None:
            return
        try:
            is_changed = _layout(*self._instances(device.handle)) != device.layout
        except self._nvml.NVMLError:
            return  # a GPU before Ampere, or one whose samples report the error
        if is_changed:  # safeguard: mig-change-noticed
            self._rearranged.add(uuid)

    def inspect(self) -> tuple[Any, ...]:
        """Return values that change when a GPU appears, disappears, becomes usable or is partitioned in another way.

        Cheap enough for every second.
        """
        codes = []
        try:
            for index in range(self._nvml.nvmlDeviceGetCount()):
                try:
                    self._nvml.nvmlDeviceGetHandleByIndex(index)
                    codes.append(self._nvml.NVML_SUCCESS)
                except self._nvml.NVMLError as error:
                    codes.append(error.value)
        except self._nvml.NVMLError as error:
            return (error.value,)
        return (*codes, *kernel_gpus(), *sorted(self._rearranged))

    @property
    def is_whole(self) -> bool:
        """Return True if every GPU that NVML counts was usable when NVML was initialised."""
        return not self._has_failed

    def close(self) -> None:
        """Shut NVML down, which invalidates all handles. No thread may be inside a call."""
        try:
            for device in self._devices.values():
                device.readings.close()
        except self._nvml.NVMLError:
            pass  # NVML has freed what it held
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            pass  # it is no longer initialised, which is the goal

    @property
    def devices(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs of this node, in NVML's order, then of the described MIG instances."""
        return tuple(self._devices)

    def use(self, uuid: str, now: float) -> tuple[DeviceUse, list[str]]:
        """Return the processes on a device, and lines that report errors and gaps once. Raises GpuLostError.

        For a GPU in MIG mode, query its instances.
        """
        if any(gpu.uuid == uuid and gpu.instances for gpu in self.gpus):
            return DeviceUse({}, None), []
        return self._devices[uuid].readings.use(now)

    def sample(self, uuid: str, now: float) -> tuple[list[Group], list[str]]:
        """Return what `DeviceReadings.sample` does. now: monotonic, s. Raises GpuLostError."""
        return self._devices[uuid].readings.sample(now)


def _layout(is_on: bool, instances: list[tuple[MigDevice, Handle]]) -> _Layout:
    return (*(["MIG"] if is_on else []), *(instance.uuid for instance, _ in instances))
