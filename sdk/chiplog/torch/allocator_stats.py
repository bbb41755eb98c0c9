"""Statistics of CUDA's caching allocator: counters on the host, so reading them does not wait for a device."""

from collections.abc import Mapping
from typing import Any

SAMPLE_INTERVAL_S = 5.0
PREFIX = "chiplog/cuda"


def sample(cuda: Any) -> dict[str, float]:
    """Return the statistics of every device on which this process has memory. With several, keys name the device.

    allocated_bytes, reserved_bytes: now; *_peak_bytes: the maximum so far. fragmentation: the share of reserved memory
    that is not allocated. alloc_retries, ooms: since the start. Keys as in torch.cuda.memory_stats.
    """
    if not cuda.is_initialized():
        return {}
    found = {}
    for device in range(cuda.device_count()):
        stats = cuda.memory_stats_as_nested_dict(device)
        if stats and stats["reserved_bytes"]["all"]["peak"]:
            found[device] = _of(stats)
    if len(found) == 1:
        [stats] = found.values()
        return {f"{PREFIX}/{name}": value for name, value in stats.items()}
    return {f"{PREFIX}:{device}/{name}": value for device, stats in found.items() for name, value in stats.items()}


def _of(stats: Mapping[str, Any]) -> dict[str, float]:
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return {
        "allocated_bytes": float(allocated["current"]),
        "allocated_peak_bytes": float(allocated["peak"]),
        "reserved_bytes": float(reserved["current"]),
        "reserved_peak_bytes": float(reserved["peak"]),
        "fragmentation": 1.0 - allocated["current"] / reserved["current"] if reserved["current"] else 0.0,
        "alloc_retries": float(stats["num_alloc_retries"]),
        "ooms": float(stats["num_ooms"]),
    }
