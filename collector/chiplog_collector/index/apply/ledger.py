"""The ledger, pure: which seqs of each producer are stored, and which are lost. It keeps exactly-once."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from chiplog_collector.index.apply.apply_context import ApplyContext
from chiplog_collector.index.apply.node_loss import NodeLossTracker
from chiplog_collector.index.apply.state import Producer
from chiplog_schemas.limits import SEQ_END
from chiplog_schemas.model.block_decoder import Block, Group

CLOCK_US_MAX = 1 << 53  # between two clocks: 285 years
_MISSING = "missing after its label ended, and records were lost: see events of kind gap and quarantined"

Mask = NDArray[np.bool_] | None  # None: all rows


class Ledger:
    """The seqs that a State has, and those that can never arrive."""

    def __init__(self, context: ApplyContext, node_loss: NodeLossTracker) -> None:
        self._context = context
        self._state = context.state
        self._node_loss = node_loss

    def admit(
        self, block: Block, refused: frozenset[int], sender: bytes | None
    ) -> tuple[Callable[[Group], Mask] | None, NDArray[np.int32]]:
        """Enter the block's seqs into the ledger; return the mask of the new rows, and the producers' integers.

        refused: indices of the producers to leave out. sender: of the block's record, if its receipt names it.
        """
        batch, received_us = self._context.batch, self._context.received_us
        seen_us = 0 if block.is_imported else received_us  # an IMPORTED event has the time
        numbers = np.zeros(len(block.producers), dtype=np.int32)
        fresh: dict[int, list[tuple[int, int]]] = {}
        partial = bool(refused)
        for index, (uuid, ranges) in enumerate(block.producers):
            if index in refused:
                continue  # safeguard: refused-stays-out-of-ledger
            producer = self._context.producer(uuid)
            delay_us = received_us - block.created_ts
            is_nearest = producer.clock_us is None or delay_us < producer.clock_us
            # safeguard: import-shows-no-clock
            if not block.is_imported and is_nearest and abs(delay_us) < CLOCK_US_MAX:
                producer.clock_us = delay_us
                batch.producers.add(producer.producer)
            numbers[index] = producer.producer
            have = self._state.have[producer.producer]
            new: list[tuple[int, int]] = []
            for first, last in ranges:
                new += have.add(first, last)  # safeguard: stored-once
            if new != ranges:
                partial = True
            fresh[index] = new
            for first, last in new:
                batch.intervals.append((producer.producer, first, last, seen_us))
                batch.n_events += last - first + 1
            # safeguard: import-is-no-agent
            is_delivery = not block.is_imported and sender not in (None, producer.sender)
            if is_delivery and sender is not None and (new or not producer.is_presumed):
                self._node_loss.on_new_sender(producer, sender, new)
            if new and self._state.lost.get(producer.producer):
                self._retract_lost(producer, new)
        if not partial:  # safeguard: events-stored-once
            return None, numbers
        return _mask_of(fresh), numbers

    def admit_imported(self, producer: Producer, seq: int, ranges: list[tuple[int, int]], seen_us: int) -> None:
        """Enter seqs of events that an import does not deliver themselves, and when the last event had arrived.

        seq: of the IMPORTED event, which has been entered.
        """
        batch, have = self._context.batch, self._state.have[producer.producer]
        for index in range(len(batch.intervals) - 1, -1, -1):  # its own entry is one of the last
            number, first, last, _ = batch.intervals[index]
            if number == producer.producer and first <= seq <= last:
                batch.intervals[index] = (number, first, last, seen_us)
                break
        for first, last in ranges:
            new = have.add(first, last)
            batch.intervals += [(producer.producer, a, b, seen_us) for a, b in new]
            batch.n_events += sum(b - a + 1 for a, b in new)
            if new and self._state.lost.get(producer.producer):
                self._retract_lost(producer, new)

    def mark_log_damaged(self) -> None:
        """Record that the log lost records.

        The producers of the lost records are unknown, so no seq is waited for any longer.
        """
        if not self._state.damaged:
            self._state.damaged = True
            for producer in self._state.producers.values():
                self.declare_missing(producer)

    def _retract_lost(self, producer: Producer, ranges: list[tuple[int, int]]) -> None:
        lost = self._state.lost[producer.producer]
        for first, last in ranges:
            lost = [(a, b, reason) for x, y, reason in lost for a, b in without_range(x, y, first, last)]
        self._state.lost[producer.producer] = lost
        self._context.batch.losses[producer.producer] = list(lost)
        if not lost:
            message = "all events that were declared lost have arrived"
            self._context.emit_event(producer, 0, self._context.received_us, "found", "info", message, {})

    def declare_lost(self, producer: Producer, first: int, last: int, reason: str) -> int:
        """Enter seqs that can never arrive, except those that have arrived; return how many are missing."""
        if not 0 <= first <= last < SEQ_END:
            return 0
        lost = self._state.lost.setdefault(producer.producer, [])
        ranges = self._state.have[producer.producer].missing(first, last)
        n_missing = sum(b - a + 1 for a, b in ranges)
        for known_first, known_last in [(a, b) for a, b, _ in lost if a <= last and b >= first]:
            ranges = [part for a, b in ranges for part in without_range(a, b, known_first, known_last)]
        lost += [(a, b, reason) for a, b in ranges]
        self._context.batch.losses[producer.producer] = list(lost)
        return n_missing

    def declare_missing(self, producer: Producer) -> None:
        """If records were lost, declare lost what an ended producer lacks. It may still arrive."""
        if self._state.damaged and producer.state is not None and producer.produced:
            have = self._state.have[producer.producer]
            for first, last in have.missing(0, producer.produced - 1):
                self.declare_lost(producer, first, last, _MISSING)  # safeguard: missing-records-settled


def _mask_of(fresh: dict[int, list[tuple[int, int]]]) -> Callable[[Group], Mask]:
    """Return a function that marks the rows of a group whose seqs are in these ranges of their producers."""
    bounds = {index: np.array(ranges, dtype=np.int64) for index, ranges in fresh.items() if ranges}

    def mask_of(group: Group) -> Mask:
        mask = np.zeros(len(group.seq), dtype=np.bool_)
        for index in np.unique(group.producer).tolist():
            if index in bounds:  # ascending, so each row is searched: a hostile block has very many ranges
                rows = group.producer == index
                seqs = group.seq[rows]
                at = np.searchsorted(bounds[index][:, 0], seqs, side="right") - 1
                mask[rows] = (at >= 0) & (seqs <= bounds[index][at, 1])
        return mask

    return mask_of


def without_range(first: int, last: int, cut_first: int, cut_last: int) -> list[tuple[int, int]]:
    """Return [first, last] without [cut_first, cut_last]."""
    parts = []
    if first < cut_first:
        parts.append((first, min(last, cut_first - 1)))
    if last > cut_last:
        parts.append((max(first, cut_last + 1), last))
    return parts
