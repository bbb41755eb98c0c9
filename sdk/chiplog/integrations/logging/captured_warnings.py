"""`chiplog.capture_warnings()`: Python's warnings as rows of the view `events`, shown as before."""

import threading
import warnings
from collections.abc import Callable
from typing import Any

from chiplog.integrations.logging.notices import add_notice, being_warned, cut_text, report_error
from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import error_text
from chiplog.safety.lenient_calls import ignore_unknown_arguments

_capture: "_Capture | None" = None


@ignore_unknown_arguments
def capture_warnings(on: bool = True) -> None:
    """Record Python's warnings as rows of kind `warning` in the view `events`, in the current run of the process.

    They are shown as before. Python itself shows a warning once for each place; of those of one place 5 rows at once
    and then one in 10 s are kept, and rows of kind `logs_suppressed` count the others.

    Args:
        on: False ends it.

    Examples:
        >>> chiplog.capture_warnings()
    """
    global _capture
    old = _capture
    if on and old is not None and warnings.showwarning is old:
        return
    if old is not None:
        old.is_on = False  # if other code calls it, it only passes on
        if warnings.showwarning is old:
            warnings.showwarning = old.previous
    _capture = None
    if on:
        _capture = _Capture(warnings.showwarning)
        warnings.showwarning = _capture


class _Capture:
    """What takes the place of `warnings.showwarning`. previous: what was there."""

    def __init__(self, previous: Callable[..., Any]) -> None:
        self.previous = previous
        self.is_on = True

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        """Record a warning, and show it as before."""
        if not self.is_on:
            self.previous(message, category, filename, lineno, file, line)
            return
        self._record(message, category, filename, lineno)
        with being_warned():
            self.previous(message, category, filename, lineno, file, line)

    @never_raises("capture_warnings")
    def _record(self, message: Any, category: Any, filename: Any, lineno: Any) -> None:
        name = getattr(category, "__name__", str(category))
        place = {"path": cut_text(str(filename)), "line": int(lineno)}

        def describe() -> tuple[str, dict[str, Any]]:
            text = error_text(message) if isinstance(message, Warning) else str(message)
            return cut_text(text), {"category": name, **place, "thread": threading.current_thread().name}

        add_notice("warning", "warning", f"{name} {place['path']}:{place['line']}", describe)

    def _report_internal_error(self, where: str, error: Exception) -> None:
        report_error(where, error)
