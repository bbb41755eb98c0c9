"""NVML's library and the kernel's driver: whether they are here, how they are loaded, and how they fail.

pynvml is imported only where the driver's library exists: it costs 5 MiB.
"""

import ctypes
import os
from collections.abc import Mapping
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"  # the name that pynvml loads
_KERNEL_DRIVER = "/proc/driver/nvidia"  # exists while the kernel has the driver
_KERNEL_GPUS = f"{_KERNEL_DRIVER}/gpus"  # one entry for each GPU that the driver is bound to, by PCI address
PCI_DEVICES = "/sys/bus/pci/devices"
_PLACE = "GPU "  # how the name of a place begins
_ADDRESS_CHARS = 12  # of a PCI address with a domain of 4 digits, as the kernel writes it …
_NVML_ADDRESS_CHARS = 16  # … and as NVML does, with 8
_NO_ANSWER = b"\xff\xff\xff\xff"  # what a read of a PCI device returns that is off the bus, in place of its IDs

Nvml = Any  # the module pynvml, which has no types
Handle = Any


class GpuUnavailableError(RuntimeError):
    """NVML cannot be used here. The message is one line with the reason and the remedy.

    has_library: whether the driver's library exists. is_stale: whether its version differs from the one loaded here.
    is_unloaded: whether the kernel has no driver. lost: place → reason of GPUs that NVML counts as lost.
    is_fault: whether the driver refuses what it should allow.
    """

    def __init__(
        self,
        message: str,
        *,
        has_library: bool = True,
        is_stale: bool = False,
        is_unloaded: bool = False,
        lost: Mapping[str, str] | None = None,
        is_fault: bool = False,
    ) -> None:
        super().__init__(message)
        self.lost = lost or {}
        self.is_fault = is_fault
        self.has_library = has_library
        self.is_stale = is_stale
        self.is_unloaded = is_unloaded


class GpuLostError(RuntimeError):
    """A GPU, or the driver, is gone: the handle is dead until NVML is initialised again. The message is the reason.

    is_unloaded: whether the kernel has no driver any more.
    """

    def __init__(self, message: str, *, is_unloaded: bool = False) -> None:
        super().__init__(message)
        self.is_unloaded = is_unloaded


def dead_codes(nvml: Nvml) -> frozenset[int]:
    """Return the errors of a GPU or driver that is gone: what NVML had opened is dead until it is initialised again."""
    return frozenset((nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_DRIVER_NOT_LOADED))


def number_of(nvml: Nvml, result: Any) -> float:
    """Return the member of the value union that its type names (nvmlValueType_t)."""
    value, kind = result.value, result.valueType
    if kind == nvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return float(value.uiVal)
    if kind == nvml.NVML_VALUE_TYPE_DOUBLE:
        return float(value.dVal)
    if kind == nvml.NVML_VALUE_TYPE_UNSIGNED_LONG:
        return float(value.ulVal)
    if kind == nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG:
        return float(value.sllVal)
    if kind == nvml.NVML_VALUE_TYPE_SIGNED_INT:
        return float(value.siVal)
    if kind == nvml.NVML_VALUE_TYPE_UNSIGNED_SHORT:
        return float(value.usVal)
    return float(value.ullVal)


def kernel_gpus(folder: str = _KERNEL_GPUS, bus: str = PCI_DEVICES) -> list[str]:
    """Return the GPUs that the kernel's driver is bound to, and whether they are off the PCI bus.

    NVML may count only those that existed when it was initialised, and does not show that a lost one answers again.
    """
    try:
        addresses = sorted(os.listdir(folder))
    except OSError:
        return []
    # safeguard: bus-shows-returned-gpu
    return [f"{address} is off the bus" if _is_off_bus(f"{bus}/{address}/config") else address for address in addresses]


def gpu_places(count: int, gpus: list[str]) -> list[str]:
    """Return a name for each GPU that NVML counts, also for one without a UUID: its PCI address, else its index.

    gpus: what `kernel_gpus` returns.
    """
    if len(gpus) == count:  # NVML has the order of PCI addresses
        return [f"{_PLACE}{gpu.partition(' ')[0]}" for gpu in gpus]
    return [f"{_PLACE}{index} of {count}" for index in range(count)]


def address_of(place: str) -> str:
    """Return the PCI address of a GPU's place as NVML writes it; "" if it is no place, or one with an index."""
    address = place.removeprefix(_PLACE)
    return address.upper().rjust(_NVML_ADDRESS_CHARS, "0") if address != place and ":" in address else ""


def short_address(address: str) -> str:
    """Return a PCI address of NVML with the kernel's domain of 4 digits."""
    return address[-_ADDRESS_CHARS:]


def _is_off_bus(config: str) -> bool:
    try:
        descriptor = os.open(config, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # unknown, as in a container without it
    try:
        return os.read(descriptor, len(_NO_ANSWER)) == _NO_ANSWER
    except OSError:
        return False
    finally:
        os.close(descriptor)


def missing_library() -> str | None:
    """Return one line with the reason if the driver's library cannot be loaded. Calls nothing in it."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return f"hw.* is absent: no NVIDIA driver here ({error})"
    return None


def has_driver() -> bool:
    """Return True if an NVIDIA driver is installed. Loads no library where the kernel has the driver."""
    return os.path.exists(_KERNEL_DRIVER) or missing_library() is None  # safeguard: library-stays-out-of-agent


def load() -> Nvml:
    """Import pynvml and initialise it. Raises GpuUnavailableError."""
    if (reason := missing_library()) is not None:
        raise GpuUnavailableError(reason, has_library=False)
    try:
        import pynvml  # imported here: a node without a GPU saves 5 MiB
    except ImportError as error:
        why = f"hw.* is absent: {error}; pip install nvidia-ml-py"
        raise GpuUnavailableError(why, has_library=False) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        is_stale = error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        is_unloaded = error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
        message = f"hw.* is absent: NVML cannot be initialised: {error}"
        raise GpuUnavailableError(
            message, is_stale=is_stale, is_unloaded=is_unloaded, is_fault=not is_unloaded
        ) from error
    return pynvml
