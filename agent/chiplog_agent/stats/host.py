"""Samples of the host: CPU, memory, paging, disks, network and pressure, from psutil and /proc."""

import os
from collections.abc import Callable, Iterable

import psutil

from chiplog_schemas.once import OnceLogger

HOST_DEVICE = ""
_READ_BYTES_MAX = 65_536  # /proc/vmstat has about 5 KB; one read returns all of it
_US_PER_S = 1e6
_Reader = Callable[[], tuple[float, ...]]
_READ_ERRORS = (OSError, ValueError, KeyError, IndexError, AttributeError, RuntimeError)  # psutil's included


class HostStats:
    """Reads the host's numbers. `names` and the tuple from `sample` line up.

    | name | unit | source |
    |---|---|---|
    | system.cpu.utilization | 1 | busy share of all cores since the sample before; waiting for IO is idle |
    | system.cpu.load_average.1m | {thread} | getloadavg |
    | system.memory.usage, .limit | By | total - available, total: the host's, whatever limits control groups have |
    | system.paging.faults | {fault} | pgfault of /proc/vmstat, minor and major; cumulative |
    | system.disk.io.read, .write | By | sum over disks with a device behind them; cumulative |
    | system.filesystem.usage | By | the root file system: others may be remote, and hang |
    | system.network.io.receive, .transmit | By | sum over interfaces with a device behind them; cumulative |
    | system.network.errors, .dropped | {error}, {packet} | the same, both directions; cumulative |
    | system.pressure.cpu, .memory, .io | s | time in which some task waited, /proc/pressure; cumulative |

    Disks and interfaces built on others (dm, md, bonds, bridges, loop) are left out, because they would count twice.
    If none has a device, as in a container, all but the loopback count. Metrics that a host lacks are left out.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []  # reasons, reported once each; the caller clears the list
        self._once = OnceLogger(self.lines.append, keys_max=64)  # messages may differ each time
        self._cpu = (0.0, 0.0)
        self._utilization = 0.0
        self._disks = _PhysicalDevices("/sys/block")
        self._interfaces = _PhysicalDevices("/sys/class/net")
        self._readers = [(names, read) for names, read in self._table() if self._probe(names, read)]

    def _table(self) -> tuple[tuple[tuple[str, ...], _Reader], ...]:
        return (
            (("system.cpu.utilization",), self._read_cpu),
            (("system.cpu.load_average.1m",), _read_load),
            (("system.memory.usage", "system.memory.limit"), _read_memory),
            (("system.paging.faults",), _read_paging),
            (("system.disk.io.read", "system.disk.io.write"), self._read_disks),
            (("system.filesystem.usage",), _read_filesystem),
            (
                (
                    "system.network.io.receive",
                    "system.network.io.transmit",
                    "system.network.errors",
                    "system.network.dropped",
                ),
                self._read_network,
            ),
            (("system.pressure.cpu",), lambda: _read_pressure("cpu")),
            (("system.pressure.memory",), lambda: _read_pressure("memory")),
            (("system.pressure.io",), lambda: _read_pressure("io")),
        )

    def sample(self) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Return names and values.

        A reader that fails is left out of this sample, and `lines` reports the reason once.
        """
        names: list[str] = []
        values: list[float] = []
        for reader_names, read in self._readers:
            try:
                values += read()
            except _READ_ERRORS as error:
                self._once.log(f"{reader_names[0]} is absent: {type(error).__name__}: {error}")
            else:
                names += reader_names
        return tuple(names), tuple(values)

    def _probe(self, names: tuple[str, ...], read: _Reader) -> bool:
        try:
            read()
        except FileNotFoundError:
            return False  # an older kernel, or one built without it: no user could change this
        except _READ_ERRORS as error:
            self._once.log(f"{names[0]} is absent: {type(error).__name__}: {error}")
            return False
        return True

    def _read_cpu(self) -> tuple[float, ...]:
        times = psutil.cpu_times()
        # guest time is already within user time, proc(5)
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle = times.idle + getattr(times, "iowait", 0.0)
        elapsed = total - self._cpu[0]
        if elapsed > 0.0:  # zero between two calls within one clock tick: the last value remains valid
            self._utilization = min(max(1.0 - (idle - self._cpu[1]) / elapsed, 0.0), 1.0)
            self._cpu = (total, idle)
        return (self._utilization,)

    def _read_disks(self) -> tuple[float, ...]:
        counters = psutil.disk_io_counters(perdisk=True, nowrap=False)
        chosen = self._disks.choose(counters)
        return (
            float(sum(counters[name].read_bytes for name in chosen)),
            float(sum(counters[name].write_bytes for name in chosen)),
        )

    def _read_network(self) -> tuple[float, ...]:
        counters = psutil.net_io_counters(pernic=True, nowrap=False)
        chosen = [counters[name] for name in self._interfaces.choose(counters)]
        return (
            float(sum(counter.bytes_recv for counter in chosen)),
            float(sum(counter.bytes_sent for counter in chosen)),
            float(sum(counter.errin + counter.errout for counter in chosen)),
            float(sum(counter.dropin + counter.dropout for counter in chosen)),
        )


class _PhysicalDevices:
    """Selects the names with a device behind them, and checks again only when the set of names changes."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._names: frozenset[str] = frozenset()
        self._chosen: list[str] = []

    def choose(self, counters: Iterable[str]) -> list[str]:
        names = frozenset(counters)
        if names != self._names:
            self._names = names
            real = [name for name in names if os.path.exists(f"{self._folder}/{name}/device")]
            whole = [name for name in names if os.path.exists(f"{self._folder}/{name}") and name != "lo"]
            self._chosen = sorted(real or whole)
        return self._chosen


def _read_memory() -> tuple[float, ...]:
    memory = psutil.virtual_memory()
    return float(memory.total - memory.available), float(memory.total)


def _read_load() -> tuple[float, ...]:
    return (os.getloadavg()[0],)


def _read_filesystem() -> tuple[float, ...]:
    blocks = os.statvfs("/")
    return (float((blocks.f_blocks - blocks.f_bfree) * blocks.f_frsize),)


def _read_paging() -> tuple[float, ...]:
    return (float(_read("/proc/vmstat").split(b"\npgfault ", 1)[1].split(b"\n", 1)[0]),)


def _read_pressure(resource: str) -> tuple[float, ...]:
    """Read the `some` line: `some avg10=0.00 avg60=0.00 avg300=0.00 total=<µs>`, Documentation/accounting/psi.rst."""
    try:
        text = _read(f"/proc/pressure/{resource}")
    except OSError as error:
        raise FileNotFoundError(f"/proc/pressure/{resource}") from error  # psi=0 answers EOPNOTSUPP: absent as well
    return (int(text.split(b"total=", 1)[1].split(b"\n", 1)[0]) / _US_PER_S,)


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _READ_BYTES_MAX)
    finally:
        os.close(descriptor)
