"""Samples of the GPUs of this node, by NVML.

To add a metric, add a row to READERS, or to FIELDS when NVML provides it as a field value.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from chiplog_agent.stats.frames import Gpu, MigDevice
from chiplog_agent.stats.gpu.nvml import GpuLostError, GpuUnavailableError, Handle, Nvml, kernel_gpus, load, number_of

SLOW_INTERVAL_S = 10.0  # ECC counters: the driver queries the device for them, and they change rarely
_MEGA = 1e6
_MILLI = 1e-3
_LINES_MAX = 64  # reasons reported per device; a driver that invents errors must not fill a log

_Attempt = Callable[[Nvml, Handle], tuple[float, ...]]
Group = tuple[tuple[str, ...], tuple[float, ...]]


class Reader(NamedTuple):
    """Metrics of one NVML call. `attempts` are tried in order until one is supported, which is then kept."""

    names: tuple[str, ...]
    attempts: tuple[_Attempt, ...]


class Field(NamedTuple):
    """A metric of nvmlDeviceGetFieldValues: its number in nvml.h, and the factor to its unit.

    `otherwise` is tried on devices that do not have the field. `slow` fields are read every SLOW_INTERVAL_S.
    """

    name: str
    number: int
    factor: float
    otherwise: _Attempt | None = None
    slow: bool = False


def _utilization(nvml: Nvml, handle: Handle) -> tuple[float, ...]:
    return (nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0,)


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


READERS = (
    Reader(("hw.gpu.utilization",), (_utilization,)),  # 1; share of time with a running kernel; not under MIG
    Reader(("hw.gpu.memory.usage", "hw.gpu.memory.limit"), (_memory,)),  # By
    Reader(("hw.power.limit",), (_power_limit,)),  # W, currently enforced by the driver
    Reader(("hw.temperature.core",), (_temperature,)),  # Cel
    Reader(("hw.gpu.clock.sm",), (_clock_sm,)),  # Hz
    Reader(("hw.gpu.clock.mem",), (_clock_mem,)),  # Hz
    Reader(("hw.gpu.throttle.reasons",), (_event_reasons, _throttle_reasons)),  # mask of nvmlClocksEventReason*
)

FIELDS = (
    Field("hw.power", 186, _MILLI, _power),  # W; NVML_FI_DEV_POWER_INSTANT, mW
    Field("hw.energy", 83, _MILLI, _energy),  # J, cumulative; NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, mJ
    Field("hw.temperature.memory", 82, 1.0),  # Cel; NVML_FI_DEV_MEMORY_TEMP
    Field("hw.errors.ecc_corrected", 3, 1.0, slow=True),  # {error} since load; NVML_FI_DEV_ECC_SBE_VOL_TOTAL
    Field("hw.errors.ecc_uncorrected", 4, 1.0, slow=True),  # {error} since load; NVML_FI_DEV_ECC_DBE_VOL_TOTAL
)


class _Device:
    """The state of one GPU: its handle, and what it does not support. Used by one thread at a time."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.readers = list(READERS)
        self.fields = list(FIELDS)
        self.slow_at = float("-inf")
        self.unsupported: list[str] = []
        self.failing = ""  # the last failure, to report only changes
        self.lines: list[str] = []
        self.lines_reported = 0


class GpuStats:
    """NVML from its initialisation to `close`, and its devices by UUID. Raises GpuUnavailableError without NVML.

    Any call may hang in a wedged driver: use one thread per device, and do not wait for these threads.
    """

    def __init__(self) -> None:
        self._nvml = load()
        self._gone = (  # errors that no retry can change
            self._nvml.NVML_ERROR_NOT_SUPPORTED,
            self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            self._nvml.NVML_ERROR_INVALID_ARGUMENT,
            self._nvml.NVML_ERROR_NO_PERMISSION,
            self._nvml.NVML_ERROR_DEPRECATED,
        )
        self._dead = (
            self._nvml.NVML_ERROR_UNINITIALIZED,
            self._nvml.NVML_ERROR_GPU_IS_LOST,
            self._nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        )
        self._devices: dict[str, _Device] = {}
        self.gpus: list[Gpu] = []  # once they have been described
        self.lines: list[str] = []  # reasons why a device is missing
        self.signature = self.inspect()
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            self.close()
            raise GpuUnavailableError(f"hw.* is absent: NVML cannot count the GPUs: {error}") from error
        for index in range(count):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                self._devices[self._nvml.nvmlDeviceGetUUID(handle)] = _Device(handle)
            except self._nvml.NVMLError as error:
                self.lines.append(f"GPU {index} is absent: {error}")
        if not self._devices:
            self.close()
            raise GpuUnavailableError("; ".join(["hw.* is absent: NVML shows no GPU", *self.lines]))

    def describe(self) -> list[Gpu]:
        """Return the GPUs in NVML's order, and add their MIG instances as devices. Queries each GPU, and may hang."""
        self.gpus = []
        for uuid, device in list(self._devices.items()):
            instances = self._instances(device.handle)
            self._devices |= {instance.uuid: _Device(handle) for instance, handle in instances}
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

    def _instances(self, handle: Handle) -> list[tuple[MigDevice, Handle]]:
        """Return the MIG instances of a GPU; none outside of MIG mode."""
        nvml, found = self._nvml, []
        try:
            is_on = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
            count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if is_on else 0
        except nvml.NVMLError:
            return []  # a GPU before Ampere
        for index in range(count):
            try:
                mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                numbers = nvml.nvmlDeviceGetGpuInstanceId(mig), nvml.nvmlDeviceGetComputeInstanceId(mig)
                found.append((MigDevice(nvml.nvmlDeviceGetUUID(mig), *numbers), mig))
            except nvml.NVMLError:
                continue  # no instance with this number
        return found

    def inspect(self) -> tuple[Any, ...]:
        """Return values that change when a GPU appears, disappears or becomes usable. Cheap enough for every second."""
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
        return (*codes, *kernel_gpus())

    @property
    def is_whole(self) -> bool:
        """Return True if every GPU that NVML counts was usable when NVML was initialised."""
        return not self.lines

    def close(self) -> None:
        """Shut NVML down, which invalidates all handles. No thread may be inside a call."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            pass  # it is no longer initialised, which is the goal

    @property
    def devices(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs of this node, in NVML's order, then of the described MIG instances."""
        return tuple(self._devices)

    def holders(self, uuid: str) -> dict[int, int]:
        """Return the PIDs that use a GPU for computing, with their memory in bytes; -1 if unknown.

        For a GPU in MIG mode, queries its instances. Raises GpuLostError.
        """
        if any(gpu.uuid == uuid and gpu.instances for gpu in self.gpus):
            return {}
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._devices[uuid].handle)
        except self._nvml.NVMLError as error:
            if error.value in self._dead:
                raise GpuLostError(str(error)) from error
            return {}
        return {entry.pid: -1 if entry.usedGpuMemory is None else entry.usedGpuMemory for entry in found}

    def sample(self, uuid: str, now: float) -> tuple[list[Group], list[str]]:
        """Return groups of (names, values), and lines that report errors and gaps once. `now` is monotonic, in s.

        The first group is read each time; a second one holds the slow metrics when they are due. A metric that a device
        does not support is remembered and never queried again. Any other failure leaves it out of this sample only.
        Without any group the device does not answer. Raises GpuLostError.
        """
        device = self._devices[uuid]
        failures: list[str] = []
        slow = now - device.slow_at >= SLOW_INTERVAL_S
        fast_group, slow_group = self._read_fields(device, failures, slow=slow)
        names, values = self._read_calls(device, failures)
        names += fast_group[0]
        values += fast_group[1]
        if slow:
            device.slow_at = now
        self._explain(uuid, device, failures)
        lines, device.lines = device.lines, []
        groups = [(tuple(names), tuple(values)), (tuple(slow_group[0]), tuple(slow_group[1]))]
        return [group for group in groups if group[0]], lines

    def _read_calls(self, device: _Device, failures: list[str]) -> tuple[list[str], list[float]]:
        names: list[str] = []
        values: list[float] = []
        for position, reader in reversed(list(enumerate(device.readers))):
            while reader.attempts:
                try:
                    read = reader.attempts[0](self._nvml, device.handle)
                except self._nvml.NVMLError as error:
                    if error.value in self._dead:
                        raise GpuLostError(str(error)) from error
                    if error.value not in self._gone:
                        failures.append(f"{reader.names[0]}: {error}")
                        break
                    reader = Reader(reader.names, reader.attempts[1:])
                    device.readers[position] = reader
                else:
                    names[:0] = reader.names
                    values[:0] = read
                    break
            if not reader.attempts:
                device.unsupported += reader.names
                del device.readers[position]
        return names, values

    def _read_fields(
        self, device: _Device, failures: list[str], *, slow: bool
    ) -> tuple[tuple[list[str], list[float]], tuple[list[str], list[float]]]:
        """Read all due fields with one call. Return the fast names and values, and the slow ones."""
        groups: tuple[tuple[list[str], list[float]], ...] = (([], []), ([], []))
        due = [field for field in device.fields if slow or not field.slow]
        if not due:
            return groups[0], groups[1]
        try:
            results = self._nvml.nvmlDeviceGetFieldValues(device.handle, [field.number for field in due])
        except self._nvml.NVMLError as error:
            if error.value in self._dead:
                raise GpuLostError(str(error)) from error
            if error.value not in self._gone:
                failures.append(f"field values: {error}")
                return groups[0], groups[1]
            results = [None] * len(due)  # a driver without the call: no field is supported
        for field, result in zip(due, results, strict=True):
            code = self._nvml.NVML_ERROR_NOT_SUPPORTED if result is None else result.nvmlReturn
            if code == self._nvml.NVML_SUCCESS:
                names, values = groups[field.slow]
                names.append(field.name)
                values.append(number_of(self._nvml, result) * field.factor)
            elif code not in self._gone:
                failures.append(f"{field.name}: {self._nvml.NVMLError(code)}")
            else:
                device.fields.remove(field)
                if field.otherwise is None:
                    device.unsupported.append(field.name)
                else:
                    device.readers.append(Reader((field.name,), (field.otherwise,)))
        return groups[0], groups[1]

    def _explain(self, uuid: str, device: _Device, failures: list[str]) -> None:
        lines = []
        if device.unsupported:
            lines.append(f"{uuid}: not supported and absent: {', '.join(device.unsupported)}")
            device.unsupported = []
        failing = "; ".join(failures)
        if failing != device.failing:
            device.failing = failing
            lines.append(f"{uuid}: NVML fails: {failing}" if failing else f"{uuid}: NVML answers again")
        room = _LINES_MAX - device.lines_reported
        device.lines_reported += len(lines[:room])
        device.lines += lines[:room]
