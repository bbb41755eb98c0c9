"""What goes wrong in training code's calls: counted by kind, said aloud once, never raised."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from chiplog.values import Bad, cleaned
from chiplog_schemas.events import EventKind

_WARNINGS_MAX = 100  # different ones said aloud; all are counted
_log = logging.getLogger("chiplog")


class Complaints:
    """The complaints of one run in one process. `say` appends an event: the first of each is a row in `events`."""

    def __init__(self, say: Callable[..., None]) -> None:
        self.counts: Counter[str] = Counter()
        self._say = say
        self._said: set[tuple[str, str]] = set()

    def note(self, bad: Bad) -> None:
        """Count a value or key that cannot be logged."""
        self.counts[bad.kind] += 1
        if self.warn_once((bad.kind, bad.key), bad.message):
            self._say(EventKind.NOTICE, "bad_value", "warning", bad.message, {"kind": bad.kind, "key": bad.key})

    def note_nonfinite(self, data: Mapping[str, Any], step: int) -> None:
        """Count NaN and infinities. They are kept, and the first of each key is worth a word."""
        for key, value in data.items():
            if not math.isfinite(value):
                self.note(Bad("not_finite", key, f"{key!r:.80} became {float(value)} at step {step}; it is kept"))

    def warn_once(self, what: tuple[str, str], message: str) -> bool:
        """Say something aloud unless it was said before. Tell whether it was said now."""
        if what in self._said or len(self._said) >= _WARNINGS_MAX:
            return False
        self._said.add(what)
        _log.warning("chiplog: %s", message)
        return True

    def internal(self, where: str, error: Exception) -> None:
        """Note our own fault."""
        self.counts["internal_error"] += 1
        self.warn_once(("internal_error", where), f"{where}() failed inside: {type(error).__name__} {error}")


def shown_error(error: BaseException) -> str:
    """Return what an exception says; its type where even that raises."""
    try:
        return cleaned(str(error))[:1000]
    except Exception:
        return f"<{type(error).__name__}>"
