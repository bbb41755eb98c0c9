"""Agree on a run ID through torch.distributed, once the training code has initialised it. Never imports torch.

The first run ID that a rank writes into the group's store wins for all ranks, by a compare-and-set. A proposal is firm
if the user gave it, a parent passed it on, or this launch agreed on it before a restart. A firm proposal replaces one
that is not. torch.distributed.rpc has its own store and names its workers. If both exist, the answer of RPC counts: it
may have more processes than the group.

The exchange uses a clone of the store, because a blocking call on the shared client would stall the trainer's calls. It
runs in a dedicated thread, because a new connection to a frozen host waits without limit.
"""

import os
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from chiplog.identity.identity import Identity, with_group
from chiplog.safety.background_threads import is_exiting, start_thread
from chiplog_schemas.backoff import Backoff
from chiplog_schemas.interrupts import unless_interrupt

_KEY = "chiplog/run_id"
PROPOSAL_FIRM, _NEW = "firm:", "new:"
_STORE_WAIT_S = 5.0  # the store's own limit is five minutes
_PAUSE_S = 0.1  # before the first retry; doubled each time
_TRIES = 9  # a store that serves ten thousand ranks is slow; after a minute each rank keeps its own run ID
_EXPECT_S = 60.0  # groups usually form soon after init(), and RPC between two workers may last a tenth of a second
_POLL_INTERVAL_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # for the firm proposal of a rank that starts later

_agreed = 0  # number of runs of this process with an agreement: the second of each rank is the same run
_unasked: "list[RunIdRendezvous]" = []  # open runs without a number, in the order of opening
_inherited: tuple[Any, Any] = (None, None)  # group and RPC agent of the process that this one was forked from


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of an exchange. name: the worker's, if RPC gave one."""

    run_id: str
    rank: int
    world_size: int
    name: str | None = None


class RunIdRendezvous:
    """Agree on one run's ID: with the default process group once it exists, and with RPC once it is initialized.

    identity: the provisional one.
    """

    def __init__(self, identity: Identity) -> None:
        if identity.needs_agreement:
            _unasked.append(self)
        self._has_group_answer = self._has_rpc_answer = False
        self._is_settled = identity.run_id_is_final
        self._expected_until = time.monotonic() + _EXPECT_S if identity.needs_agreement else 0.0
        self._retries_for_firm = bool(identity.launch_cache_key) and not identity.run_id_is_final
        self._number = 0
        self._is_asking = False  # by one thread: no call between setting the flag and entering the `try`
        self._answered = threading.Event()
        self._agreement: Agreement | None = None
        self._delivered: Agreement | None = None

    def poll_group(self, candidate: str) -> None:
        """Start an exchange with a group or RPC that is new: some groups exist only briefly. Does not block.

        candidate: the run ID to propose.
        """
        if self._has_rpc_answer or (self._has_any_answer and _rpc_agent() is None):
            return
        if self in _unasked and _unasked[0] is not self:
            return  # of several open runs, the first one of each rank goes first
        is_asked = False
        if self._is_asking:
            return
        self._is_asking = True
        try:
            found = self._find_group()
            if found is not None:
                self._answered.clear()
                # safeguard: agreement-in-own-thread
                is_asked = start_thread(self._exchange_in_thread, *found, candidate, name="chiplog-agreement")
        except unless_interrupt(AttributeError, RuntimeError, ValueError):
            pass  # another thread is destroying the group: the next poll retries
        finally:
            if not is_asked:
                self._is_asking = False

    def close(self) -> None:
        """Let the next run of this process start its exchange: this one has its number, or has finished."""
        if self in _unasked:
            _unasked.remove(self)

    def take_answer(self, wait_s: float = 0.0) -> Agreement | None:
        """Return a new answer, None if there is none. wait_s: how long to wait for an exchange in progress."""
        if wait_s and self._is_asking:
            self._answered.wait(wait_s)
        answer = self._agreement
        if answer == self._delivered:
            return None
        self._delivered = answer
        return answer

    def with_group_rank(self, identity: Identity, label_given: bool) -> Identity:
        """Return the identity with its future rank and label, while the exchange for the run ID is in progress."""
        try:
            if identity.needs_agreement and _group() is not None and _rpc_agent() is None:
                distributed = sys.modules["torch.distributed"]
                rank, world_size = distributed.get_rank(), distributed.get_world_size()
                return with_group(identity, rank, world_size, identity.run_id, label_given=label_given)
        except (AttributeError, RuntimeError, ValueError):
            pass  # another thread is destroying the group
        return identity

    @property
    def expects_group(self) -> bool:
        """True if a group or RPC may appear soon. The sender then polls often: one that has ended leaves no trace."""
        may_come = not self._has_rpc_answer and "torch.distributed" in sys.modules
        return may_come and time.monotonic() < self._expected_until

    @property
    def _has_any_answer(self) -> bool:
        return self._has_group_answer or self._has_rpc_answer

    def _find_group(self) -> tuple[Any, int, int, str | None] | None:
        agent = None if self._has_rpc_answer else _rpc_agent()
        if agent is not None:
            own = agent.get_worker_info()
            return agent.store, own.id, len(agent.get_worker_infos()), own.name
        if self._has_any_answer or _group() is None:
            return None
        distributed = sys.modules["torch.distributed"]
        store = distributed.distributed_c10d._get_default_store()
        return store, distributed.get_rank(), distributed.get_world_size(), None

    def _exchange_in_thread(self, store: Any, rank: int, world_size: int, name: str | None, candidate: str) -> None:
        """Retry until there is an answer. Without one use the own proposal: rank and world size are still useful."""
        global _agreed
        if not self._number:
            _agreed += 1
            self._number = _agreed
            self.close()
        offer = (PROPOSAL_FIRM if self._is_settled else _NEW) + candidate
        clone, word = None, candidate
        backoff = Backoff(_PAUSE_S, float("inf"))
        for _ in range(_TRIES):
            try:
                clone = store.clone()
                clone.set_timeout(timedelta(seconds=_STORE_WAIT_S))
                word = self._compare_and_set(clone, offer)
                break
            except (RuntimeError, AttributeError, ValueError, TypeError):
                if is_exiting.wait(backoff.next_s()):
                    break
        self._agreement = Agreement(word, rank, world_size, name)
        self._has_rpc_answer, self._has_group_answer = name is not None, True
        self._is_settled = True  # processes that RPC adds follow the group
        self._is_asking = False
        self._answered.set()
        for pause_s in _POLL_INTERVAL_S if self._retries_for_firm and clone is not None else ():
            # safeguard: firm-run-id-not-awaited-at-exit
            if is_exiting.wait(pause_s) or (self._has_rpc_answer and name is None):
                return
            try:
                self._agreement = Agreement(self._compare_and_set(clone, offer), rank, world_size, name)
            except (RuntimeError, ValueError):
                return  # the group's store is closed: no firmer proposal can come

    def _compare_and_set(self, clone: Any, offer: str) -> str:
        key = f"{_KEY}/{self._number}"
        word = _text(clone.compare_set(key, "", offer))
        if offer.startswith(PROPOSAL_FIRM) and word.startswith(_NEW):  # safeguard: firm-run-id-wins
            word = _text(clone.compare_set(key, word, offer))
        return (word or offer).removeprefix(PROPOSAL_FIRM).removeprefix(_NEW)


def _text(word: Any) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)


def _group() -> Any:
    """Return the default process group of this process, not one inherited by fork."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        group = distributed.distributed_c10d._get_default_group()
    except (AttributeError, RuntimeError, ValueError):
        return None  # another thread is importing torch, or destroying the group
    return None if group is _inherited[0] else group


def is_in_group() -> bool:
    """Return True if this process is a member of a process group."""
    return _group() is not None


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
    """Remember the group that a forked child inherits: to torch the child looks like that rank."""
    global _agreed, _inherited
    _agreed, _inherited = 0, (None, None)
    _unasked.clear()
    _inherited = _group(), _rpc_agent()


os.register_at_fork(after_in_child=_after_fork)
