"""Agree on a run ID through torch.distributed, once the training code has initialised it. Never imports torch.

A compare-and-set on a clone of the group's store: the first rank's word becomes everybody's. A clone, because a
blocking call on the shared store client would stall the trainer's own calls. torch.distributed.rpc has a store of its
own, and names its workers; where both are there, its word is the later one: it may hold more processes than the group.
"""

import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

_KEY = "chiplog/run_id"
_STORE_WAIT_S = 5.0  # of our own thread; the store's own five minutes would keep the journal from being sent
_TRIES = 12  # a store that is busy with ten thousand ranks answers later; after a minute each rank is on its own

_agreed = 0  # how many runs of this process a group agreed on: the second is the second of every rank
_inherited: tuple[Any, Any] = (None, None)  # group and RPC agent of the process that this one was forked from


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the group says. name: the worker's, where RPC said it."""

    run_id: str
    rank: int
    world_size: int
    name: str | None = None


class Question:
    """What one run asks: the default process group, once there is one, and RPC, once that is there."""

    def __init__(self) -> None:
        self._heard_group = self._heard_rpc = False
        self._number = 0
        self._failures = 0

    @property
    def can_ask(self) -> bool:
        """Whether somebody is there who was not asked yet."""
        return (not self._heard_rpc and _rpc_agent() is not None) or (not self._heard_any and _group() is not None)

    @property
    def _heard_any(self) -> bool:
        return self._heard_group or self._heard_rpc

    def ask(self, candidate: str) -> Agreed | None:
        """Offer a run ID; None while there is nobody to ask, or nothing new to hear. May take _STORE_WAIT_S."""
        try:
            found = self._look()
        except (AttributeError, RuntimeError, ValueError):
            return None  # another thread is destroying the group just now
        if found is None:
            return None
        store, rank, world_size, name = found
        word = self._agree(store, candidate)
        if word is None:
            return None  # asked again soon
        self._heard_rpc, self._heard_group = name is not None, True
        return Agreed(word, rank, world_size, name)

    def _look(self) -> tuple[Any, int, int, str | None] | None:
        agent = None if self._heard_rpc else _rpc_agent()
        if agent is not None:
            own = agent.get_worker_info()
            return agent.store, own.id, len(agent.get_worker_infos()), own.name
        if self._heard_any or _group() is None:
            return None
        distributed = sys.modules["torch.distributed"]
        store = distributed.distributed_c10d._get_default_store()
        return store, distributed.get_rank(), distributed.get_world_size(), None

    def _agree(self, store: Any, candidate: str) -> str | None:
        """Return everybody's word; our own when the store cannot be asked: rank and world are still worth having."""
        global _agreed
        if not self._number:
            _agreed += 1
            self._number = _agreed
        try:
            clone = store.clone()
            clone.set_timeout(timedelta(seconds=_STORE_WAIT_S))
            word = clone.compare_set(f"{_KEY}/{self._number}", "", candidate)
        except (RuntimeError, AttributeError, ValueError, TypeError):
            self._failures += 1
            return candidate if self._failures >= _TRIES else None
        return (word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)) or candidate


def _group() -> Any:
    """Return the default process group of this very process."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        group = distributed.distributed_c10d._get_default_group()
    except (AttributeError, RuntimeError, ValueError):
        return None  # another thread is importing torch just now, or destroying the group
    return None if group is _inherited[0] else group


def _rpc_agent() -> Any:
    rpc = sys.modules.get("torch.distributed.rpc")
    try:
        if rpc is None or not rpc.is_available() or not rpc.api._is_current_rpc_agent_set():
            return None
        agent = rpc.api._get_current_rpc_agent()
    except (AttributeError, RuntimeError):
        return None
    return None if agent is _inherited[1] else agent


def _after_fork() -> None:
    """Note what a child found: to torch it looks as if the child itself were that rank."""
    global _agreed, _inherited
    _agreed, _inherited = 0, (None, None)
    _inherited = _group(), _rpc_agent()


os.register_at_fork(after_in_child=_after_fork)
