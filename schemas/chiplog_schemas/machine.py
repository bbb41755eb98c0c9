"""What the kernel calls this machine's present boot."""


def boot_id() -> str:
    """Return the ID of this machine's boot, the same in all its containers; 'unknown' where it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return boot.read().strip()
    except OSError:
        return "unknown"
