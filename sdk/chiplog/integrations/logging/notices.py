"""Records of logging and of warnings as events of the current run, a few of each."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from chiplog.recording.api.functions import current
from chiplog.safety.text import clean_utf8

TEXT_CHARS_MAX = 16_384  # of a message: many times what people read, and a small part of the limit of an event
# Records inside each other in one thread. A signal handler may log while a record is recorded, and so may the `__str__`
# of an object; one that logs itself has no end.
_DEPTH_MAX = 3
_here = threading.local()  # .depth; .is_warned: a warning is shown as it was before


def add_notice(kind: str, level: str, template: str, describe: Callable[[], tuple[str, dict[str, Any]]]) -> bool:
    """Emit an event of the current run, unless there were too many like it. Return False if no run is open.

    template: what many have in common. describe: returns message and body; not called for those that are left out.
    """
    depth, run = getattr(_here, "depth", 0), current()
    if depth >= _DEPTH_MAX or run is None or run.disabled or run._finished:
        return False
    _here.depth = depth + 1
    try:
        run._follow_fork()
        run._notices.emit_record(kind, level, template, describe)
    finally:
        _here.depth = depth
    return True


def report_error(where: str, error: Exception) -> None:
    """Report an internal error to the current run. An exception of a signal handler is raised again."""
    run = current()
    if run is not None and not run.disabled:
        run._report_internal_error(where, error)


@contextmanager
def being_warned() -> Iterator[None]:
    """Mark that this thread shows a warning that is recorded: logging may make a record of it, too."""
    before, _here.is_warned = is_being_warned(), True
    try:
        yield
    finally:
        _here.is_warned = before


def is_being_warned() -> bool:
    """Return True if this thread shows a warning that is recorded."""
    return getattr(_here, "is_warned", False)


def cut_text(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return the beginning of a text, as UTF-8 can hold it."""
    return clean_utf8(text[:chars_max])
