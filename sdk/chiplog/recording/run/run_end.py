"""The end of one run in this process: what is known of it, and the one call that ends it."""

import threading
import time
from collections.abc import Callable, Iterable

from chiplog.journal.event_sink import NullJournal
from chiplog.recording.ends.exit_status import ExitStatus, run_all
from chiplog.recording.ends.failures import cause_of, exit_status_of, failure_detail
from chiplog.recording.log.loop_calls import LoopCalls
from chiplog.recording.run.group_membership import GroupMembership
from chiplog.recording.run.run_journal import RunJournal
from chiplog.recording.run.run_notices import RunNotices
from chiplog.safety.diagnostics import Diagnostics
from chiplog.settings import RunSettings
from chiplog_schemas.interrupts import is_interrupt
from chiplog_schemas.limits import FINISH_WAIT_S
from chiplog_schemas.model.codes import EndCause


class RunEnd:
    """End a run once, even if a signal handler calls this while it ends.

    steps: returns what runs before the last event, in order, for an exit code. on_refused: called for each event after
    the last one. on_closed: called once no event can follow.
    """

    def __init__(
        self,
        calls: LoopCalls,
        membership: GroupMembership,
        journal: RunJournal,
        notices: RunNotices,
        diagnostics: Diagnostics,
        *,
        steps: Callable[[int], Iterable[Callable[[], object]]],
        on_refused: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._calls = calls
        self._membership = membership
        self._journal = journal
        self._notices = notices
        self._diagnostics = diagnostics
        self._steps = steps
        self._on_refused = on_refused
        self._on_closed = on_closed
        self.status = ExitStatus()
        self.begin_in_child()

    def begin_in_child(self) -> None:
        """Begin as a process that ends by itself: another thread of the parent may be ending the run."""
        self._lock = threading.RLock()  # a signal handler may call finish() during its thread's finish()
        self.before_finish: Callable[[], None] | None = None  # of an integration, which may still log; never raises

    def finish(self, exit_code: int) -> None:
        """End the run; see `Run.finish`."""
        calls = self._calls
        if self.before_finish is not None and not calls._finished:
            self.before_finish()
        with self._lock:
            if calls._finished:
                return
            asked_at = time.monotonic()
            self._membership.wait()
            if calls._finished:  # a signal handler of this thread has finished it
                return
            calls._finished = True
        try:
            self._finish(exit_code, asked_at + FINISH_WAIT_S)
        except BaseException as error:
            if isinstance(error, Exception) and not is_interrupt(error):
                self._diagnostics.report_internal_error("finish", error)
                return
            # Ctrl-C, or a signal handler that exits: a journal that is not sealed is retried at exit.
            calls._finished = isinstance(calls._journal, NullJournal)
            raise

    def _finish(self, exit_code: int, ends_at: float) -> None:
        calls = self._calls
        calls._key_sets = {}  # later calls of log() take the slow path, which warns
        run_all(self._steps(exit_code), lambda error: self._diagnostics.report_internal_error("finish", error))
        try:
            self._journal.close(self.status, ends_at, self._on_refused)
        finally:
            if isinstance(calls._journal, NullJournal):
                self._on_closed()

    def mark_exit(self, error: BaseException) -> None:
        """Set the exception that ends this process, unless a failure is set."""
        code, reason = exit_status_of(error)
        if code and not self.status.is_failed and not self._calls._finished:
            self.status.set_failed(reason, code, cause_of(error))
            if detail := failure_detail(error):  # at once: a process that hangs at exit never emits its state
                self._notices.emit("traceback", reason, detail)

    def mark_end_of_command(self, exit_code: int, reason: str) -> None:
        """Set how the command of a launcher ended. exit_code: -n for signal n."""
        if exit_code < 0:
            self.status.set_killed(reason, -exit_code)
        elif exit_code:
            self.status.set_failed(reason, exit_code, EndCause.EXIT_STATUS)

    def leave(self, settings: RunSettings) -> None:
        """Note that this process exits although its code did not return and no hook saw a reason."""
        has_agent_here = settings.agent_address in (None, settings.places.agent_address)
        self.status.leave_open(is_adopted=self._journal.directory is not None and has_agent_here)
