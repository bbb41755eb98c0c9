"""The bounds that users may set: a variable for each, named like its constant in limits.py, which is the default.

Training code takes the default in place of a bad value and says so once; a daemon refuses to start.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chiplog_schemas import limits
from chiplog_schemas.limits import GIB, KIB, MIB

# variable -> (least, most). The least is what the code around it still works with, the most what a slip of the finger
# would exceed; where the peers hold the constant too, a bound can only be made smaller.
RANGES: dict[str, tuple[int, int]] = {
    "CHIPLOG_JOURNAL_BYTES_MAX": (1 * MIB, 1024 * GIB),
    "CHIPLOG_JOURNAL_MEMORY_BYTES_MAX": (1 * MIB, 64 * GIB),
    "CHIPLOG_EVENT_BYTES_MAX": (4 * KIB, limits.EVENT_BYTES_MAX),
    "CHIPLOG_KEYS_MAX": (1, limits.KEYS_MAX),
    "CHIPLOG_CONSOLE_LINES_PER_S": (1, 1_000_000),
    "CHIPLOG_CONSOLE_BURST_LINES": (1, 10_000_000),
    "CHIPLOG_FILE_BYTES_MAX": (4 * KIB, 1024 * GIB),
    "CHIPLOG_OUTBOX_BYTES_MAX": (1 * MIB, 64 * 1024 * GIB),
    "CHIPLOG_FILES_BYTES_MAX": (1 * MIB, 1024 * 1024 * GIB),
    "CHIPLOG_SPOOL_BYTES_MAX": (1 * MIB, 1024 * GIB),
    "CHIPLOG_CREDIT_BYTES": (64 * KIB, 1 * GIB),
    "CHIPLOG_QUERY_TIMEOUT_S": (1, int(limits.QUERY_TIMEOUT_S)),
    "CHIPLOG_QUERIES_AT_ONCE": (1, 64),
    "CHIPLOG_QUERIES_WAITING_MAX": (1, 10_000),
    "CHIPLOG_QUERY_MEMORY_BYTES": (64 * MIB, 1024 * GIB),
}


class LimitError(ValueError):
    """A variable whose value is no bound. The text is one line: variable, value, range."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds as they are set. Names, units and reasons are those of limits.py."""

    journal_bytes_max: int = limits.JOURNAL_BYTES_MAX
    journal_memory_bytes_max: int = limits.JOURNAL_MEMORY_BYTES_MAX
    event_bytes_max: int = limits.EVENT_BYTES_MAX
    keys_max: int = limits.KEYS_MAX
    console_lines_per_s: int = limits.CONSOLE_LINES_PER_S
    console_burst_lines: int = limits.CONSOLE_BURST_LINES
    file_bytes_max: int = limits.FILE_BYTES_MAX
    outbox_bytes_max: int = limits.OUTBOX_BYTES_MAX
    files_bytes_max: int = limits.FILES_BYTES_MAX
    spool_bytes_max: int = limits.SPOOL_BYTES_MAX
    credit_bytes: int = limits.CREDIT_BYTES
    query_timeout_s: int = int(limits.QUERY_TIMEOUT_S)
    queries_at_once: int = limits.QUERIES_AT_ONCE
    queries_waiting_max: int = limits.QUERIES_WAITING_MAX
    query_memory_bytes: int = limits.QUERY_MEMORY_BYTES


def read_bounds(environ: Mapping[str, str], on_bad: Callable[[str], None] | None = None) -> Limits:
    """Return the bounds that the environment sets. A whole number each; an empty variable is none.

    on_bad: called with one line for each bad value, whose default is used. Without it the first one raises BoundError.
    """
    found: dict[str, int] = {}
    for variable, (least, most) in RANGES.items():
        text = environ.get(variable, "").strip()
        if not text:
            continue
        try:
            value = int(text) if len(text) <= 20 else None  # an int of 10,000 digits raises too
        except ValueError:
            value = None
        if value is not None and least <= value <= most:
            found[_name(variable)] = value
            continue
        message = f"{variable}={text[:40]!r} is no whole number from {least} to {most}"
        if on_bad is None:
            raise LimitError(f"{message}; change or unset it")
        on_bad(f"{message}; {getattr(_DEFAULTS, _name(variable))} is used")
    return Limits(**found)


def _name(variable: str) -> str:
    return variable.removeprefix("CHIPLOG_").lower()


_DEFAULTS = Limits()
