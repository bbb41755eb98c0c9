"""A handler of Python's logging whose records become rows of the view `events`."""

import json
import logging
import re
from typing import Any

from chiplog.integrations.logging.notices import add_notice, cut_text, is_being_warned, report_error
from chiplog.recording.ends.failures import traceback_of
from chiplog.safety.boundary import never_raises
from chiplog.safety.text import short_repr
from chiplog.values.config import to_plain
from chiplog_schemas.interrupts import unless_interrupt

_EXTRA_FIELDS_MAX = 50  # more are not read by people
_EXTRA_CHARS_MAX = 1_000  # of one extra field
_INT_MAX = 1 << 63  # msgpack has no larger integers
_OWN = "chiplog"  # its loggers report what chiplog does, which is in `events` already
_WARNINGS = "py.warnings"  # the logger of logging.captureWarnings
_SEEN = "_chiplog_seen"  # of a record: another ChiplogHandler has recorded it
# Numbers in a message are not part of its template: f-strings make another text of each step.
_NUMBER = re.compile(r"[-+]?\d+")
_TEMPLATE_CHARS_MAX = 200  # as of the titles of alerts
# What each record has; all else is from `extra=`. taskName came with Python 3.12.
_STANDARD = frozenset(
    (*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName", "stack_info", _SEEN)
)


class ChiplogHandler(logging.Handler):
    """Record what is logged as rows of kind `log` in the view `events`, in the current run of the process.

    Of one message 5 rows at once and then one in 10 s are kept, of each level 100 a minute; rows of kind
    `logs_suppressed` count the others. A message is what a logger was given before its arguments are filled in,
    without numbers. Records of chiplog's own loggers are left out, as are those without an open run.

    Args:
        level: The least level that is recorded: a number or name of logging.

    Examples:
        >>> logging.getLogger().addHandler(ChiplogHandler(level="WARNING"))

    """

    def __init__(self, level: int | str = logging.NOTSET) -> None:
        super().__init__()
        self.setLevel(level)

    def createLock(self) -> None:  # noqa: N802  # its name in logging
        """Create no lock: the journal needs none, and a forked child might find it held."""
        self.lock = None

    def setLevel(self, level: int | str) -> None:  # noqa: N802  # its name in logging
        """Set the least level that is recorded."""
        super().setLevel(level)
        self._least = self.level
        # Loggers pass on what lastResort would show, see handle().
        self.level = min(self.level, logging.WARNING)

    def handle(self, record: logging.LogRecord) -> bool:
        """Record what a logger passes on, unless a filter or the level leaves it out.

        A logger with any handler does not use logging.lastResort, which shows warnings and errors on stderr. If this is
        the only handler, they are shown there as before.
        """
        passed: Any = self.filter(record)
        if passed and record.levelno >= self._least:
            self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._is_only_handler(record.name):
            last.handle(record)
        return bool(passed)

    def _is_only_handler(self, name: str) -> bool:
        """Return True if a record of this logger reaches handlers of this class only, and this one first."""
        named = logging.root.manager.loggerDict.get(name)  # not getLogger(), which takes a lock
        logger = named if isinstance(named, logging.Logger) else logging.root
        handlers = list(logger.handlers)
        while logger.propagate and logger.parent is not None:
            logger = logger.parent
            handlers += logger.handlers
        return handlers[:1] == [self] and all(isinstance(handler, ChiplogHandler) for handler in handlers)

    @never_raises("logging")
    def emit(self, record: logging.LogRecord) -> None:
        """Record one record, unless there were too many like it."""
        if record.name == _OWN or record.name.startswith(f"{_OWN}.") or _SEEN in vars(record):
            return
        if record.name == _WARNINGS and is_being_warned():
            return
        template = record.msg if isinstance(record.msg, str) else f"<{type(record.msg).__name__}>"
        template = f"{record.name}: {_NUMBER.sub('#', template[:_TEMPLATE_CHARS_MAX])}"
        if add_notice("log", level_word(record.levelno), template, lambda: self._describe(record)):
            setattr(record, _SEEN, True)

    def _describe(self, record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
        """Return the message and the body of the event."""
        facts = {
            "logger": record.name,
            "level": record.levelname,
            "path": record.pathname,
            "line": record.lineno,
            "function": record.funcName,
            "thread": record.threadName,
        }
        body = {name: _plain(value) for name, value in facts.items() if value is not None}
        message = self._message(record, body)
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is not None:
            body["exception"] = type(error).__qualname__
            body["traceback"] = traceback_of(error)
        elif record.exc_text:  # of a queue: the exception itself could not be pickled
            body["traceback"] = cut_text(record.exc_text)
        if record.stack_info:
            body["stack"] = cut_text(record.stack_info)
        names = [name for name in vars(record) if name not in _STANDARD]
        if names:
            body["extra"] = {cut_text(name): _plain(vars(record)[name]) for name in names[:_EXTRA_FIELDS_MAX]}
        if len(names) > _EXTRA_FIELDS_MAX:
            body["extra_left_out"] = len(names) - _EXTRA_FIELDS_MAX
        return message, body

    def _message(self, record: logging.LogRecord, body: dict[str, Any]) -> str:
        """Return the text of a record. Arguments that do not fit it, and its length if it is cut, go into the body."""
        try:
            text = self.format(record) if self.formatter is not None else record.getMessage()
        except unless_interrupt(Exception):  # logging itself shows this on stderr
            text = record.msg if isinstance(record.msg, str) else short_repr(record.msg)
            body["arguments"] = cut_text(short_repr(record.args))
        if len(kept := cut_text(text)) < len(text):
            body["chars"] = len(text)
        return kept

    def _report_internal_error(self, where: str, error: Exception) -> None:
        report_error(where, error)


def level_word(number: int) -> str:
    """Return the level of a row of `events` for a number of logging."""
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"


def _plain(value: Any) -> Any:
    """Return what an event can hold: a number, or a text, which for a list or an object is JSON. It reads no device."""
    if value is None or type(value) in (bool, float) or (type(value) is int and -_INT_MAX <= value < _INT_MAX):
        return value
    text = value if type(value) is str else json.dumps(to_plain("extra", value, lambda bad: None))
    return cut_text(text, _EXTRA_CHARS_MAX)
