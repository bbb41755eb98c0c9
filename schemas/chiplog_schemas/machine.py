"""What the kernel calls this machine's present boot, and how long ago it was."""

import time


def boot_id() -> str:
    """Return the ID of this machine's boot, the same in all its containers; 'unknown' where it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return boot.read().strip()
    except OSError:
        return "unknown"


def uptime_us() -> int:
    """Return µs since the boot, suspended time included; no setting of a clock changes it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
