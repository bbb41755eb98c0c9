"""Readings of a GPU that are field values of NVML: one call reads all that are due.

To add a metric, add it to SYSTEM_METRICS, and a row to FIELDS.
"""

from typing import NamedTuple

from chiplog_agent.stats.gpu.calls import ENERGY, POWER, RETIRED_PAGES, Call
from chiplog_agent.stats.gpu.device_sample import DeviceSample, NvmlDevice
from chiplog_agent.stats.gpu.nvml import number_of

_MILLI = 1e-3
_NANO = 1e-9
_KIB = 1024.0
_LINKS = 0xFFFF_FFFF  # the scope of NVLink's fields that means the sum over all links
_WRAP = 2.0**32
_RATE_MAX = 2.0**38  # bytes per second: above PCIe 7.0 with 16 lanes in one direction (242 GB/s)


class Field(NamedTuple):
    """A metric of nvmlDeviceGetFieldValues: its number in nvml.h, and the factor to its unit.

    Of several rows with one name, the first that a device supports is kept. scope: which part of the device. wraps: the
    counter has 32 bits. otherwise: the call of a device that lacks it. slow: read when slow metrics are due.
    """

    name: str
    number: int
    factor: float = 1.0
    scope: int = 0
    wraps: bool = False
    otherwise: Call | None = None
    slow: bool = False


FIELDS = (
    Field("hw.power", 186, _MILLI, otherwise=POWER),  # NVML_FI_DEV_POWER_INSTANT, mW
    Field("hw.energy", 83, _MILLI, otherwise=ENERGY),  # NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, mJ
    Field("hw.temperature.memory", 82),  # NVML_FI_DEV_MEMORY_TEMP
    Field("hw.gpu.throttle.time.sw_power", 74, _NANO),  # NVML_FI_DEV_PERF_POLICY_POWER
    Field("hw.gpu.throttle.time.sync_boost", 76, _NANO),  # NVML_FI_DEV_PERF_POLICY_SYNC_BOOST
    Field("hw.gpu.throttle.time.sw_thermal", 269, _NANO),  # NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
    Field("hw.gpu.throttle.time.hw_thermal", 270, _NANO),  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
    Field("hw.gpu.throttle.time.hw_brake", 271, _NANO),  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
    # 32 bits: NV2080_CTRL_BUS_GET_PEX_UTIL_COUNTERS_PARAMS in ctrl2080bus.h of NVIDIA's open kernel modules.
    Field("hw.gpu.io.pcie.receive", 198, wraps=True),  # NVML_FI_DEV_PCIE_COUNT_RX_BYTES
    Field("hw.gpu.io.pcie.transmit", 197, wraps=True),  # NVML_FI_DEV_PCIE_COUNT_TX_BYTES
    Field("hw.gpu.io.nvlink.receive", 139, _KIB, _LINKS),  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, KiB
    Field("hw.gpu.io.nvlink.receive", 204, scope=_LINKS),  # NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES
    Field("hw.gpu.io.nvlink.transmit", 138, _KIB, _LINKS),  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, KiB
    Field("hw.gpu.io.nvlink.transmit", 202, scope=_LINKS),  # NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES
    Field("hw.gpu.throttle.time.thermal", 75, _NANO, slow=True),  # NVML_FI_DEV_PERF_POLICY_THERMAL
    Field("hw.gpu.throttle.time.board_limit", 77, _NANO, slow=True),  # NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT
    Field("hw.gpu.throttle.time.reliability", 79, _NANO, slow=True),  # NVML_FI_DEV_PERF_POLICY_RELIABILITY
    Field("hw.errors.ecc_corrected", 3, slow=True),  # since load; NVML_FI_DEV_ECC_SBE_VOL_TOTAL
    Field("hw.errors.ecc_uncorrected", 4, slow=True),  # since load; NVML_FI_DEV_ECC_DBE_VOL_TOTAL
    Field("hw.errors.ecc_corrected.aggregate", 5, slow=True),  # NVML_FI_DEV_ECC_SBE_AGG_TOTAL
    Field("hw.errors.ecc_uncorrected.aggregate", 6, slow=True),  # NVML_FI_DEV_ECC_DBE_AGG_TOTAL
    Field("hw.errors.pcie_replay", 94, slow=True),  # NVML_FI_DEV_PCIE_REPLAY_COUNTER
    # The sum over all links by scope is documented for 138 to 141 (nvml.h) and 201 to 225 (DCGM), not for 161 to 163.
    # Older fields are sums themselves. Blackwell has 215 only.
    Field("hw.errors.nvlink_replay", 161, scope=_LINKS, slow=True),  # NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY
    Field("hw.errors.nvlink_replay", 52, slow=True),  # NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL
    Field("hw.errors.nvlink_recovery", 162, scope=_LINKS, slow=True),  # NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY
    Field("hw.errors.nvlink_recovery", 59, slow=True),  # NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL
    Field("hw.errors.nvlink_recovery", 215, 1.0, _LINKS, slow=True),  # NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS
    Field("hw.errors.nvlink_crc", 163, scope=_LINKS, slow=True),  # NVML_FI_DEV_NVLINK_ERROR_DL_CRC
    Field("hw.errors.nvlink_crc", 38, slow=True),  # NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL
    Field("hw.gpu.row_remap.correctable", 142, otherwise=RETIRED_PAGES, slow=True),  # NVML_FI_DEV_REMAPPED_COR
    Field("hw.gpu.row_remap.uncorrectable", 143, slow=True),  # NVML_FI_DEV_REMAPPED_UNC
    Field("hw.gpu.row_remap.pending", 144, slow=True),  # NVML_FI_DEV_REMAPPED_PENDING
    Field("hw.gpu.row_remap.failure", 145, slow=True),  # NVML_FI_DEV_REMAPPED_FAILURE
    Field("hw.gpu.recovery_action", 230, slow=True),  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; driver 570 and later
)


class FieldReader:
    """Reads the fields of one device. A field that the device does not support is never queried again."""

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._fields = [] if device.is_instance else list(FIELDS)
        self._counters = {field.name: Unwrapped() for field in FIELDS if field.wraps}

    def read(self, sample: DeviceSample) -> list[Call]:
        """Add what is due to a sample. Return the calls that take the place of missing fields. Raises GpuLostError."""
        device, nvml = self._device, self._device.nvml
        due = [field for field in self._fields if sample.is_slow or not field.slow]
        if not due:
            return []
        try:
            # safeguard: one-field-call
            results = nvml.nvmlDeviceGetFieldValues(device.handle, [(field.number, field.scope) for field in due])
        except nvml.NVMLError as error:
            if not device.is_final(error.value):
                sample.failures.append(f"field values: {error}")
                return []
            return self._drop(due, sample)  # a driver without the call, or a device without fields
        missing: list[Field] = []
        found: dict[str, int] = {}  # name → the result of the first row that may be supported
        for field, result in zip(due, results, strict=True):
            code = result.nvmlReturn
            if field.name in found:
                if found[field.name] == nvml.NVML_SUCCESS:  # safeguard: passing-error-keeps-fields
                    missing.append(field)  # else the first row may still turn out not to be supported
                continue
            if device.is_final(code):
                missing.append(field)
                continue
            found[field.name] = code
            if code != nvml.NVML_SUCCESS:
                sample.failures.append(f"{field.name}: {device.error(code)}")
                continue
            number = number_of(nvml, result)
            if field.wraps:
                number = self._counters[field.name].grow(number, sample.now, sample.rates.get(field.name, 0.0))
            sample.add((field.name,), (number * field.factor,), slow=field.slow)
        return self._drop(missing, sample) if missing else []

    def _drop(self, missing: list[Field], sample: DeviceSample) -> list[Call]:
        """Leave out fields from now on. Return the calls that take their place."""
        self._fields = [field for field in self._fields if field not in missing]
        left = {field.name for field in self._fields}
        gone = {field.name: field for field in missing if field.name not in left}
        calls = [field.otherwise for field in gone.values() if field.otherwise is not None]
        left.update(name for call in calls for name in call.attempts[0].names)
        sample.unsupported += [name for name in gone if name not in left]
        return calls


class Unwrapped:
    """Turns a counter that wraps at 2^32 into one that only grows.

    Without a rate, what a device moves between two readings must stay below that: 4.3 GB.
    """

    def __init__(self) -> None:
        self._last = 0.0
        self._at: float | None = None
        self._total = 0.0
        self._is_wide = False  # has more bits

    def grow(self, value: float, now: float, rate: float = 0.0) -> float:
        """Return the whole count. value: the counter at `now`, monotonic, s. rate: by another measure; 0 if unknown."""
        self._is_wide = self._is_wide or value >= _WRAP
        grown = value - self._last
        if grown < 0:  # safeguard: pcie-counter-unwrapped
            # A counter of more bits has no reason to fall but a reset, which continues from its last value.
            grown = value if self._is_wide else grown + _WRAP
        if self._at is not None and not self._is_wide and 0 < rate < _RATE_MAX:
            # safeguard: pcie-wraps-counted
            grown += _WRAP * max(round((rate * (now - self._at) - grown) / _WRAP), 0)
        self._last, self._at = value, now
        self._total += grown
        return self._total
