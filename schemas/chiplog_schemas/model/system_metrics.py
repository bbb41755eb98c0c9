"""Every metric that the agent samples: the one table behind its sources, the page's titles, /metrics and the reference.

To add a metric, add a row here and let a source of the agent give its value. Names follow OpenTelemetry's semantic
conventions where these have one. Units are UCUM.
"""

from collections.abc import Iterable
from typing import NamedTuple

from chiplog_schemas.model.codes import RefusalReason

SLOW_S = 10.0  # between two readings of what costs more or changes rarely
GPU_PROCESSES_S = 2.0  # between two queries which processes use a GPU
_QUANTITIES = {
    "1": "share",
    "{cpu}": "cores",
    "By": "bytes",
    "Hz": "hertz",
    "W": "watts",
    "Cel": "celsius",
    "J": "joules",
    "s": "seconds",
}
_SUFFIXES = _QUANTITIES | {"1": "ratio", "{cpu}": "cpus"}  # of names in /metrics
PIPELINE_DEVICE = "chiplog"  # of samples about chiplog itself; `chiplog:<PID>` of a further agent of the node
PIPELINE_PERIOD_S = 10.0
# An agent checks no nodes: keys of ranks name none.
AGENT_REFUSALS = tuple(reason for reason in RefusalReason if reason is not RefusalReason.NODE)


class SystemMetric(NamedTuple):
    """What a name of a sample means.

    Attributes:
        name: As in `system.name`.
        unit: UCUM; `1` is a share, `{…}` counts things.
        title: A few plain words.
        source: Where the value is read.
        is_counter: Whether it counts up from a start that is not the run's; a rate is what people look at.
        period_s: Between two readings, in s; 0 is the interval of the agent, 1 s by default.
        is_hidden: Whether the page shows it in another form.
        verified: What its values were compared with: `kernel`, an independent reading of /proc, /sys or a control
            group; `device`, what nvidia-smi prints; `stand-in`, what a library in place of NVML was told to return.
        label: In /metrics the last word of the name is the value of this label, and the words of the title before its
            comma are what all its values are about; "" for none.
    """

    name: str
    unit: str
    title: str
    source: str
    is_counter: bool = False
    period_s: float = 0.0
    is_hidden: bool = False
    verified: str = "kernel"
    label: str = ""

    @property
    def quantity(self) -> str:
        """What the values count, which decides about the unit that people see; "" for plain numbers."""
        return _QUANTITIES.get(self.unit, "")

    @property
    def exposed(self) -> tuple[str, dict[str, str]]:
        """Its name in /metrics, without `_total`, and the label that stands for a part of its own name."""
        name, labels = self.name.replace("chiplog.agent.", "chiplog.").replace("chiplog.collector.", "chiplog."), {}
        if self.label:
            name, _, value = name.rpartition(".")
            labels = {self.label: value}
        suffix = _SUFFIXES.get(self.unit, "")
        return "_".join([*name.split("."), *([suffix] if suffix else [])]), labels


def _gauge(name: str, unit: str, title: str, source: str, period_s: float = 0.0) -> SystemMetric:
    return SystemMetric(name, unit, title, source, period_s=period_s)


def _count(name: str, unit: str, title: str, source: str, period_s: float = 0.0) -> SystemMetric:
    return SystemMetric(name, unit, title, source, is_counter=True, period_s=period_s)


def _pipeline(name: str, unit: str, title: str, source: str, label: str = "") -> SystemMetric:
    return SystemMetric(name, unit, title, source, period_s=PIPELINE_PERIOD_S, label=label)


def _pipeline_count(name: str, unit: str, title: str, source: str, label: str = "") -> SystemMetric:
    return SystemMetric(name, unit, title, source, is_counter=True, period_s=PIPELINE_PERIOD_S, label=label)


_REFUSED = {
    RefusalReason.UNAUTHORIZED: ("keys without the right", "handshakes and messages over TCP"),
    RefusalReason.NODE: ("other nodes", "events, and sessions, of nodes that the sender's key does not name"),
    RefusalReason.OTHER_KEY: ("another key", "sessions of senders that used another key before"),
    RefusalReason.VERSION: ("versions", "sessions without a common version of the protocol"),
    RefusalReason.SESSIONS: ("too many sessions", "above SESSIONS_MAX"),
    RefusalReason.MALFORMED: ("malformed messages", "bytes that are not a message"),
}


def _refused(daemon: str, reasons: Iterable[RefusalReason]) -> tuple[SystemMetric, ...]:
    return tuple(
        _pipeline_count(
            f"chiplog.{daemon}.refused.{reason}",
            "{refusal}",
            f"{daemon.capitalize()}: refused, {_REFUSED[reason][0]}",
            _REFUSED[reason][1],
            "reason",
        )
        for reason in reasons
    )


# Of a GPU. A MIG instance has its memory and the metrics of GPM. Numbers are those of nvml.h, NVML_FI_DEV_*; GPM is
# its performance monitoring of Hopper and later, NVML_GPM_METRIC_*.
_GPU = (
    _gauge("hw.gpu.utilization", "1", "GPU utilization", "nvmlDeviceGetUtilizationRates; not under MIG"),
    _gauge(
        "hw.gpu.memory.utilization", "1", "GPU memory activity", "likewise: time in which memory was read or written"
    ),
    _gauge(
        "hw.gpu.memory.usage", "By", "GPU memory used", "nvmlDeviceGetMemoryInfo_v2; version 1 includes reserved memory"
    ),
    _gauge("hw.gpu.memory.reserved", "By", "GPU memory reserved by the driver", "nvmlDeviceGetMemoryInfo_v2"),
    _gauge("hw.gpu.memory.limit", "By", "GPU memory, total", "nvmlDeviceGetMemoryInfo"),
    _gauge("hw.power", "W", "GPU power", "field 186, else nvmlDeviceGetPowerUsage"),
    _gauge("hw.power.limit", "W", "GPU power limit", "nvmlDeviceGetEnforcedPowerLimit"),
    _count("hw.energy", "J", "GPU power, from the energy counter", "field 83; its growth per second is watts"),
    _gauge("hw.temperature.core", "Cel", "GPU temperature", "nvmlDeviceGetTemperature"),
    _gauge("hw.temperature.memory", "Cel", "GPU memory temperature", "field 82"),
    _gauge("hw.gpu.clock.sm", "Hz", "GPU clock", "nvmlDeviceGetClockInfo"),
    _gauge("hw.gpu.clock.mem", "Hz", "GPU memory clock", "nvmlDeviceGetClockInfo"),
    SystemMetric(
        "hw.gpu.throttle.reasons",
        "{mask}",
        "GPU throttle reasons",
        "nvmlDeviceGetCurrentClocksEventReasons: bits of nvmlClocksEventReasons",
        is_hidden=True,
    ),
    _count("hw.gpu.throttle.time.sw_power", "s", "GPU throttled: power limit", "field 74"),
    _count("hw.gpu.throttle.time.sync_boost", "s", "GPU throttled: synchronised boost", "field 76"),
    _count("hw.gpu.throttle.time.sw_thermal", "s", "GPU throttled: temperature, by the driver", "field 269"),
    _count("hw.gpu.throttle.time.hw_thermal", "s", "GPU throttled: temperature, by the hardware", "field 270"),
    _count("hw.gpu.throttle.time.hw_brake", "s", "GPU throttled: power brake of the system", "field 271"),
    _count("hw.gpu.throttle.time.thermal", "s", "GPU throttled: thermal policy", "field 75", SLOW_S),
    _count("hw.gpu.throttle.time.board_limit", "s", "GPU throttled: board limit", "field 77", SLOW_S),
    _count("hw.gpu.throttle.time.reliability", "s", "GPU throttled: reliability voltage", "field 79", SLOW_S),
    _gauge("hw.gpu.sm.active", "1", "GPU multiprocessors active", "GPM 2"),
    _gauge("hw.gpu.sm.occupancy", "1", "GPU multiprocessor occupancy", "GPM 3"),
    _gauge("hw.gpu.tensor.active", "1", "GPU tensor cores active", "GPM 5"),
    _gauge("hw.gpu.dram.active", "1", "GPU memory bandwidth used", "GPM 10"),
    _gauge("hw.gpu.fp64.active", "1", "GPU FP64 active", "GPM 11"),
    _gauge("hw.gpu.fp32.active", "1", "GPU FP32 active", "GPM 12"),
    _gauge("hw.gpu.fp16.active", "1", "GPU FP16 active", "GPM 13"),
    _gauge("hw.gpu.graphics.active", "1", "GPU graphics or compute active", "GPM 1"),
    _gauge("hw.gpu.encoder.utilization", "1", "GPU encoder utilization", "nvmlDeviceGetEncoderUtilization", SLOW_S),
    _gauge("hw.gpu.decoder.utilization", "1", "GPU decoder utilization", "nvmlDeviceGetDecoderUtilization", SLOW_S),
    _count("hw.gpu.io.pcie.receive", "By", "GPU PCIe received", "field 198; wraps at 32 bits are undone, by GPM 21"),
    _count("hw.gpu.io.pcie.transmit", "By", "GPU PCIe sent", "field 197; wraps at 32 bits are undone, by GPM 20"),
    _count("hw.gpu.io.nvlink.receive", "By", "GPU NVLink received", "field 139, else 204; all links"),
    _count("hw.gpu.io.nvlink.transmit", "By", "GPU NVLink sent", "field 138, else 202; all links"),
    _count("hw.errors.ecc_corrected", "{error}", "GPU ECC errors, corrected", "field 3", SLOW_S),
    _count("hw.errors.ecc_uncorrected", "{error}", "GPU ECC errors, uncorrected", "field 4", SLOW_S),
    _count(
        "hw.errors.ecc_corrected.aggregate", "{error}", "GPU ECC errors of its lifetime, corrected", "field 5", SLOW_S
    ),
    _count(
        "hw.errors.ecc_uncorrected.aggregate",
        "{error}",
        "GPU ECC errors of its lifetime, uncorrected",
        "field 6",
        SLOW_S,
    ),
    _count("hw.errors.pcie_replay", "{error}", "GPU PCIe replays", "field 94", SLOW_S),
    _count("hw.errors.nvlink_replay", "{error}", "GPU NVLink replays", "field 161, else 52; all links", SLOW_S),
    _count("hw.errors.nvlink_recovery", "{error}", "GPU NVLink recoveries", "field 162, 59 or 215; all links", SLOW_S),
    _count("hw.errors.nvlink_crc", "{error}", "GPU NVLink CRC errors", "field 163, else 38; all links", SLOW_S),
    _count("hw.gpu.row_remap.correctable", "{row}", "GPU memory rows remapped, correctable", "field 142", SLOW_S),
    _count("hw.gpu.row_remap.uncorrectable", "{row}", "GPU memory rows remapped, uncorrectable", "field 143", SLOW_S),
    _gauge("hw.gpu.row_remap.pending", "{flag}", "GPU row remapping waits for a reset", "field 144", SLOW_S),
    _gauge("hw.gpu.row_remap.failure", "{flag}", "GPU row remapping failed", "field 145", SLOW_S),
    _count(
        "hw.gpu.retired_pages.single_bit",
        "{page}",
        "GPU pages retired, single bit errors",
        "nvmlDeviceGetRetiredPages, where there is no row remapping",
        SLOW_S,
    ),
    _count("hw.gpu.retired_pages.double_bit", "{page}", "GPU pages retired, double bit errors", "likewise", SLOW_S),
    _gauge(
        "hw.gpu.recovery_action",
        "{action}",
        "GPU recovery action",
        "field 230: 0 none, 1 reset the GPU, 2 reboot the node, 3 end peer-to-peer traffic, then read it again, "
        "4 drain the node and reset the GPU, 5 recover the IMEX domain, 6 reset the bus, 7 reboot the system",
        SLOW_S,
    ),
    _gauge(
        "chiplog.agent.nvml_call",
        "s",
        "NVML: slowest reading of the GPU",
        "all calls of one sample, by a clock",
        SLOW_S,
    ),
)
_HOST = (
    _gauge("system.cpu.utilization", "1", "Host CPU utilization", "/proc/stat; waiting for I/O is idle"),
    _gauge("system.cpu.load_average.1m", "{thread}", "Host load average (1 min)", "getloadavg"),
    _gauge("system.memory.usage", "By", "Host memory used", "/proc/meminfo, total - available, of the whole host"),
    _gauge("system.memory.limit", "By", "Host memory, total", "/proc/meminfo"),
    _count("system.disk.io.read", "By", "Disk reads", "/proc/diskstats; the sum, and `disk:NAME` each 10 s"),
    _count("system.disk.io.write", "By", "Disk writes", "likewise"),
    _gauge("system.filesystem.usage", "By", "File system used", "statvfs; the root, and `fs:PATH` each 10 s"),
    _gauge("system.filesystem.limit", "By", "File system, total", "statvfs of `fs:PATH`", SLOW_S),
    _count("system.network.io.receive", "By", "Network received", "/proc/net/dev; the sum, and `nic:NAME` each 10 s"),
    _count("system.network.io.transmit", "By", "Network sent", "likewise"),
    _count("system.network.errors", "{error}", "Network errors", "likewise, both directions"),
    _count("system.network.dropped", "{packet}", "Network packets dropped", "likewise, both directions"),
    _count("system.paging.faults", "{fault}", "Page faults", "/proc/vmstat, minor and major"),
    _count("system.pressure.cpu", "s", "CPU pressure (some task stalled)", "/proc/pressure/cpu, line some"),
    _count("system.pressure.memory", "s", "Memory pressure (some task stalled)", "/proc/pressure/memory, line some"),
    _count("system.pressure.io", "s", "I/O pressure (some task stalled)", "/proc/pressure/io, line some"),
    _gauge("system.clock.offset", "s", "Clock offset", "adjtimex; absent while nothing synchronises it", SLOW_S),
)
_RDMA = (  # of a port of InfiniBand or RoCE
    _count("rdma.port.io.receive", "By", "InfiniBand received", "port_rcv_data of `ib:ADAPTER/PORT`", SLOW_S),
    _count("rdma.port.io.transmit", "By", "InfiniBand sent", "port_xmit_data", SLOW_S),
    _count("rdma.port.errors", "{error}", "InfiniBand errors", "port_rcv_errors", SLOW_S),
    _count("rdma.port.discards", "{packet}", "InfiniBand packets discarded", "port_xmit_discards", SLOW_S),
    _count("rdma.port.cnp", "{packet}", "Congestion notifications", "np_cnp_sent and rp_cnp_handled", SLOW_S),
    _count("rdma.port.ecn", "{packet}", "Packets with congestion marks", "np_ecn_marked_roce_packets", SLOW_S),
)
# Of a rank: the sum over its process tree, DataLoader workers included; device `pid:<PID>`.
_RANK = (
    _gauge("process.cpu.utilization", "{cpu}", "CPU usage of the rank", "/proc/PID/stat, with children that ended"),
    _gauge("process.memory.usage", "By", "Memory of the rank", "/proc/PID/statm; shared pages count in each process"),
    _gauge(
        "process.memory.pss",
        "By",
        "Memory of the rank, shared pages once",
        "/proc/PID/smaps_rollup, one process after another within 0.1 % of a core",
        SLOW_S,
    ),
    _gauge("process.memory.pss.age", "s", "Age of process.memory.pss", "a clock: of its oldest part", SLOW_S),
    _gauge("process.threads", "{thread}", "Threads of the rank", "/proc/PID/stat"),
    _count("process.cpu.time", "s", "CPU time of the rank", "/proc/PID/stat, with children that ended"),
    _gauge("process.blocked", "{process}", "Processes of the rank in state D", "/proc/PID/stat, of first threads"),
    _gauge("process.open_file_descriptors", "{fd}", "Open files and sockets of the rank", "/proc/PID/fd"),
    _count("process.io.read", "By", "Bytes that the rank read from disks", "/proc/PID/io: read_bytes", SLOW_S),
    _count("process.io.write", "By", "Bytes that the rank wrote to disks", "/proc/PID/io: write_bytes", SLOW_S),
    _count(
        "process.context_switches",
        "{switch}",
        "Context switches of the rank",
        "/proc/PID/status, voluntary or not, of first threads",
        SLOW_S,
    ),
    _gauge("cgroup.memory.usage", "By", "Memory of the rank's container", "memory.current less inactive page cache"),
    _gauge("cgroup.memory.limit", "By", "Memory limit of the rank's container", "the tightest memory.max, if any"),
    _count("cgroup.cpu.usage", "s", "CPU time of the rank's container", "cpu.stat of the group with the limit", SLOW_S),
    _gauge("cgroup.cpu.limit", "{cpu}", "CPU limit of the rank's container", "the tightest cpu.max, if any", SLOW_S),
    _count("cgroup.cpu.throttled", "s", "CPU time denied to the rank's container", "cpu.stat: throttled_usec", SLOW_S),
    _count("cgroup.cpu.periods", "{period}", "Periods of the CPU limit", "cpu.stat: nr_periods", SLOW_S),
    _count("cgroup.cpu.throttled_periods", "{period}", "Periods with CPU denied", "cpu.stat: nr_throttled", SLOW_S),
    _gauge("cgroup.pids", "{process}", "Processes and threads of the rank's container", "pids.current", SLOW_S),
    _count("cgroup.memory.oom_kills", "{kill}", "OOM kills in the rank's container", "memory.events: oom_kill", SLOW_S),
    _count("cgroup.pressure.cpu", "s", "CPU pressure of the rank's container", "cpu.pressure, line some; v2", SLOW_S),
    _count("cgroup.pressure.memory", "s", "Memory pressure of the rank's container", "likewise", SLOW_S),
    _count("cgroup.pressure.io", "s", "I/O pressure of the rank's container", "likewise", SLOW_S),
)
# Of a rank on its GPUs: the sum over its process tree.
_RANK_ON_GPU = (
    _gauge(
        "process.gpu.memory.usage",
        "By",
        "GPU memory of the rank",
        "nvmlDeviceGetComputeRunningProcesses; absent where the driver does not know it",
        GPU_PROCESSES_S,
    ),
    _gauge(
        "process.gpu.utilization",
        "1",
        "GPU utilization by the rank",
        "nvmlDeviceGetProcessUtilization, multiprocessors; 1 is one whole GPU; not under MIG",
        GPU_PROCESSES_S,
    ),
)

# Of the SDK in a rank, each 10 s; device `pid:<PID>`, and on device `chiplog` those of all ranks of the agent together.
_SDK = (
    _pipeline_count("chiplog.sdk.events", "{event}", "SDK: events", "numbered by the journal, lost ones included"),
    _pipeline_count(
        "chiplog.sdk.lost.journal_full", "{event}", "SDK: events lost, journal full", "declared lost", "reason"
    ),
    _pipeline_count(
        "chiplog.sdk.lost.device_values",
        "{event}",
        "SDK: events lost, values on a device",
        "not copied in time or unreadable; of a full journal both reasons count",
        "reason",
    ),
    _pipeline_count("chiplog.sdk.rejected", "{value}", "SDK: rejected values", "as the rows `bad_values` of events"),
    _pipeline_count("chiplog.sdk.errors", "{error}", "SDK: internal errors", "likewise: internal_error"),
    _pipeline("chiplog.sdk.journal", "By", "SDK: journal", "its segments on disk or in memory, the next one included"),
    _pipeline("chiplog.sdk.journal_oldest", "s", "SDK: oldest event not at the agent", "its age; of several the worst"),
    _pipeline("chiplog.sdk.in_memory", "{event}", "SDK: events in memory only", "the rank's disk refuses them"),
    _pipeline_count("chiplog.sdk.cpu_time", "s", "SDK: CPU time of its thread", "the clock of the thread"),
)

# Of the agent and the collector themselves, each 10 s while they have something to do; device `chiplog`.
_PIPELINE = (
    _pipeline("chiplog.agent.spool", "By", "Agent: spool on disk", "the agent's segments, acknowledged ones included"),
    _pipeline(
        "chiplog.agent.spool_oldest", "s", "Agent: oldest event not at the collector", "its block, or segment of before"
    ),
    _pipeline("chiplog.agent.acknowledgement", "s", "Agent: time until acknowledged", "the slowest block"),
    _pipeline_count("chiplog.agent.events.received", "{event}", "Agent: events, of ranks", "taken from them", "result"),
    _pipeline_count("chiplog.agent.events.lost", "{event}", "Agent: events, lost", "declared lost by it", "result"),
    _pipeline_count("chiplog.agent.events.refused", "{event}", "Agent: events, refused", "by the collector", "result"),
    *_refused("agent", AGENT_REFUSALS),
    _pipeline_count(
        "chiplog.agent.duplicates", "{message}", "Agent: repeated messages", "dropped: sent again by ranks"
    ),
    _pipeline_count("chiplog.agent.damaged", "{range}", "Agent: damaged ranges of bytes", "in messages of ranks"),
    _pipeline("chiplog.agent.ranks", "{process}", "Agent: connected ranks", "its sessions"),
    _pipeline("chiplog.agent.journals_waiting", "{journal}", "Agent: journals of ended ranks", "not delivered yet"),
    _pipeline("chiplog.agent.credit", "By", "Agent: credit of each rank", "0: the spool is full"),
    _pipeline("chiplog.agent.sample_late", "s", "Agent: latest sample of the host", "against its period, the worst"),
    _pipeline_count("chiplog.agent.samples_dropped", "{sample}", "Agent: dropped samples", "while the spool was full"),
    _pipeline("chiplog.agent.gpus", "{gpu}", "Agent: GPUs", "that it samples now"),
    _pipeline("chiplog.agent.gpus_released", "{flag}", "Agent: GPUs released", "1 until `chiplog agent gpu resume`"),
    _pipeline(
        "chiplog.agent.gpus_lost", "{gpu}", "Agent: lost GPUs", "gpu.lost without gpu.back; in /metrics of each GPU"
    ),
    _pipeline("chiplog.agent.gpus_stale", "{gpu}", "Agent: GPUs that do not answer", "likewise, of device_stale"),
    _pipeline_count(
        "chiplog.agent.fatal_xids", "{error}", "Agent: fatal XIDs of GPUs", "likewise, gpu.xid of level error"
    ),
    _pipeline_count("chiplog.agent.cpu_time", "s", "Agent: CPU time", "agent and sampler"),
    _pipeline("chiplog.agent.memory", "By", "Agent: memory", "resident sets of agent and sampler"),
    _pipeline("chiplog.collector.log", "By", "Collector: log on disk", "its segments"),
    _pipeline("chiplog.collector.disk_free", "By", "Collector: free disk", "statvfs of its directory"),
    _pipeline("chiplog.collector.apply_lag", "s", "Collector: age of what SQL does not show yet", "log against index"),
    _pipeline_count("chiplog.collector.quarantined", "{record}", "Collector: damaged records", "set aside"),
    *_refused("collector", RefusalReason),
    _pipeline(
        "chiplog.collector.unapplied",
        "{event}",
        "Collector: events kept, not applied",
        "of other nodes, until chiplog keys allow admits them",
    ),
    _pipeline_count(
        "chiplog.collector.duplicates", "{message}", "Collector: repeated messages", "dropped: sent again by agents"
    ),
    _pipeline("chiplog.collector.agents.connected", "{agent}", "Collector: agents, connected", "its sessions", "state"),
    _pipeline("chiplog.collector.agents.silent", "{agent}", "Collector: agents, silent", "within the hour", "state"),
    _pipeline_count("chiplog.collector.index_restarts", "{restart}", "Collector: restarts of the index", "its ends"),
    _pipeline_count("chiplog.collector.cpu_time", "s", "Collector: CPU time of the receiver", "without the index"),
)


def _by_name(metrics: Iterable[SystemMetric], verified: str = "kernel") -> dict[str, SystemMetric]:
    return {metric.name: metric._replace(verified=verified) for metric in metrics}


GPU_METRICS = _by_name(_GPU, "stand-in")
HOST_METRICS = _by_name(_HOST) | _by_name(_RDMA, "stand-in")
RANK_METRICS = _by_name(_RANK) | _by_name(_RANK_ON_GPU, "stand-in")
SDK_METRICS = _by_name(_SDK)
PIPELINE_METRICS = SDK_METRICS | _by_name(_PIPELINE)
SYSTEM_METRICS = GPU_METRICS | HOST_METRICS | RANK_METRICS | PIPELINE_METRICS  # in the order of the page
