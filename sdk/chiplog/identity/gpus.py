"""Build a process's GPU claim from what it knows without NVML. The agent resolves the claim; see PROTOCOL.md §5."""

import re
from collections.abc import Mapping
from typing import Any

from chiplog.identity.identity import Identity
from chiplog.identity.process_info import spawned_index
from chiplog.torch.current_device import CurrentDevice

_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}")
_LOCAL_RANK_DIGITS_MAX = 5


def gpu_claim(
    environ: Mapping[str, str],
    identity: Identity,
    given: tuple[str, ...] | None,
    device: CurrentDevice | None,
    *,
    is_child: bool,
    speaks_for_node: bool,
) -> dict[str, Any]:
    """Return the claim of a process.

    given: `gpu_device_ids`. device: what torch uses. is_child: started by another process of the run.
    speaks_for_node: the label covers all ranks of its node.
    """
    if given is not None:
        return {"given": list(given)}
    if is_child and identity.rank is None:  # a worker: NVML reports the GPUs that it uses
        return {"visible": ""} if device is None else {"visible": "", "uuid": device.uuid}
    claim = {
        "visible": environ.get("CUDA_VISIBLE_DEVICES"),
        "order": environ.get("CUDA_DEVICE_ORDER"),
        "local": None if speaks_for_node else _local_rank(environ, identity),
        "whole": speaks_for_node or None,
    }
    if device is not None and not speaks_for_node:
        claim |= {"current": device.number, "uuid": device.uuid}
    return {name: value for name, value in claim.items() if value is not None}


def known_gpus(claim: Mapping[str, Any]) -> list[str]:
    """Return the UUIDs that a claim names in full; none if NVML is needed to resolve it."""
    entries = [entry.strip() for entry in claim.get("given", claim.get("visible", "").split(","))]
    if not all(_UUID.fullmatch(entry) for entry in entries):
        return []
    return entries if claim.get("local") is None else [entries[claim["local"] % len(entries)]]


def _local_rank(environ: Mapping[str, str], identity: Identity) -> int | None:
    """Return the rank on this node, by the launcher or by torch.multiprocessing.spawn()."""
    if identity.local_rank is not None:
        return identity.local_rank
    text = environ.get("LOCAL_RANK", "")
    if text.isdecimal() and len(text) <= _LOCAL_RANK_DIGITS_MAX:  # Lightning sets it alone for rank 0
        return int(text)
    return spawned_index()
