"""Diagnostics of the training code's calls: counted by kind, logged once, never raised."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from chiplog.safety.text import clean_utf8
from chiplog_schemas.interrupts import raise_interrupt, unless_interrupt
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.once import OnceLogger

NOT_RECORDED = "not_recorded"  # the kind of a foreign name whose data is lost
_WARNINGS_PER_KIND = 10  # logged and emitted, so that each kind is visible; all are counted
_WARNINGS_MAX = {NOT_RECORDED: 1_000}  # each is another loss; there are fewer names
_INTERNAL_ERROR = "internal_error"
_NOT_FINITE = "not_finite"  # the only kind of bad value that is recorded
_LINE_CHARS = 300  # of an exception in a message: the reason is at its beginning
_REPORT_INTERVAL_S = 60.0  # between two notices of the counts, while they change
_log = logging.getLogger("chiplog")


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A value or key that cannot be logged. `kind` is the code for counts, `message` one line with the remedy."""

    kind: str
    key: str
    message: str
    level: str = "warning"  # or error: the run is not recorded as requested


class Diagnostics:
    """The diagnostics of one run in one process. `emit` appends an event: the first of each is a row in `events`."""

    def __init__(self, emit: Callable[..., None]) -> None:
        self._emit = emit
        self.begin_in_child()

    def begin_in_child(self) -> None:
        """Begin with no counts, as the run of a forked child does."""
        self.counts: Counter[str] = Counter()
        self._once: dict[str, OnceLogger] = {}  # by kind
        self._reported: dict[str, int] = {}
        self._report_at: float | None = None

    def report(self, bad: Diagnostic) -> None:
        """Count a value or key that cannot be logged."""
        self.counts[bad.kind] += 1
        if self.warn_once((bad.kind, bad.key), bad.message, bad.level):
            self._emit(EventKind.NOTICE, "bad_value", bad.level, bad.message, {"kind": bad.kind, "key": bad.key})

    def report_too_many_keys(self, key: str, keys_max: int) -> None:
        """Count a key beyond the limit, with one message for all of them: there may be millions."""
        if self.counts["too_many_keys"]:
            self.counts["too_many_keys"] += 1
        else:
            message = f"key {key!r:.60} exceeds the limit of {keys_max} keys of this run; use step= for what varies"
            self.report(Diagnostic("too_many_keys", key[:60], message))

    def emit_counts(self, now: float | None = None) -> None:
        """Emit the counts if they changed: at the end, or with `now` in seconds once per interval."""
        if now is not None:
            if self._report_at is None:
                self._report_at = now + _REPORT_INTERVAL_S
            if now < self._report_at:
                return
            self._report_at = now + _REPORT_INTERVAL_S
        counts = dict(self.counts)
        before, self._reported = self._reported, dict(counts)
        n_kept = counts.pop(_NOT_FINITE, 0)
        if n_kept != before.pop(_NOT_FINITE, 0):
            body = {_NOT_FINITE: n_kept}
            self._emit(EventKind.NOTICE, "nonfinite_values", "warning", "NaN and infinite values; they are kept", body)
        if counts != before:
            self._emit(EventKind.NOTICE, "bad_values", "warning", "values that could not be logged", counts)

    def totals(self) -> dict[str, int]:
        """Return how many values were rejected, and how many internal errors there were."""
        counts = dict(self.counts)
        errors = counts.pop(_INTERNAL_ERROR, 0)
        counts.pop(_NOT_FINITE, 0)
        return {"rejected": sum(counts.values()), "errors": errors}

    def report_nonfinite(self, data: Mapping[str, Any], step: int) -> None:
        """Count NaN and infinities, which are recorded, and report the first one of each key."""
        for key, value in data.items():
            if not math.isfinite(value):
                self.report(
                    Diagnostic(_NOT_FINITE, key, f"{key!r:.80} became {float(value)} at step {step}; it is kept")
                )

    def warn_once(self, what: tuple[str, str], message: str, level: str = "warning") -> bool:
        """Log a message unless it, or enough of its kind, was logged before. Return True if it was logged now."""
        number = logging.ERROR if level == "error" else logging.WARNING
        kind = what[0]
        if kind not in self._once:
            # safeguard: each-lost-name-reported
            self._once.setdefault(kind, OnceLogger(_log.log, _WARNINGS_MAX.get(kind, _WARNINGS_PER_KIND)))
        return self._once[kind].log(what, number, "chiplog: %s", message)

    def warn_undelivered(self, only_in_memory: int, disk_error: OSError | None) -> None:
        """Warn at the end that events are lost with this process: they are in no file, and no agent has them."""
        if only_in_memory:
            why = disk_error or "there is no journal on disk"
            self.warn_once(("end", ""), f"{only_in_memory} events reached no agent and end with this process: {why}")

    def report_internal_error(self, where: str, error: Exception) -> None:
        """Report an internal error of chiplog. An exception of a signal handler is raised again."""
        raise_interrupt(error)
        self.counts[_INTERNAL_ERROR] += 1
        self.warn_once((_INTERNAL_ERROR, where), f"{where}() failed inside: {error_line(error)}")


def error_line(error: BaseException) -> str:
    """Return the type and the text of an exception as one line, also of a library that puts its stack into the text."""
    return " ".join(f"{type(error).__name__} {error_text(error)}".split())[:_LINE_CHARS]


def error_text(error: BaseException) -> str:
    """Return the text of an exception; its type if str() raises."""
    try:
        return clean_utf8(str(error))[:1000]
    except unless_interrupt(Exception):
        return f"<{type(error).__name__}>"
