"""End a run in this process: build its last event, and run the steps before it so that no failure skips the next.

A process may end in a way that no hook sees: `raise SystemExit(4)`, or an exception whose hook was replaced. Then the
run has no last event. Its journal stays, marked LEFT, and its lock is held until the process exits. The agent that
adopts it emits how the run ended, from the exit status.
"""

from collections.abc import Callable, Iterable

from chiplog.journal.journal import Journal
from chiplog.journal.sender import SenderThread
from chiplog.safety.diagnostics import Diagnostics
from chiplog.safety.text import clean_utf8
from chiplog_schemas.clock import now_us
from chiplog_schemas.interrupts import unless_interrupt
from chiplog_schemas.model.codes import EndCause
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.process.exit_status import UNKNOWN_EXIT

_CODE_MAX = (1 << 31) - 1
_CODE_OVER = 255  # the system's exit code for a sys.exit() with a number that is far too large


class ExitStatus:
    """How the process ends, as far as it is known: finished, unless a failure is set."""

    def __init__(self) -> None:
        self._fields: dict[str, object] = {"state": "finished", "exit_code": 0}
        self._failed_us: int | None = None  # time of the failure, which may be long before the process ends
        self.is_open = False  # only the exit status of the process shows how it ended

    @property
    def is_normal(self) -> bool:
        """Return True if nothing but a normal end is known."""
        return self._fields["state"] == "finished"

    @property
    def is_failed(self) -> bool:
        """Return True if a failure was set."""
        return self._failed_us is not None

    def set_failed(self, reason: str, exit_code: object, cause: EndCause) -> None:
        """Set the failure that ends this process."""
        code = _to_int32(exit_code)
        self._fields = {"state": "failed", "exit_code": code, "reason": clean_utf8(reason), "cause": cause.value}
        self._failed_us = now_us()

    def set_killed(self, reason: str, exit_signal: int) -> None:
        """Set the signal that ended the command of a launcher."""
        cause = EndCause.EXIT_STATUS.value
        self._fields = {"state": "crashed", "exit_signal": exit_signal, "reason": clean_utf8(reason), "cause": cause}
        self._failed_us = now_us()

    def set_exit_code(self, exit_code: object) -> None:
        """Set the exit code given to finish(), unless a failure is set."""
        if exit_code and not self.is_failed:
            self.set_failed(f"finish(exit_code={exit_code})", exit_code, EndCause.EXIT_STATUS)

    def leave_open(self, *, is_adopted: bool) -> None:
        """Set that the process ends in an unknown way, unless a failure is set.

        is_adopted: an agent of this node adopts the journal, and reads the exit status.
        """
        if not self.is_failed:
            self.is_open = is_adopted
            self._fields = {"state": "crashed", "reason": UNKNOWN_EXIT, "cause": EndCause.UNSEEN.value}

    def event(self) -> bytes | None:
        """Return the last event; None if the agent emits how the run ended."""
        if self.is_open:
            return None
        return encode(EventKind.STATE, self._failed_us or now_us(), self._fields)


def run_all(steps: Iterable[Callable[[], object]], report_fault: Callable[[Exception], object]) -> None:
    """Run the steps in order. Report one that fails, and continue with the next."""
    for step in steps:
        try:
            step()
        except unless_interrupt(Exception) as error:
            try:
                report_fault(error)
            except unless_interrupt(Exception):  # a logging handler that raises
                continue


def close(
    journal: Journal, sender: SenderThread | None, diagnostics: Diagnostics, wait_s: float, *, is_open: bool = False
) -> None:
    """Close a sealed journal, even if Ctrl-C ends the wait for the agent. is_open: as in `ExitStatus`."""
    delivered = False
    try:
        if is_open:
            journal.mark_left()
        else:
            journal.mark_finished()
        delivered = sender.stop(wait_s) if sender is not None else False
        diagnostics.warn_undelivered(journal.unpersisted_events, journal.last_disk_error)
    finally:
        journal.close(remove=delivered and not is_open, keep_lock=is_open)  # safeguard: lock-held-until-exit


def _to_int32(exit_code: object) -> int:
    """Return an exit code as a 32-bit int. Anything that is not a number is a failure: 1."""
    try:
        code = int(exit_code)  # type: ignore[call-overload]  # any object
    except unless_interrupt(Exception):  # a foreign type may raise anything
        return 1
    return int(code) if abs(code) <= _CODE_MAX else _CODE_OVER
