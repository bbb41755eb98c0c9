"""Which GPUs belong to which rank, pure: what ranks state about themselves, resolved by what NVML says of the node.

A rank sends its claim unresolved (`gpu_claim` of its identity, PROTOCOL.md §5): it has no NVML, and indices of CUDA are
not those of NVML. The agent resolves it to UUIDs, and corrects it where NVML lists the rank's processes on a GPU.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from chiplog_schemas.model.events import select_typed

CLAIM_FIELDS: dict[str, type | tuple[type, ...]] = {
    "given": list,  # gpu_device_ids: UUIDs, prefixes of them, MIG names, or indices as nvidia-smi counts
    "visible": str,  # CUDA_VISIBLE_DEVICES; absent: not set
    "order": str,  # CUDA_DEVICE_ORDER; absent: FASTEST_FIRST, CUDA's default
    "local": int,  # the local rank; absent: this process is the only one of its launch here
    "current": int,  # torch.cuda.current_device()
    "uuid": str,  # UUID of that device
    "whole": bool,  # the label stands for all ranks of its node
}
_ENTRIES_MAX = 64  # GPUs, with their MIG instances, that one process can see
_ENTRY_CHARS_MAX = 128  # a UUID has 40; a MIG name with its parent's UUID some 60


class MigDevice(NamedTuple):
    """One compute instance of a GPU in MIG mode."""

    uuid: str
    gpu_instance: int
    compute_instance: int


class Gpu(NamedTuple):
    """One GPU of the node. `speed`: cores × clock; only their order counts."""

    uuid: str
    speed: float
    instances: tuple[MigDevice, ...] = ()


def bounded_claim(claim: Any) -> dict[str, Any]:
    """Return what is used of a peer's claim, cut to what a claim can be."""
    known = select_typed(claim, CLAIM_FIELDS)
    for name, value in known.items():
        if isinstance(value, str):
            known[name] = value[: _ENTRIES_MAX * _ENTRY_CHARS_MAX]
        elif isinstance(value, list):
            known[name] = [str(entry)[:_ENTRY_CHARS_MAX] for entry in value[:_ENTRIES_MAX]]
    return known


class Claims:
    """The claims of this node's ranks. `gpus` are in the order of NVML, which is that of PCI addresses.

    A claim is resolved once: CUDA keeps its numbers while a process lives, also when a GPU falls off the bus.
    """

    def __init__(self) -> None:
        self._gpus: tuple[Gpu, ...] = ()
        self._claims: dict[bytes, tuple[int, Mapping[str, Any]]] = {}  # producer → PID, claim
        self._resolved: dict[bytes, tuple[str, ...]] = {}
        self._held: dict[int, tuple[str, ...]] = {}  # PID → on which GPUs NVML last listed its process tree
        self._said: dict[bytes, tuple[str, ...]] = {}

    def set_gpus(self, gpus: Iterable[Gpu]) -> None:
        """Take what NVML enumerated."""
        self._gpus = tuple(gpus)

    def hold(self, pid: int, uuids: Sequence[str]) -> None:
        """Take NVML's word on which GPUs the processes of a rank are."""
        if uuids:  # a rank that has freed everything is at its end: what it held is still its
            self._held[pid] = tuple(uuids)

    def set_claims(self, claims: Mapping[bytes, tuple[int, Mapping[str, Any]]]) -> None:
        """Set the ranks of this node: producer → (PID, claim); the others are forgotten."""
        fresh = dict(claims)
        for producer in [name for name, claim in self._claims.items() if fresh.get(name) != claim]:
            self._resolved.pop(producer, None)
            if producer not in fresh:
                self._said.pop(producer, None)
        pids = {pid for pid, _ in fresh.values()}
        self._held = {pid: uuids for pid, uuids in self._held.items() if pid in pids}
        self._claims = fresh

    def take_changes(self) -> list[tuple[bytes, tuple[str, ...]]]:
        """Return (producer, UUIDs) of each rank whose GPUs are known now, or are others than before."""
        changes = []
        for producer, (pid, claim) in self._claims.items():
            if producer not in self._resolved and self._gpus:
                self._resolved[producer] = resolve(claim, self._gpus)
            own = self._resolved.get(producer)
            is_fixed = "given" in claim or claim.get("whole", False)
            gpus = own if is_fixed else self._held.get(pid, own)
            if gpus is not None and gpus != self._said.get(producer, None if gpus else ()):
                self._said[producer] = gpus
                changes.append((producer, gpus))
        return changes


def resolve(claim: Mapping[str, Any], gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return the UUIDs that a claim means. `gpus`: all of the node, in NVML's order.

    In this order: what the user gave; the device that torch uses; of several that are visible that of the local rank;
    all that are visible.
    """
    if "given" in claim:
        found = [_discover_gpus(str(entry), gpus) for entry in claim["given"][:_ENTRIES_MAX]]
        return tuple(dict.fromkeys(uuid for uuid in found if uuid is not None))
    current = _discover_gpus(claim.get("uuid", ""), gpus)
    if current is not None:
        return (current,)
    visible = visible_gpus(claim.get("visible"), claim.get("order", ""), gpus)
    if 0 <= claim.get("current", -1) < len(visible):
        return (visible[claim["current"]],)
    if visible and claim.get("local", -1) >= 0:
        return (visible[claim["local"] % len(visible)],)  # more ranks than GPUs share them in turn
    return visible


def visible_gpus(visible: str | None, order: str, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return the UUIDs that CUDA shows to a process, as it numbers them.

    The rules are those of torch.cuda._parse_visible_devices and _transform_uuid_to_ordinals: what follows the first
    entry that is no device is not visible, and with an entry twice nothing is.
    """
    if order != "PCI_BUS_ID":  # FASTEST_FIRST; equally fast ones keep NVML's order
        gpus = sorted(gpus, key=lambda gpu: -gpu.speed)
    if visible is None:
        return tuple(_unit(gpu) for gpu in gpus)
    found: list[str] = []
    prefix = next((word for word in ("GPU-", "MIG-") if visible.startswith(word)), "")
    for entry in visible.split(",")[:_ENTRIES_MAX]:
        uuid = _discover_gpus(entry.strip(), gpus) if prefix and entry.strip().startswith(prefix) else None
        index = -1 if prefix else _leading_number(entry.strip())
        if 0 <= index < len(gpus):
            uuid = _unit(gpus[index])
        if uuid is None:
            break
        if uuid in found:
            return ()
        found.append(uuid)
    return tuple(found)


def _unit(gpu: Gpu) -> str:
    """Return what CUDA uses of a GPU: of one in MIG mode the first instance."""
    return gpu.instances[0].uuid if gpu.instances else gpu.uuid


def _leading_number(text: str) -> int:
    """Return the number that a text begins with, as strtoul reads it; -1 without one."""
    digits = text.removeprefix("+")
    length = len(digits) - len(digits.lstrip("0123456789"))
    return int(digits[:length]) if 0 < length < 10 else -1


def _discover_gpus(name: str, gpus: Sequence[Gpu]) -> str | None:
    """Return the UUID that an index, a UUID, a prefix of just one UUID, or a MIG name of either form means."""
    if name.isdecimal():
        return gpus[int(name)].uuid if len(name) < 10 and int(name) < len(gpus) else None
    if name.startswith("MIG-GPU-") and name.count("/") == 2:  # MIG-GPU-<UUID>/<GPU instance>/<compute instance>
        parent, gpu_instance, compute_instance = name.removeprefix("MIG-").split("/")
        wanted = (_leading_number(gpu_instance), _leading_number(compute_instance))
        instances = [instance for gpu in gpus if gpu.uuid == parent for instance in gpu.instances]
        return next((instance.uuid for instance in instances if instance[1:] == wanted), None)
    uuids = [gpu.uuid for gpu in gpus] + [instance.uuid for gpu in gpus for instance in gpu.instances]
    bare = not name.startswith(("GPU-", "MIG-"))  # as torch writes it
    matches = {uuid for uuid in uuids if (uuid[4:] if bare else uuid).lower().startswith(name.lower())}
    return matches.pop() if len(matches) == 1 and name not in ("", "GPU-", "MIG-") else None
