"""What the parts of the applier share, pure: the state, the growing batch, and the time of the current records."""

from collections.abc import Iterable
from typing import Any

from chiplog_collector.index.apply.state import Producer, Run, State
from chiplog_collector.index.apply.validation import clean, json_text
from chiplog_collector.index.apply.write_batch import Batch
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
        """Return the entry of a producer, creating it on first sight. Never call it for a deleted one."""
        found = self.state.producers.get(uuid)
        if found is None:
            number = self.state.last_producer + 1
            found = self.state.add_producer(Producer(number, uuid))
            self.batch.producers.add(number)
        return found

    def delete(self, producers: Iterable[Producer]) -> None:
        """Delete producers, their consoles, all rows of both, and the runs that have no other members."""
        runs = set()
        waiting = list(producers)
        while waiting:
            producer = waiting.pop()
            if producer.uuid in self.state.deleted:
                continue
            # safeguard: console-deleted-with-owner
            waiting += [
                self.state.producers_by_number[n] for n in sorted(self.state.consoles.get(producer.producer, ()))
            ]
            self.state.remove_producer(producer)
            self.state.deleted.add(producer.uuid)
            self.batch.restored.discard(producer.uuid)
            self.batch.deleted[producer.producer] = producer.uuid
            run = None if producer.run is None else self.state.runs_by_number.get(producer.run)
            self.note_deletion(producer.uuid, "" if run is None else run.run_id)
            runs.add(producer.run)
        found = map(self.state.runs_by_number.get, sorted(run for run in runs if run is not None))
        self._delete_runs([run for run in found if run is not None and not self.state.members.get(run.run)])

    def _delete_runs(self, runs: list[Run]) -> None:
        """Delete runs without members, their other names, and which launches required them."""
        if not runs:
            return
        aliases: dict[int, list[Run]] = {}
        for run in self.state.runs.values():
            if run.alias_of is not None:
                aliases.setdefault(run.alias_of, []).append(run)
        while runs:
            run = runs.pop()
            self.state.remove_run(run)
            self.batch.deleted_runs.add(run.run)
            self.note_deletion(b"", run.run_id)
            for alias in aliases.get(run.run, ()):
                if self.state.members.get(alias.run):
                    alias.alias_of = None
                    self.batch.runs.add(alias.run)
                elif alias.run not in self.batch.deleted_runs:
                    runs.append(alias)
        gone = self.batch.deleted_runs
        self.state.demands = {asked: run for asked, run in self.state.demands.items() if run not in gone}

    def note_deletion(self, uuid: bytes, run_id: str, samples_until: int = 0, *, is_request: bool = False) -> None:
        """Add a row to `deletions`. A run may have two in a flush."""
        self.batch.add("deletions", (uuid, run_id, samples_until, self.received_us, is_request))

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
