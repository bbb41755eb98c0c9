"""The limits that users may set: one variable for each, named like its constant in limits.py, which is the default.

The SDK replaces a bad value by the default and warns once. A daemon refuses to start.
"""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass

from chiplog_schemas import limits
from chiplog_schemas.limits import GIB, KIB, MIB

# variable -> (min, max). Below the minimum the code that uses the limit no longer works. Only a typing error exceeds
# the maximum. Where the peers have the same constant, a user can only lower the limit.
RANGES: dict[str, tuple[int, int]] = {
    "CHIPLOG_JOURNAL_BYTES_MAX": (1 * MIB, 1024 * GIB),
    "CHIPLOG_JOURNAL_MEMORY_BYTES_MAX": (1 * MIB, 64 * GIB),
    "CHIPLOG_EVENT_BYTES_MAX": (4 * KIB, limits.EVENT_BYTES_MAX),
    "CHIPLOG_KEYS_MAX": (1, limits.KEYS_MAX),
    "CHIPLOG_CONSOLE_LINES_PER_S": (1, 1_000_000),
    "CHIPLOG_CONSOLE_BURST_LINES": (1, 10_000_000),
    "CHIPLOG_FILE_BYTES_MAX": (4 * KIB, 1024 * GIB),
    "CHIPLOG_OUTBOX_BYTES_MAX": (1 * MIB, 64 * 1024 * GIB),
    "CHIPLOG_ARTIFACT_WAIT_S": (0, 86_400),
    "CHIPLOG_FILES_BYTES_MAX": (1 * MIB, 1024 * 1024 * GIB),
    "CHIPLOG_SPOOL_BYTES_MAX": (1 * MIB, 1024 * GIB),
    "CHIPLOG_CREDIT_BYTES": (64 * KIB, 1 * GIB),
    "CHIPLOG_QUERY_TIMEOUT_S": (1, int(limits.QUERY_TIMEOUT_S)),
    "CHIPLOG_QUERIES_AT_ONCE": (1, 64),
    "CHIPLOG_QUERIES_WAITING_MAX": (1, 10_000),
    "CHIPLOG_QUERY_MEMORY_BYTES": (64 * MIB, 1024 * GIB),
    "CHIPLOG_COLD_GB": (0, 1_000_000),
    "CHIPLOG_HOT_DAYS": (0, 36_500),
    "CHIPLOG_RETENTION_DAYS": (0, 36_500),
    "CHIPLOG_SYSTEM_SECONDS_DAYS": (0, 36_500),
    "CHIPLOG_SYSTEM_MINUTES_DAYS": (0, 36_500),
    "CHIPLOG_SYSTEM_RETENTION_DAYS": (0, 36_500),
}
STORE_FILES = "CHIPLOG_STORE_FILES"


class LimitError(ValueError):
    """A variable whose value is not valid. The text is one line: variable, value, range."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits in effect. limits.py has their units and the reasons for the defaults."""

    journal_bytes_max: int = limits.JOURNAL_BYTES_MAX
    journal_memory_bytes_max: int = limits.JOURNAL_MEMORY_BYTES_MAX
    event_bytes_max: int = limits.EVENT_BYTES_MAX
    keys_max: int = limits.KEYS_MAX
    console_lines_per_s: int = limits.CONSOLE_LINES_PER_S
    console_burst_lines: int = limits.CONSOLE_BURST_LINES
    file_bytes_max: int = limits.FILE_BYTES_MAX
    outbox_bytes_max: int = limits.OUTBOX_BYTES_MAX
    artifact_wait_s: int = limits.ARTIFACT_WAIT_S
    files_bytes_max: int = limits.FILES_BYTES_MAX
    spool_bytes_max: int = limits.SPOOL_BYTES_MAX
    credit_bytes: int = limits.CREDIT_BYTES
    query_timeout_s: int = int(limits.QUERY_TIMEOUT_S)
    queries_at_once: int = limits.QUERIES_AT_ONCE
    queries_waiting_max: int = limits.QUERIES_WAITING_MAX
    query_memory_bytes: int = limits.QUERY_MEMORY_BYTES
    cold_gb: int = limits.COLD_GB
    hot_days: int = limits.HOT_DAYS
    retention_days: int = limits.RETENTION_DAYS
    system_seconds_days: int = limits.SYSTEM_SECONDS_DAYS
    system_minutes_days: int = limits.SYSTEM_MINUTES_DAYS
    system_retention_days: int = limits.SYSTEM_RETENTION_DAYS


def read_limits(environ: Mapping[str, str], on_bad: Callable[[str], None] | None = None) -> Limits:
    """Return the limits that the environment sets. Each is a whole number; an empty variable counts as unset.

    on_bad: called with one line for each bad value, whose default is used. Without it the first one raises LimitError.
    """
    found: dict[str, int] = {}
    for variable in RANGES:
        try:
            value = _value(environ, variable)
        except LimitError as error:
            if on_bad is None:
                raise LimitError(f"{error}; change or unset it") from None
            on_bad(f"{error}; {getattr(_DEFAULTS, _name(variable))} is used")
            continue
        if value is not None:
            found[_name(variable)] = value
    return Limits(**found)


def drop_bad_limits(environ: MutableMapping[str, str], on_bad: Callable[[str], None]) -> Limits:
    """Remove bad values from an environment, which children inherit; return the limits.

    on_bad: called with one line for each bad value, whose default is used.
    """
    limits_found = read_limits(environ, on_bad)
    for variable in RANGES:
        try:
            _value(environ, variable)
        except LimitError:
            del environ[variable]
    return limits_found


def keeps_files(environ: Mapping[str, str]) -> bool:
    """Return True if the contents of saved files stay at a collector that publishes. Raises LimitError."""
    text = environ.get(STORE_FILES, "").strip()
    if text not in ("", "0", "1"):
        raise LimitError(f"{STORE_FILES}={text[:40]!r} is neither 0 nor 1; change or unset it")
    return text == "0"


def _value(environ: Mapping[str, str], variable: str) -> int | None:
    """Return the value of a variable; None if it is unset. Raises LimitError."""
    text = environ.get(variable, "").strip()
    if not text:
        return None
    least, most = RANGES[variable]
    try:
        value = int(text) if len(text) <= 20 else None  # an int of 10,000 digits raises too
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        raise LimitError(f"{variable}={text[:40]!r} is not a whole number from {least} to {most}")
    return value


def _name(variable: str) -> str:
    return variable.removeprefix("CHIPLOG_").lower()


_DEFAULTS = Limits()
