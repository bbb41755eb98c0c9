"""The console output of this process's runs. Only the first open run records it, so each line is in one run."""

from chiplog.console.capture import ConsoleCapture
from chiplog.recording.run.run_journal import RunJournal
from chiplog.recording.run.run_notices import Emit
from chiplog.safety.diagnostics import Diagnostics
from chiplog.safety.text import clean_utf8, is_encodable
from chiplog.settings import RunSettings
from chiplog_schemas.model.events import EventKind

_capturing: "list[RunConsole]" = []  # of open runs, in the order of opening: the first one records


class RunConsole:
    """The console of one run. capture: what records it; None while another run does."""

    def __init__(self, settings: RunSettings, journal: RunJournal, emit: Emit, diagnostics: Diagnostics) -> None:
        self._settings = settings
        self._journal = journal
        self._emit = emit
        self._diagnostics = diagnostics
        self.capture: ConsoleCapture | None = None

    def begin(self) -> None:
        """Record the console, once no run that was opened before does."""
        _capturing.append(self)
        if _capturing[0] is self:
            self._start()

    def end(self) -> None:
        """Restore the streams, and let the next open run capture them."""
        if self in _capturing:
            _capturing.remove(self)
        if self.capture is not None:
            self.capture.close()
            if _capturing:
                _capturing[0]._start()

    def tick(self) -> None:
        """Record what is pending. The sender thread calls this."""
        if self.capture is not None:
            self.capture.tick()

    def begin_in_child(self) -> None:
        """Leave the streams to the parent: a forked child prints into its pipes."""
        if self.capture is not None:
            self.capture.close_in_child()
            self.capture = None
        _capturing.clear()

    def _start(self) -> None:
        sender = self._journal.sender
        self.capture = ConsoleCapture(
            self._settings,
            self._journal.producer,
            self._emit_line,
            lambda *notice: self._emit(EventKind.NOTICE, "console_lost", "warning", *notice, urgent=True),
            lambda: not self._journal.is_under_pressure,
            lambda message: self._diagnostics.warn_once(("console", ""), message),
            self._journal.directory,
            is_supervised=sender is not None and sender.is_running,
        )

    def _emit_line(self, stream: int, line_no: int, line: str) -> None:
        self._emit(EventKind.CONSOLE, stream, line_no, line if is_encodable(line) else clean_utf8(line))
