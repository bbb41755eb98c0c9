"""What the parts of the applier share, pure: the state, the growing batch, and the time of the current records."""

from typing import Any

from chiplog_collector.index.state import Producer, State
from chiplog_collector.index.validation import clean, json_text
from chiplog_collector.index.write_batch import Batch
from chiplog_schemas.limits import KEY_BYTES_MAX
from chiplog_schemas.model.codes import EndCause

REASON_CHARS_MAX = 500
QUARANTINE_BYTES_MAX = 65_536
_NAME_CHARS_MAX = 4 * KEY_BYTES_MAX  # of a metric, kept in memory forever; each byte may be shown as \xNN
_LEVELS = ("debug", "info", "warning", "error")


class ApplyContext:
    """The state and the batch of an applier, and what each of its parts enters into them.

    Attributes:
        state: the known producers, runs and names, and which events have been applied.
        batch: what the next transaction writes.
        received_us: when the collector received the current records, in microseconds since 1970.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.batch = Batch()
        self.received_us = 0

    def producer(self, uuid: bytes) -> Producer:
        """Return the entry of a producer, creating it on first sight."""
        found = self.state.producers.get(uuid)
        if found is None:
            number = len(self.state.producers) + 1
            found = self.state.add_producer(Producer(number, uuid))
            self.batch.producers.add(number)
        return found

    def name(self, name: str) -> int:
        """Return the integer of a metric name, phase, system metric or device."""
        name = name[:_NAME_CHARS_MAX]  # safeguard: metric-name-bounded
        number = self.state.names.get(name)
        if number is None:
            number = self.state.names[name] = len(self.state.names) + 1
            self.batch.names.append((number, name))
        return number

    def emit_event(
        self,
        producer: Producer | None,
        seq: int,
        ts: int,
        kind: str,
        level: str,
        message: str,
        body: Any,
        *,
        cause: EndCause | None = None,
        outcome: str | None = None,
    ) -> None:
        """Add a row to `events`.

        cause: of a `traceback`. outcome: the predicate of the message, where its subject is not known yet.
        """
        level = level if level in _LEVELS else "info"
        text = json_text(body) if isinstance(body, dict) else "{}"
        number = producer.producer if producer is not None else None
        codes = (None if cause is None else cause.value, None if outcome is None else clean(outcome))
        self.batch.add("events", (number, seq, ts, kind[:128], level, clean(message), text, *codes))
