"""Which GPUs belong to which rank, pure: what ranks state about themselves, resolved by what NVML reports of the node.

A rank sends its claim unresolved (`gpu_claim` of its identity, PROTOCOL.md §5): it has no NVML, and CUDA's indices
differ from NVML's. The agent resolves it to UUIDs, and corrects it if NVML lists the rank's processes on another GPU.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chiplog_agent.stats.frames import GPU_DEVICES, Gpu
from chiplog_schemas.model.events import select_typed

CLAIM_FIELDS: dict[str, type | tuple[type, ...]] = {
    "given": list,  # gpu_device_ids: UUIDs, prefixes of them, MIG names, or indices as nvidia-smi counts
    "visible": str,  # CUDA_VISIBLE_DEVICES; absent: not set
    "order": str,  # CUDA_DEVICE_ORDER; absent: FASTEST_FIRST, CUDA's default
    "local": int,  # the local rank; absent: this process is the only one of its launch here
    "current": int,  # torch.cuda.current_device()
    "uuid": str,  # UUID of that device
    "whole": bool,  # the label represents all ranks of its node
}
_ENTRIES_MAX = 64  # GPUs, with their MIG instances, that one process can see
_ENTRY_CHARS_MAX = 128  # a UUID has 40; a MIG name with its parent's UUID some 60


def bounded_claim(claim: Any) -> dict[str, Any]:
    """Return the known entries of a peer's claim, limited to valid sizes."""
    known = select_typed(claim, CLAIM_FIELDS)
    for name, value in known.items():
        if isinstance(value, str):
            known[name] = value[: _ENTRIES_MAX * _ENTRY_CHARS_MAX]
        elif isinstance(value, list):
            known[name] = [str(entry)[:_ENTRY_CHARS_MAX] for entry in value[:_ENTRIES_MAX]]
    return known


class Claims:
    """The claims of this node's ranks. `gpus` are in the order of NVML, which is that of PCI addresses.

    A claim is resolved once: CUDA keeps its numbers while a process runs, even if a GPU falls off the bus.
    """

    def __init__(self) -> None:
        self._gpus: tuple[Gpu, ...] = ()
        self._claims: dict[bytes, tuple[int, Mapping[str, Any]]] = {}  # producer → PID, claim
        self._resolved: dict[bytes, tuple[str, ...]] = {}
        self._held: dict[int, tuple[str, ...]] = {}  # PID → the GPUs on which NVML last listed its process tree
        self._reported: dict[bytes, tuple[str, ...]] = {}
        self._unknown: list[tuple[bytes, str]] = []  # entries that name no GPU, not taken yet
        self._has_news = False  # since the last `take_changes`, which each turn of the agent calls

    def set_gpus(self, gpus: Iterable[Gpu]) -> None:
        """Set the GPUs that NVML enumerated."""
        self._gpus = tuple(gpus)
        self._has_news = True

    def hold(self, pid: int, uuids: Sequence[str]) -> None:
        """Set the GPUs on which NVML lists the processes of a rank."""
        if uuids:  # a rank without any has freed its memory at its end, and keeps its GPUs
            self._held[pid] = tuple(uuids)
            self._has_news = True

    def set_claims(self, claims: Mapping[bytes, tuple[int, Mapping[str, Any]]]) -> None:
        """Set the ranks of this node: producer → (PID, claim). All others are dropped."""
        fresh = dict(claims)
        for producer in [name for name, claim in self._claims.items() if fresh.get(name) != claim]:
            self._resolved.pop(producer, None)
            if producer not in fresh:
                self._reported.pop(producer, None)
        pids = {pid for pid, _ in fresh.values()}
        self._held = {pid: uuids for pid, uuids in self._held.items() if pid in pids}
        self._claims = fresh
        self._has_news = True

    def gpus_of(self, producer: bytes) -> tuple[str, ...]:
        """Return the UUIDs of a rank's GPUs, as last reported."""
        return self._reported.get(producer, ())

    def take_changes(self) -> list[tuple[bytes, tuple[str, ...]]]:
        """Return (producer, UUIDs) of each rank whose GPUs have become known or have changed."""
        changes: list[tuple[bytes, tuple[str, ...]]] = []
        if not self._has_news:
            return changes
        self._has_news = False
        for producer, (pid, claim) in self._claims.items():
            if producer not in self._resolved and self._gpus:
                self._resolved[producer] = resolve(claim, self._gpus)
                self._unknown += [(producer, entry) for entry in unknown_entries(claim, self._gpus)]
            own = self._resolved.get(producer)
            is_fixed = "given" in claim or claim.get("whole", False)
            gpus = own if is_fixed else self._held.get(pid, own)  # safeguard: nvml-corrects-claims
            if gpus is not None and gpus != self._reported.get(producer, None if gpus else ()):
                self._reported[producer] = gpus
                changes.append((producer, gpus))
        return changes

    def take_unknown(self) -> list[tuple[bytes, str]]:
        """Return (producer, entry) of what users gave that names none of the GPUs, or several; once."""
        unknown, self._unknown = self._unknown, []
        return unknown


def unknown_entries(claim: Mapping[str, Any], gpus: Sequence[Gpu]) -> list[str]:
    """Return the entries that a user gave and that do not name one GPU."""
    given = map(str, claim.get("given", [])[:_ENTRIES_MAX])
    return [entry for entry in given if entry and _discover_gpus(entry, gpus) is None]


def resolve(claim: Mapping[str, Any], gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return the UUIDs of a claim. `gpus`: all of the node, in NVML's order.

    The order of priority: the GPUs that the user gave; the device that torch uses; the visible GPU of the local rank;
    all visible GPUs.
    """
    if "given" in claim:
        found = [_discover_gpus(str(entry), gpus) for entry in claim["given"][:_ENTRIES_MAX]]
        return tuple(dict.fromkeys(uuid for uuid in found if uuid is not None))
    current = _discover_gpus(claim.get("uuid", ""), gpus)
    if current is not None:  # safeguard: torch-device-first
        return (current,)
    visible = visible_gpus(claim.get("visible"), claim.get("order", ""), gpus)
    if 0 <= claim.get("current", -1) < len(visible):
        return (visible[claim["current"]],)
    if visible and claim.get("local", -1) >= 0:  # safeguard: local-rank-owns-gpu
        return (visible[claim["local"] % len(visible)],)  # more ranks than GPUs share them in turn
    return visible


def visible_gpus(visible: str | None, order: str, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return the UUIDs that CUDA shows to a process, in CUDA's order.

    The rules are those of torch.cuda._parse_visible_devices and _transform_uuid_to_ordinals: entries after the first
    invalid one are not visible, and a duplicate entry hides all devices.
    """
    # safeguard: cuda-order-fastest-first
    if order != "PCI_BUS_ID":  # FASTEST_FIRST; GPUs of equal speed keep NVML's order
        gpus = sorted(gpus, key=lambda gpu: -gpu.speed)
    if visible is None:
        return tuple(_unit(gpu) for gpu in gpus)
    found: list[str] = []
    prefix = next((word for word in GPU_DEVICES if visible.startswith(word)), "")
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
    """Return the device of a GPU that CUDA uses: in MIG mode the first instance."""
    return gpu.instances[0].uuid if gpu.instances else gpu.uuid


def _leading_number(text: str) -> int:
    """Return the number at the start of a text, as strtoul reads it; -1 without one."""
    digits = text.removeprefix("+")
    length = len(digits) - len(digits.lstrip("0123456789"))
    return int(digits[:length]) if 0 < length < 10 else -1


def _discover_gpus(name: str, gpus: Sequence[Gpu]) -> str | None:
    """Return the UUID for an index, a UUID, a unique prefix of one, or a MIG name of either form."""
    if name.isdecimal():
        return gpus[int(name)].uuid if len(name) < 10 and int(name) < len(gpus) else None
    if name.startswith("MIG-GPU-") and name.count("/") == 2:  # MIG-GPU-<UUID>/<GPU instance>/<compute instance>
        parent, gpu_instance, compute_instance = name.removeprefix("MIG-").split("/")
        wanted = (_leading_number(gpu_instance), _leading_number(compute_instance))
        instances = [instance for gpu in gpus if gpu.uuid == parent for instance in gpu.instances]
        return next((instance.uuid for instance in instances if instance[1:] == wanted), None)
    uuids = [gpu.uuid for gpu in gpus] + [instance.uuid for gpu in gpus for instance in gpu.instances]
    bare = not name.startswith(GPU_DEVICES)  # the form that torch uses
    matches = {uuid for uuid in uuids if (uuid[4:] if bare else uuid).lower().startswith(name.lower())}
    return matches.pop() if len(matches) == 1 and name not in ("", *GPU_DEVICES) else None
