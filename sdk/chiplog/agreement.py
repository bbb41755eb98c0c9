"""Agree on a run ID through torch.distributed, once the training code has initialised it. Never imports torch.

A compare-and-set on a clone of the default group's store: the first rank's word becomes everybody's. A clone, because a
blocking call on the shared store client would stall the trainer's own calls.
"""

import sys
from dataclasses import dataclass

_KEY = "chiplog/run_id"


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the group says."""

    run_id: str
    rank: int
    world_size: int


def ask_group(candidate: str) -> Agreed | None:
    """Offer a run ID to the default process group; None while there is no group or its store cannot be asked."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    except (AttributeError, RuntimeError, ValueError):
        return None  # another thread is importing torch just now, or destroying the group
    try:
        store = distributed.distributed_c10d._get_default_store().clone()
        word = store.compare_set(_KEY, "", candidate)
    except (RuntimeError, AttributeError, ValueError):
        return Agreed(candidate, rank, world_size)  # rank and world are still worth having
    text = word.decode() if isinstance(word, bytes) else str(word)
    return Agreed(text or candidate, rank, world_size)
