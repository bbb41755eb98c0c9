"""What goes wrong in training code's calls: counted by kind, said aloud once, never raised."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from chiplog.safety.interrupts import is_interrupt
from chiplog.values.metrics import Diagnostic, clean_utf8
from chiplog_schemas.model.events import EventKind

_WARNINGS_PER_KIND = 10  # said aloud and shown in events, so that each kind is seen; all are counted
_NOT_FINITE = "not_finite"  # the one kind of bad value that is recorded all the same
_REPORT_INTERVAL_S = 60.0  # between two notices of the counts, while they change
_log = logging.getLogger("chiplog")


class Diagnostics:
    """The complaints of one run in one process. `say` appends an event: the first of each is a row in `events`."""

    def __init__(self, say: Callable[..., None]) -> None:
        self.counts: Counter[str] = Counter()
        self._say = say
        self._said: set[tuple[str, str]] = set()
        self._n_said: Counter[str] = Counter()  # by kind
        self._reported: dict[str, int] = {}
        self._report_at: float | None = None

    def report(self, bad: Diagnostic) -> None:
        """Count a value or key that cannot be logged."""
        self.counts[bad.kind] += 1
        if self.warn_once((bad.kind, bad.key), bad.message, bad.level):
            self._say(EventKind.NOTICE, "bad_value", bad.level, bad.message, {"kind": bad.kind, "key": bad.key})

    def report_too_many_keys(self, key: str, keys_max: int) -> None:
        """Count a key beyond the limit. One word for all of them: in the worst case there are millions."""
        if self.counts["too_many_keys"]:
            self.counts["too_many_keys"] += 1
        else:
            message = f"key {key!r:.60} is the one beyond {keys_max} of this run; put what varies into the step"
            self.report(Diagnostic("too_many_keys", key[:60], message))

    def emit_counts(self, now: float | None = None) -> None:
        """Say the counts as an event if they changed: at the end, or with `now` in seconds once in an interval."""
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
            self._say(EventKind.NOTICE, "nonfinite_values", "warning", "NaN and infinite values; they are kept", body)
        if counts != before:
            self._say(EventKind.NOTICE, "bad_values", "warning", "values that could not be logged", counts)

    def report_nonfinite(self, data: Mapping[str, Any], step: int) -> None:
        """Count NaN and infinities. They are kept, and the first of each key is worth a word."""
        for key, value in data.items():
            if not math.isfinite(value):
                self.report(
                    Diagnostic(_NOT_FINITE, key, f"{key!r:.80} became {float(value)} at step {step}; it is kept")
                )

    def warn_once(self, what: tuple[str, str], message: str, level: str = "warning") -> bool:
        """Say something aloud unless it, or enough of its kind, was said before. Tell whether it was said now."""
        kind = what[0]
        if what in self._said or self._n_said[kind] >= _WARNINGS_PER_KIND:
            return False
        self._said.add(what)
        self._n_said[kind] += 1
        _log.log(logging.ERROR if level == "error" else logging.WARNING, "chiplog: %s", message)
        return True

    def warn_undelivered(self, only_in_memory: int, disk_error: OSError | None) -> None:
        """Say at the end that events end with this process: in no file, and taken by no agent."""
        if only_in_memory:
            why = disk_error or "there is no journal on disk"
            self.warn_once(("end", ""), f"{only_in_memory} events reached no agent and end with this process: {why}")

    def report_internal_error(self, where: str, error: Exception) -> None:
        """Note a fault of chiplog itself. A signal handler's exception is none: it is raised again."""
        if is_interrupt(error):
            raise error
        self.counts["internal_error"] += 1
        self.warn_once(("internal_error", where), f"{where}() failed inside: {type(error).__name__} {error}")


def error_text(error: BaseException) -> str:
    """Return what an exception says; its type where even that raises."""
    try:
        return clean_utf8(str(error))[:1000]
    except Exception as fault:
        if is_interrupt(fault):
            raise
        return f"<{type(error).__name__}>"
