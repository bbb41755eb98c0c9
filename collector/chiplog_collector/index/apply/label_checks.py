"""Checks of a run's labels, pure: two processes that use one label at a time, and ranks without a primary.

The checks decide and drop nothing: they add a row to `events`, once for each label or run.
"""

import numpy as np
from numpy.typing import NDArray

from chiplog_collector.index.apply.apply_context import ApplyContext
from chiplog_collector.index.apply.state import Producer, Run
from chiplog_schemas.model.block_decoder import Block

# How much later than the start of the next process an event must be, to prove that both ran at the same time. On one
# node a clock may be stepped between a death and the next start; clocks of two nodes differ.
_SAME_CLOCK_US, _CLOCKS_APART_US = 1_000_000, 60_000_000
REPORTED_MAX = 1_000  # of one run; a peer can invent labels


class LabelChecks:
    """Runs the checks on the labels of a State."""

    def __init__(self, context: ApplyContext) -> None:
        self._context = context
        self._state = context.state

    def check_block(self, block: Block, numbers: NDArray[np.int32]) -> None:
        """Check the producers of an applied block. numbers: their integers, 0 for a refused one."""
        for index, number in enumerate(numbers.tolist()):
            producer = self._state.producers_by_number.get(number)
            if producer is not None and producer.run is not None and producer.label is not None:
                peers = self._state.by_label.get((producer.run, producer.label), [])
                if len(peers) > 1:
                    self._compare(producer, peers, block, index)

    def _compare(self, producer: Producer, peers: list[Producer], block: Block, index: int) -> None:
        """Report a younger process under the same label, if this one logged after the younger one had started."""
        started = producer.started_at
        if started is None:
            return
        younger = [peer for peer in peers if peer is not producer and (peer.started_at or started) > started]
        run = self._state.runs_by_number[producer.run or 0]
        if not younger or self._was_emitted(run, f"label_twice:{producer.label}"):
            return
        seq, ts = _last_of(block, index)
        for peer in younger:
            apart = _SAME_CLOCK_US if peer.node == producer.node else _CLOCKS_APART_US
            if (peer.started_at or 0) + apart < ts:
                self._emit_label_twice(run, producer, peer, seq, ts)
                return

    def _emit_label_twice(self, run: Run, older: Producer, younger: Producer, seq: int, ts: int) -> None:
        message = (
            f"label {older.label} is used by two processes at a time: {_named(older)} and {_named(younger)}; both are "
            f"kept, as attempts {older.attempt} and {younger.attempt}; give each its own by label= or CHIPLOG_LABEL"
        )
        both = [{"pid": one.pid, "node": one.node, "attempt": one.attempt} for one in (older, younger)]
        self._context.emit_event(older, seq, ts, "label_twice", "warning", message, {"processes": both})
        self._report(run, f"label_twice:{older.label}")

    def check_run_end(self, producer: Producer, seq: int, ts: int) -> None:
        """Report, once all labels of a run have ended, that it has a rank 0 and that no label claimed to be primary."""
        run = self._state.runs_by_number.get(producer.run or 0)
        if run is None or run.primary_label is not None or self._was_emitted(run, "no_primary"):
            return
        members = self._state.members[run.run].values()
        if all(peer.state is not None for peer in members) and any(peer.rank == 0 for peer in members):
            message = (
                f"no label of run {run.run_id} is its primary: the run has no config, and its state is the worst "
                "of all labels; leave primary= and CHIPLOG_PRIMARY to rank 0, or set them on one rank"
            )
            self._context.emit_event(producer, seq, ts, "no_primary", "warning", message, {})
            self._report(run, "no_primary")

    def _was_emitted(self, run: Run, what: str) -> bool:
        return what in run.told or len(run.told) >= REPORTED_MAX

    def _report(self, run: Run, what: str) -> None:
        run.told.append(what)
        self._context.batch.runs.add(run.run)


def _named(producer: Producer) -> str:
    return f"{producer.pid} on {producer.node}"


def _last_of(block: Block, index: int) -> tuple[int, int]:
    """Return (seq, ts) of a producer's latest event in a block."""
    latest = (0, 0)
    for group in block.groups:
        rows = np.flatnonzero(group.producer == index)
        if rows.size:
            at = rows[np.argmax(group.ts[rows])]
            if int(group.ts[at]) > latest[1]:
                latest = (int(group.seq[at]), int(group.ts[at]))
    return latest
