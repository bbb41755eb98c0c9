"""What a run reports beside values: alerts, records of logging, and failures, each with its limit."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from chiplog.recording.ends.failures import failure_detail, failure_reason
from chiplog.recording.log.alerts import ALERT_INTERVAL_S, LEVELS, AlertLimit, parse_alert
from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.text import clean_utf8
from chiplog_schemas.model.events import EventKind


class Emit(Protocol):
    """Append an event of this kind."""

    def __call__(self, kind: EventKind, *fields: Any, urgent: bool = False) -> None: ...


class RunNotices:
    """The notices of one run.

    report_fault: called for a bad argument. report_error: called with the place of an exception inside of chiplog.
    is_finished: whether the run has finished; failures are then left out.
    """

    def __init__(
        self,
        emit: Emit,
        report_fault: Callable[[Diagnostic], None],
        report_error: Callable[[str, Exception], None],
        is_finished: Callable[[], bool],
    ) -> None:
        self._emit = emit
        self._report_fault = report_fault
        self._report_error = report_error
        self._is_finished = is_finished
        self.begin_limits()

    def begin_limits(self) -> None:
        """Count alerts and records of logging from zero. Errors have a share that warnings cannot use up."""
        self._alerts = AlertLimit()
        self._record_limits = {level: AlertLimit() for level in LEVELS}

    def alert(self, title: str, text: str, level: str) -> None:
        """Emit an alert, unless there were too many of its title, or of all."""
        title, level = parse_alert(title, level, self._report_fault)
        if self._alerts.allow(title, time.monotonic()):
            self._emit(EventKind.NOTICE, "alert", level, title, {"text": clean_utf8(str(text))})

    def emit(self, notice: str, message: str, detail: Mapping[str, Any], level: str = "error") -> None:
        """Emit a notice at once, unless the run has finished. Never raises."""
        try:
            if not self._is_finished():
                self._emit(EventKind.NOTICE, notice, level, clean_utf8(message), dict(detail), urgent=True)
        except Exception as error:
            self._report_error(notice, error)

    def note_thread(self, name: str, error: BaseException) -> None:
        """Emit a notice of an exception that ended a thread. The process and the run continue."""
        if self._alerts.allow(f"thread {name}", time.monotonic()):
            self.emit("thread_failed", f"thread {clean_utf8(name)}: {failure_reason(error)}", failure_detail(error))

    def emit_record(
        self, kind: str, level: str, template: str, describe: Callable[[], tuple[str, dict[str, Any]]]
    ) -> None:
        """Emit a record of logging or of warnings, unless there were too many of its template, or of its level.

        describe: returns message and body.
        """
        if self._record_limits[level].allow(template, time.monotonic()):
            message, body = describe()
            self._emit(EventKind.NOTICE, kind, level, message, body)

    def emit_suppressed(self, now: float | None) -> None:
        """Emit how many alerts and records of logging were left out."""
        many = f"more than one in {ALERT_INTERVAL_S:g} s of one"
        if (suppressed := self._alerts.take_suppressed(now)) is not None:
            count, titles = suppressed
            message = f"{count} alerts suppressed: {many} title, or too many"
            self._emit(EventKind.NOTICE, "alerts_suppressed", "warning", message, {"count": count, "titles": titles})
        for level, limit in self._record_limits.items():
            if (suppressed := limit.take_suppressed(now)) is not None:
                count, messages = suppressed
                message = f"{count} records of logging suppressed: {many} message, or too many"
                self._emit(EventKind.NOTICE, "logs_suppressed", level, message, {"count": count, "messages": messages})
