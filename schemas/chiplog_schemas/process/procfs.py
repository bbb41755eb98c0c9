"""What the kernel reports about this machine: its current boot, its uptime, and its processes."""

import os
import time

# Fields of read_proc_stat(), three less than in proc_pid_stat(5).
STATE, PARENT, GROUP, SESSION, FOREGROUND_GROUP, FLAGS, START, EXIT_CODE = 0, 1, 2, 3, 5, 6, 19, 49
_USER_TIME, _SYSTEM_TIME = 11, 12
DEAD = ("Z", "X")  # states of a zombie, and of a process that is being reaped
_COMMAND_BYTES_MAX = 400  # a program and its script
_STAT_BYTES_MAX = 4096  # a line has about 400
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def boot_id() -> str:
    """Return the ID of this machine's boot, the same in all its containers; 'unknown' if it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return boot.read().strip()
    except OSError:
        return "unknown"


def read_proc_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on (state), as in proc_pid_stat(5); none without the file.

    The fields before them contain the process's name, which may be any text.
    """
    return split_stat(_read_line(f"/proc/{pid}/stat"))


def split_stat(line: bytes) -> list[str]:
    """Return the fields of a line of /proc/PID/stat, as `read_proc_stat` does."""
    return line.rpartition(b")")[2].decode("ascii").split()


def own_ticks(fields: list[str]) -> int:
    """Return the CPU time of a process itself, in clock ticks, from its fields of /proc/PID/stat."""
    return int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 when it has ended.

    Exact where the kernel sums it in statm (from about Linux 6.16). From 6.2 on, earlier kernels leave out what the
    CPUs count apart, up to megabytes each, as /proc/PID/stat still does.
    """
    return resident_of(_read_line(f"/proc/{pid}/statm"))


def resident_of(line: bytes) -> int:
    """Return the resident memory that a line of /proc/PID/statm states; 0 without a line."""
    fields = line.split(None, 2)
    return int(fields[1]) * _PAGE_BYTES if fields else 0


def _read_line(path: str) -> bytes:
    """Return a short file of /proc; nothing when its process has ended."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _STAT_BYTES_MAX)
    except OSError:
        return b""  # ESRCH: it ended between open and read
    finally:
        os.close(descriptor)


def is_mapped(suffix: str) -> bool:
    """Return True if a visible process maps a file whose path ends with `suffix`. A removed file counts too.

    Takes about 0.1 ms for each process of the machine.
    """
    return any(maps_file(int(name), suffix) for name in os.listdir("/proc") if name.isdecimal())


def maps_file(pid: int, suffix: str) -> bool | None:
    """Return True if a process maps a file whose path ends with `suffix`; None if it has ended or is another user's."""
    endings = (f"{suffix}\n".encode(), f"{suffix} (deleted)\n".encode())
    found = None
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            for line in maps:
                found = False
                if line.endswith(endings):
                    return True
    except OSError:
        return None
    return found  # a process that exits maps nothing


def program_of(pid: int) -> str:
    """Return the program of a process, and its script if there is one; "" if unknown. Other arguments may be secret."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            program, *arguments = file.read(_COMMAND_BYTES_MAX).decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    script = next((word for word in arguments if not word.startswith("-")), "")
    has_script = bool(script) and os.path.isfile(os.path.join(f"/proc/{pid}/cwd", script))
    text = f"{program} {script}" if has_script else program
    return "".join(character if character.isprintable() else " " for character in text).strip()


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot, which no clock change affects; 0 if unknown."""
    fields = read_proc_stat(pid)
    return int(fields[START]) if len(fields) > START else 0


def pid_namespace() -> int:
    """Return the inode of this process's PID namespace; 0 if it cannot be read."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def uptime_us() -> int:
    """Return µs since the boot, including suspended time. No clock change affects it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
