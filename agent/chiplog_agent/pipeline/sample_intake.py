"""The agent's end of the sampler: which agent of a node samples, which processes are watched, what becomes an event."""

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Set
from itertools import repeat
from pathlib import Path
from typing import Any

import zmq

from chiplog_agent.pipeline.batcher import EventBatcher
from chiplog_agent.pipeline.health import FATAL_XIDS, GPUS_LOST, GPUS_STALE, device_labels
from chiplog_agent.pipeline.sdk_reports import SdkReports
from chiplog_agent.stats.claims import Claims
from chiplog_agent.stats.frames import GPU_DEVICES, RANK_DEVICE, Gpu
from chiplog_agent.stats.gpu.changes import GpuChanges
from chiplog_agent.stats.gpu.nvml import address_of, short_address
from chiplog_agent.stats.gpu.xids import xid_of
from chiplog_agent.stats.release_mark import ReleaseMark
from chiplog_agent.stats.sampler_lease import SamplerLease
from chiplog_agent.stats.sampler_process import (
    DeviceEvent,
    DeviceStale,
    GpuAddresses,
    Gpus,
    Holders,
    Message,
    NodeFacts,
    Sample,
    SamplerLog,
    SamplerProcess,
)
from chiplog_schemas.clock import now_us
from chiplog_schemas.limits import SAMPLE_INTERVAL_MAX_S, SAMPLE_INTERVAL_MIN_S, SAMPLE_INTERVAL_S
from chiplog_schemas.model.exposed import Exposed

_UUID_CHARS = len("GPU-") + 8  # random digits: enough to find the device among those of a node
_KEPT_PERIODS = 3  # a device that was not sampled for this long is not shown in /metrics …
_KEPT_PERIOD_S = 10.0  # … but slow values come each 10 s
_OWNER_FIELDS: tuple[str, ...] = ("run_id", "label", "rank")  # of an identity, as labels in /metrics
_LOOK_INTERVAL_S = 0.5  # at the sampler's process, and whether GPUs shall be released: each costs system calls
_LOG_LEVELS = {"warning": logging.WARNING, "error": logging.ERROR}  # of events; INFO for all others
_GPUS_SHOWN_MAX = 16  # in a message; nodes have 8 or 16
_log = logging.getLogger("chiplog.agent")


class SampleIntake:
    """Passes samples and claims of GPUs to the batcher.

    period_s: between samples; None: no statistics. has_room: returns True while the spool takes samples. is_dead:
    returns True if a producer's process has ended. release: whether GPUs shall be closed. known_gpus: a file of the
    sampler.
    """

    def __init__(
        self,
        batcher: EventBatcher,
        lease: SamplerLease,
        node: str,
        *,
        period_s: float | None,
        is_embedded: bool,
        has_room: Callable[[], bool],
        is_dead: Callable[[bytes], bool],
        release: ReleaseMark,
        known_gpus: Path,
    ) -> None:
        self._batcher = batcher
        self._lease = lease
        self._node = node
        self._period_s = SAMPLE_INTERVAL_S if period_s is None else period_s
        self._sampler: SamplerProcess | None = None
        if period_s is not None:
            self._sampler = SamplerProcess(period_s=period_s, may_share=is_embedded, known_gpus=known_gpus)
        self._is_embedded = is_embedded
        self._has_room = has_room
        self._is_dead = is_dead
        self._poller: zmq.Poller | None = None
        self._watched: set[int] = set()
        self._samples_node = not is_embedded  # as a rank asks, or an operator who started this agent
        self._claims = Claims()
        self._release = release
        self._changes = GpuChanges()
        self._look_at = 0.0
        self._pids: dict[bytes, int] = {}  # of the ranks that are sampled
        self._newest: dict[str, dict[str, tuple[float, float]]] = {}  # device → name → monotonic time and value
        self._facts: dict[str, Any] = {}
        self._told_facts: dict[str, Any] = {}
        self._current_s = self._period_s  # between samples, as ranks ask
        self._sampled_at: float | None = None  # when the host was last sampled, monotonic; None: with another period
        self._late_s = 0.0
        self._kept: list[Message] = []  # until this agent samples the host: what a sampler says only once
        self._sdk = SdkReports()
        self.n_dropped = 0  # samples, declared so far
        self.n_fatal_xids = 0
        self._fatal_xids = Counter({"": 0})  # by device, until it is removed or replaced; "" if its UUID is unknown
        self.lost_gpus: set[str] = set()  # UUIDs, until they are back; MIG instances also until they are removed
        self._returned: set[str] = set()  # UUIDs that were reported back, until they are lost or stale again
        self.is_released = False  # whether an operator wants the GPUs closed
        self._gpus: tuple[Gpu, ...] = ()
        self.stale_gpus: set[str] = set()  # UUIDs of those that do not answer, until they do, are lost or leave
        self._parents: dict[str, str] = {}  # MIG instance → its GPU
        self._addresses: dict[str, str] = {}  # GPU → its PCI address, also while it is lost

    @property
    def samples_node(self) -> bool:
        """Whether anything of this node beyond its ranks is sampled."""
        return self._sampler is not None and self._samples_node

    @property
    def samples_host(self) -> bool:
        """Whether this agent samples the host and its GPUs, of all agents of the node."""
        return self._lease.is_held

    @property
    def n_gpus(self) -> int:
        """How many GPUs this agent samples now."""
        if self.is_released or not self._lease.is_held:
            return 0
        return sum(gpu.uuid not in self.lost_gpus | self.stale_gpus for gpu in self._gpus)

    @property
    def n_stale_gpus(self) -> int:
        """How many GPUs do not answer; 0 while an operator wants them closed, and then until one answers or leaves."""
        return 0 if self.is_released else len(self.stale_gpus)

    @property
    def sampler_pid(self) -> int | None:
        """The process of the sampler; None while none runs."""
        return None if self._sampler is None else self._sampler.pid

    def take_late_s(self) -> float:
        """Return by how much the host's latest sample missed its period since the last call, in s."""
        late_s, self._late_s = self._late_s, 0.0
        return late_s

    def take_report(self, producer: bytes, health: Mapping[Any, Any], now: float) -> None:
        """Pass on what a rank reports of its SDK, as a sample of its process, if that is sampled."""
        pid = self._pids.get(producer)
        if pid is None or not self._sdk.take(producer, health, now):
            return
        values = self._sdk.of(other for other, its_pid in self._pids.items() if its_pid == pid)  # of several runs
        if values:
            self._take_sample(Sample(now_us(), f"{RANK_DEVICE}{pid}", tuple(values), tuple(values.values())), now)

    def sdk_totals(self) -> dict[str, float]:
        """Return what the ranks of this agent reported of their SDK, all together."""
        return self._sdk.totals(self._pids)

    def forget(self, producer: bytes) -> None:
        """Drop the state of a rank that is gone and delivered."""
        self._sdk.forget(producer)

    def exposed(self) -> list[Exposed]:
        """Return the newest values of each device of this node, with its users. Any thread may call it."""
        horizon = time.monotonic() - _KEPT_PERIODS * max(self._current_s, _KEPT_PERIOD_S)
        owners, places = self._owners(), self._places()
        exposed = []
        for device, newest in list(self._newest.items()):
            values = {name: value for name, (at, value) in list(newest.items()) if at >= horizon}
            labels = device_labels(self._node, device) | places.get(device, {}) | owners.get(device, {})
            exposed.append(Exposed(labels, tuple(values), tuple(values.values())))
        return exposed

    def exposed_states(self) -> list[Exposed]:
        """Return of each GPU whether it is lost or stale, and its fatal XIDs. Any thread may call it.

        Without users: an alert must not end with the run that the GPU has ended. With 0: an increase needs a start.
        """
        places, lost = self._places(), set(self.lost_gpus)
        stale = set() if self.is_released else set(self.stale_gpus)
        n_xids = {uuid: 0 for gpu in self._gpus for uuid in (gpu.uuid, *(part.uuid for part in gpu.instances))}
        others = (*places, *list(self._newest))  # `_gpus` does not come while one GPU hangs
        n_xids |= {device: 0 for device in others if device.startswith(GPU_DEVICES)}
        n_xids |= dict.fromkeys(lost | stale, 0) | dict(self._fatal_xids)
        exposed = []
        for device, n in n_xids.items():
            labels = device_labels(self._node, device) | places.get(device, {})
            exposed.append(Exposed(labels, (FATAL_XIDS,), (float(n),)))
            if device:
                is_lost, is_stale = float(device in lost), float(device in stale)
                exposed.append(Exposed(labels, (GPUS_LOST, GPUS_STALE), (is_lost, is_stale)))
        return exposed

    def _places(self) -> dict[str, dict[str, str]]:
        """Return where each GPU is plugged in, and of which GPU each MIG instance is a part."""
        places = {uuid: {"pci": address} for uuid, address in list(self._addresses.items())}
        parts = {instance: {**places.get(gpu, {}), "parent": gpu} for instance, gpu in list(self._parents.items())}
        return places | parts

    def _owners(self) -> dict[str, dict[str, str]]:
        """Return whose each device is: `run_id`, `label` and `rank`, of the first of several ranks."""
        owners: dict[str, dict[str, str]] = {}
        for producer, pid in list(self._pids.items()):
            peer = self._batcher.peers.get(producer)
            if peer is not None:
                known = {name: str(peer.identity[name]) for name in _OWNER_FIELDS if name in peer.identity}
                for device in (f"{RANK_DEVICE}{pid}", *self._claims.gpus_of(producer)):
                    owners.setdefault(device, known)
        return owners

    def start(self, poller: zmq.Poller) -> None:
        """Start the sampler. poller: wakes the agent's loop when the sampler has written."""
        self._poller = poller
        if self._sampler is not None:
            self._sampler.release_gpus(self._release.is_set)  # before it opens them
            self._sampler.start()
            poller.register(self._sampler.fileno(), zmq.POLLIN)

    def close(self) -> None:
        """End the sampler and free the lease."""
        self._lease.close()
        if self._sampler is not None:
            self._sampler.close()

    def take(self, alive: Set[bytes], now: float) -> None:
        """Pass on what the sampler has measured. alive: the connected producers."""
        if is_due := now >= self._look_at:
            self._look_at = now + _LOOK_INTERVAL_S
            self._follow_release()
        if self._sampler is None:
            return
        descriptor = self._sampler.fileno()
        if self._lease.poll(now):
            self._report_lease(now)
        kept, self._kept = self._kept, []
        for item in (*kept, *self._sampler.read()):
            if not self._lease.is_held and _is_of_node(item):  # safeguard: one-agent-samples-host
                if isinstance(item, DeviceEvent) and item.kind == "gpu.replaced":
                    self._kept.append(item)
                continue
            if not self._samples_node and isinstance(item, Sample) and _is_of_node(item):
                continue
            self._take_sample(item, now)
        self._tell_facts(now)
        if self._batcher.has_news:
            self.watch(alive)
        self._assign_gpus(now)
        if self._batcher.samples_dropped and self._has_room():
            self.declare_dropped(now)
        if is_due:
            self._sampler.tick(now)
        if self._sampler.fileno() != descriptor:
            self._register_again(descriptor)

    def _follow_release(self) -> None:
        """Close or open the GPUs as an operator has asked, and confirm that they are closed."""
        self.is_released = is_set = self._release.is_set
        if self._sampler is not None:
            self._sampler.release_gpus(is_set)
        is_closed = self._sampler is None or self._sampler.has_closed_gpus
        if is_set and is_closed and not self._release.is_confirmed:
            with contextlib.suppress(OSError):  # withdrawn just now, or a full disk: the next look tries again
                self._release.confirm()

    def _register_again(self, former: int) -> None:
        assert self._poller is not None and self._sampler is not None
        with contextlib.suppress(KeyError):
            self._poller.unregister(former)
        if self._sampler.fileno() >= 0:
            self._poller.register(self._sampler.fileno(), zmq.POLLIN)

    def _take_sample(self, item: Message, now: float) -> None:
        """Pass on one message of the sampler process."""
        match item:
            case Sample(ts_us, device, names, values):
                self._note(item, now)  # also without room: /metrics is asked for it then
                if self._has_room():
                    self._batcher.sample(device, names, values, ts_us, now)
                    self._report_changes(item, now)
                else:
                    self._batcher.samples_dropped += 1
            case DeviceStale(device):
                who, kind = f"device {device}", "sampler"  # a source of the host
                if device.startswith(GPU_DEVICES):
                    who, kind = f"GPU {self._short(device)}", "device_stale"
                    self.stale_gpus.add(device)
                    self._returned.discard(device)
                message = f"{who} has not answered; other statistics continue"
                self._report(kind, "warning", message, {"device": device}, now)
            case DeviceEvent("gpu.lost", device=device) if device in self.lost_gpus:
                pass  # another sampler found that too
            case DeviceEvent("gpu.back", device=device) if device in self._returned:
                pass  # a former sampler reported it, and ended before it saved that
            case DeviceEvent(kind, level, text, device, body):
                text += f" ({self._short(device)})" if device else ""
                self._count(kind, device, body.get("code", 0))
                self._report(kind, level, text, {**body, "device": device}, now)
            case SamplerLog(text, level):
                self._report("sampler", level, text, {}, now)
            case _:
                self._learn(item)

    def _learn(self, item: Message) -> None:
        """Take what a message says about the node."""
        match item:
            case Gpus(gpus):
                self._gpus = gpus
                self._claims.set_gpus(gpus)
                self._forget_absent(gpus)
            case GpuAddresses(addresses):
                self._addresses |= addresses
            case NodeFacts(facts):
                self._facts = facts
                self._addresses |= {gpu["uuid"]: gpu["pci"] for gpu in facts.get("gpus", ()) if "pci" in gpu}
            case Holders(pid, uuids):
                self._claims.hold(pid, uuids)

    def _report(self, kind: str, level: str, text: str, body: dict[str, Any], now: float) -> None:
        """Add an event, and a line to the agent's log."""
        _log.log(_LOG_LEVELS.get(level, logging.INFO), "%s", text)
        self._batcher.notice(kind, level, text, body, now, now_us())

    def _short(self, device: str) -> str:
        """Return what names a GPU in a message: its PCI address if that is known, else the start of its UUID."""
        address = self._addresses.get(device) or address_of(device)
        if address:
            return f"PCI {short_address(address)}"
        return device[:_UUID_CHARS] if device.startswith(GPU_DEVICES) else device

    def _assign_gpus(self, now: float) -> None:
        for producer, uuids in self._claims.take_changes():
            self._batcher.assign_gpus(producer, uuids, now, now_us())
        for producer, entry in self._claims.take_unknown():
            self._report_unknown(producer, entry, now)

    def _report_unknown(self, producer: bytes, entry: str, now: float) -> None:
        """Report that a rank names a GPU which this node does not have. One that is lost does exist."""
        has_nameless = any(not device.startswith(GPU_DEVICES) for device in self.lost_gpus)
        if self.lost_gpus and (entry.isdecimal() or has_nameless):  # the others may have other indices now
            return
        if any(device.startswith(entry) or device in entry for device in self.lost_gpus):
            return
        peer = self._batcher.peers.get(producer)
        owner = {} if peer is None else {name: peer.identity[name] for name in _OWNER_FIELDS if name in peer.identity}
        gpus = [gpu.uuid for gpu in self._gpus]
        shown = ", ".join(gpus[:_GPUS_SHOWN_MAX]) + (", …" if len(gpus) > _GPUS_SHOWN_MAX else "")
        who = f"{owner.get('label', 'a rank')} of run {owner.get('run_id', '?')}"
        message = f"{who} has the GPU ID {entry!r}, which names none of {self._node}, or several; it has {shown}"
        self._report("gpu_not_found", "warning", message, {**owner, "given": entry, "gpus": gpus}, now)

    def _tell_facts(self, now: float) -> None:
        """Report what the node is, once and when it changes: also when a new sampler reads the same again."""
        if self._facts != self._told_facts and self._samples_node and self._lease.is_held:
            self._told_facts = self._facts
            n_gpus = len(self._facts.get("gpus", []))
            gpus = "GPUs released" if self.is_released else f"{n_gpus} GPU{'' if n_gpus == 1 else 's'}"
            gpus += f", driver {self._facts['driver']}" if "driver" in self._facts else ""
            text = f"{self._node}: {gpus}, kernel {self._facts.get('kernel', '?')}"
            self._report("node_facts", "info", text, self._facts, now)

    def _report_changes(self, sample: Sample, now: float) -> None:
        """Report what a sampler cannot: it may be another one than that of the device's former samples."""
        device = sample.device
        if device in self.lost_gpus:  # safeguard: back-after-new-sampler
            self._take_sample(DeviceEvent("gpu.back", "info", "the GPU is back", device), now)
        elif device in self.stale_gpus:  # safeguard: stale-device-closed
            self._take_sample(DeviceEvent("gpu.back", "info", "the GPU answers again", device), now)
        for kind, level, text in self._changes.take(device, sample.names, sample.values):
            self._take_sample(DeviceEvent(kind, level, text, device), now)

    def _count(self, kind: str, device: str, code: int) -> None:
        if kind == "gpu.lost":
            self.lost_gpus.add(device)
            self.stale_gpus.discard(device)
            self._returned.discard(device)
        elif kind == "gpu.back":
            self.lost_gpus.discard(device)
            self.stale_gpus.discard(device)
            self._returned.add(device)
        elif kind == "gpu.replaced":
            self._forget_devices({device, *(uuid for uuid, gpu in self._parents.items() if gpu == device)})
        elif kind == "gpu.xid" and xid_of(code).is_fatal:
            self.n_fatal_xids += 1
            self._fatal_xids[device] += 1

    def _forget_absent(self, gpus: tuple[Gpu, ...]) -> None:
        """Forget MIG instances that an administrator removed: the GPU answers without them.

        A device that NVML no longer lists is not stale either.
        """
        parents = {instance.uuid: gpu.uuid for gpu in gpus for instance in gpu.instances}
        present = {gpu.uuid for gpu in gpus}
        gone = {uuid for uuid, gpu in self._parents.items() if gpu in present and uuid not in parents}
        self._forget_devices(gone)  # safeguard: removed-instance-leaves-metrics
        self.stale_gpus &= present | parents.keys()
        self._parents |= parents

    def _forget_devices(self, uuids: Set[str]) -> None:
        """Forget devices that will not be back."""
        self.lost_gpus -= uuids
        self.stale_gpus -= uuids
        for uuid in uuids:
            for known in (self._newest, self._fatal_xids, self._parents, self._addresses):
                known.pop(uuid, None)

    def _note(self, sample: Sample, now: float) -> None:
        """Keep the newest values of each device, and how late the host's are."""
        pid = sample.device.removeprefix(RANK_DEVICE)
        if pid != sample.device and not (pid.isdecimal() and int(pid) in self._watched):
            return  # it has ended
        newest = self._newest.setdefault(sample.device, {})
        values = zip(repeat(now), sample.values, strict=False)
        newest.update(zip(sample.names, values, strict=True))
        if sample.device == "":
            self._note_late(sample.ts_us, now)

    def _note_late(self, ts_us: int, now: float) -> None:
        """Note when the host was sampled. The time of day says only how long ago that was: it may jump in between."""
        before = self._sampled_at
        waited_s = max(0.0, (now_us() - ts_us) / 1e6)
        if before is None:
            self._sampled_at = now
            return
        self._sampled_at = now - min(waited_s, now - before)  # safeguard: lateness-without-clock
        self._late_s = max(self._late_s, self._sampled_at - before - self._current_s)

    def _report_lease(self, now: float) -> None:
        """Report which agent samples the host and its GPUs, when that changes."""
        node = self._node
        if self._lease.is_held:
            message, holder = f"this agent samples the host and the GPUs of {node}", os.getpid()
        else:
            holder, uid = self._lease.holder()
            of = f" (process {holder} of uid {uid})" if holder else ""
            message = f"another agent{of} samples the host and the GPUs of {node}; this one samples its ranks only"
        self._report("sampler", "info", message, {"pid": holder}, now)

    def declare_dropped(self, now: float) -> None:
        """Declare the samples that were dropped."""
        dropped, self._batcher.samples_dropped = self._batcher.samples_dropped, 0
        self.n_dropped += dropped
        message = f"{dropped} samples were dropped while the spool was full or its disk refused"
        self._batcher.notice("samples_dropped", "warning", message, {"samples": dropped}, now, now_us())

    def watch(self, alive: Set[bytes]) -> None:
        """Report to the sampler which processes are ranks of this node. alive: the connected producers."""
        if self._sampler is None:
            return
        self._batcher.has_news = False
        # Console helpers report no PID, and ask for nothing.
        peers = {name: peer for name, peer in self._batcher.peers.items() if name in alive and "pid" in peer.identity}
        intervals_s = {name: self._interval_of(peer.identity) for name, peer in peers.items()}
        asked_s = [seconds for seconds in intervals_s.values() if seconds > 0]
        self._samples_node = bool(asked_s) or not self._is_embedded
        self._set_period(min(asked_s, default=self._period_s))
        ranks = {  # safeguard: sampled-pid-from-kernel
            producer: peer.origin.pid
            for producer, peer in peers.items()
            if intervals_s[producer] > 0
            and peer.origin is not None
            and peer.origin.can_sample
            and not self._is_dead(producer)  # its PID may have been reused
        }
        identities = {producer: self._batcher.peers[producer].identity for producer in ranks}
        self._claims.set_claims(
            {name: (ranks[name], known["gpu_claim"]) for name, known in identities.items() if "gpu_claim" in known}
        )
        self._pids = ranks
        pids = set(ranks.values())
        gone = {device for device in self._newest if device.startswith(RANK_DEVICE)} - {
            f"{RANK_DEVICE}{pid}" for pid in pids
        }
        for device in gone:
            del self._newest[device]
        if pids != self._watched:
            self._watched = pids
            self._sampler.watch(pids)

    def _set_period(self, period_s: float) -> None:
        assert self._sampler is not None
        self._sampler.set_period(period_s)
        if period_s != self._current_s:
            self._current_s, self._sampled_at = period_s, None

    def _interval_of(self, identity: dict[str, Any]) -> float:
        """Return the seconds between samples that a rank asks for, 0 for none; by default those of this agent."""
        seconds = float(identity.get("sample_interval_s", -1.0))
        is_valid = seconds == 0 or SAMPLE_INTERVAL_MIN_S <= seconds <= SAMPLE_INTERVAL_MAX_S
        return seconds if is_valid else self._period_s


def _is_of_node(message: Message) -> bool:
    """Return True if a message of the sampler is about the host or its GPUs, and not about a rank."""
    return isinstance(message, Sample | DeviceStale | DeviceEvent) and not message.device.startswith(RANK_DEVICE)
