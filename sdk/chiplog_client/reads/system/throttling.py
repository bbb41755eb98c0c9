"""Why a GPU is throttled: the bits of hw.gpu.throttle.reasons, and which of them have a counter of their time."""

from collections.abc import Mapping

THROTTLE_COUNTERS = {  # as throttle_cost sums them up, see analysis.sql
    "hw.gpu.throttle.time.sw_power": 4,
    "hw.gpu.throttle.time.sync_boost": 16,
    "hw.gpu.throttle.time.sw_thermal": 32,
    "hw.gpu.throttle.time.hw_thermal": 64,
    "hw.gpu.throttle.time.hw_brake": 128,
}
THROTTLED_SHARE_MIN = 0.01  # of the time: less is no throttling, as in throttle_cost
_REASONS = {  # in the words of nvidia-smi
    4: "SW power cap",
    8: "HW slowdown",
    16: "sync boost",
    32: "SW thermal slowdown",
    64: "HW thermal slowdown",
    128: "HW power brake slowdown",
}


def names_sql(counters: Mapping[str, int]) -> str:
    """Return the names of counters as a list of SQL."""
    return ", ".join(f"'{name}'" for name in counters)


def bits_sql(counters: Mapping[str, int]) -> str:
    """Return rows of SQL: the name of each counter, and its bit."""
    return ", ".join(f"('{name}', {bit})" for name, bit in counters.items())


def throttle_text(reasons: int) -> str:
    """Return why a GPU is throttled, from the bits of hw.gpu.throttle.reasons; "" if it is not."""
    return ", ".join(text for bit, text in _REASONS.items() if reasons & bit)
