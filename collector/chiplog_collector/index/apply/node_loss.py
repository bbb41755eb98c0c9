"""What happens to the labels of a lost agent, pure: no other process could report how they end.

When the receiver has received nothing from an agent for too long, the agent's running labels become `crashed`. That is
a conclusion and not a fact, and any report about a label itself replaces it. When the agent reconnects, there was only
an outage: its labels are running again, unless its machine was rebooted in between, which no process survives. The same
holds for labels whose events another agent delivers: from then on that agent reports their end.
"""

from collections.abc import Iterable
from typing import Any

from chiplog_collector.index.apply.apply_context import ApplyContext
from chiplog_collector.index.apply.state import Producer
from chiplog_collector.index.apply.validation import clean, text_of, uuid_of
from chiplog_schemas.codec import CodecError, unpack
from chiplog_schemas.limits import HEARTBEAT_INTERVAL_S
from chiplog_schemas.storage.record import Record

_HEARTBEAT_US = int(HEARTBEAT_INTERVAL_S * 1e6)
_SILENT_US_MAX = 1 << 53  # a receiver cannot have measured more
_LABELS_NAMED_MAX = 20  # in one row of `events`


class NodeLossTracker:
    """Applies PRESENCE records to the labels of a State."""

    def __init__(self, context: ApplyContext) -> None:
        self._context = context
        self._state = context.state

    def apply(self, record: Record) -> None:
        """Apply one record. Raises ValueError or TypeError if it is invalid."""
        try:
            sender, is_here, silent_us, node, boot, *_ = unpack(record.payload)
        except CodecError as error:
            raise ValueError(str(error)) from error
        if type(is_here) is not bool or type(silent_us) is not int or not 0 <= silent_us < _SILENT_US_MAX:
            raise TypeError("a presence is a boolean and a number of µs without a message")
        numbers = sorted(self._state.by_sender.get(uuid_of(sender), ()))  # in log order, also after a start
        mine = [p for p in map(self._state.producers_by_number.__getitem__, numbers) if p.role == "rank"]
        if is_here:
            self._mark_back(mine, record.number, clean(text_of(node)), clean(text_of(boot)))
        else:
            running = [producer for producer in mine if producer.state is None]
            self._mark_lost(running, record.number, silent_us, clean(text_of(node)))

    def on_new_sender(self, producer: Producer, sender: bytes, new: list[tuple[int, int]]) -> None:
        """Note that another agent delivers a producer's events: a producer that was presumed dead is running again."""
        self._state.set_sender(producer, sender)
        self._context.batch.producers.add(producer.producer)
        if producer.is_presumed:  # safeguard: redelivered-label-runs-again
            _mark_running(producer)
            name = producer.node or "?"
            message = f"node {name} is back: another agent delivers events of {producer.label or 'a label'}"
            body = {"node": name, "labels": 1}
            self._context.emit_event(producer, new[0][0], self._context.received_us, "node_back", "info", message, body)

    def _mark_lost(self, running: list[Producer], number: int, silent_us: int, node: str) -> None:
        for run in _by_run(running):
            name = run[0].node or node or "?"
            seconds = f"{silent_us / 1e6:.0f} s"
            for producer in run:
                producer.state, producer.cause, producer.is_presumed = "crashed", None, True
                producer.reason = f"node {producer.node or name} is lost: its agent sent nothing for {seconds}"
                # It died between its last message and the next heartbeat, which did not arrive.
                producer.ended_at = self._context.received_us - silent_us + _HEARTBEAT_US
                producer.late_us = _HEARTBEAT_US
                self._context.batch.producers.add(producer.producer)
            message = f"node {name} is lost: its agent sent nothing for {seconds}; {_named(run)} may have ended"
            body: dict[str, Any] = {"node": name, "silent_s": silent_us / 1e6, "labels": len(run)}
            self._context.emit_event(run[0], number, self._context.received_us, "node_lost", "error", message, body)

    def _mark_back(self, mine: list[Producer], number: int, node: str, boot: str) -> None:
        for run in _by_run([producer for producer in mine if producer.is_presumed]):
            name = run[0].node or node or "?"
            alive = [producer for producer in run if not (boot and producer.boot and producer.boot != boot)]
            for producer in alive:
                _mark_running(producer)
                self._context.batch.producers.add(producer.producer)
            gone = "" if len(alive) == len(run) else "; its machine was rebooted, and its ranks are gone"
            message = f"node {name} is back: its agent has reconnected{gone}"
            body = {"node": name, "labels": len(alive)}
            self._context.emit_event(run[0], number, self._context.received_us, "node_back", "info", message, body)


def _mark_running(producer: Producer) -> None:
    producer.state = producer.reason = producer.cause = producer.ended_at = None  # safeguard: reconnected-label-runs
    producer.late_us, producer.is_presumed = 0, False


def _by_run(producers: Iterable[Producer]) -> list[list[Producer]]:
    runs: dict[int | None, list[Producer]] = {}
    for producer in producers:
        runs.setdefault(producer.run, []).append(producer)
    return list(runs.values())


def _named(producers: list[Producer]) -> str:
    names = [producer.label or "a label" for producer in producers]
    more = len(names) - _LABELS_NAMED_MAX
    return ", ".join(names[:_LABELS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
