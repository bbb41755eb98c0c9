"""Facts of this process and this host, as the operating system tells them."""

import os
import secrets
import socket
import time

from chiplog.identity import Facts

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # without what people confuse


def random_word(length: int = 6) -> str:
    """Return random characters that can be read out."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def facts() -> Facts:
    """Gather the facts of this process."""
    parent = os.getppid()
    return Facts(
        host=host_name(),
        pid=os.getpid(),
        parent=f"{parent}:{_start_of(parent)}:{_boot_id()}",
        now_s=time.time(),
        random=random_word(),
    )


def host_name() -> str:
    """Return this host's name without its domain."""
    return socket.gethostname().split(".")[0] or "localhost"


def visible_gpus() -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES lets this process see, as written there; UUIDs stay, indices need the driver."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return [entry.strip() for entry in listed.split(",") if entry.strip().startswith(("GPU-", "MIG-"))]


def _start_of(pid: int) -> str:
    """Return when a process started, in clock ticks since boot: no setting of a clock changes that."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[19]  # field 22, starttime: proc_pid_stat(5)
    except (OSError, IndexError):
        return "0"


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot_id:
            return boot_id.read().strip()
    except OSError:
        return "unknown"
