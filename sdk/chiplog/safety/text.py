"""Text that is safe to log, to encode and to show, whatever the training code passed."""

from typing import Any

from chiplog_schemas.interrupts import unless_interrupt

REPR_CHARS = 60  # of a value in a message: enough to recognise it


def short_repr(value: Any) -> str:
    """Return the beginning of a value's repr, or its type if repr() raises, as for an int of 10,000 digits."""
    try:
        return repr(value)[:REPR_CHARS]
    except unless_interrupt(Exception):
        return f"<{type(value).__name__}>"


def clean_utf8(text: str) -> str:
    r"""Return a text with its lone surrogates written as \udXXX."""
    return text.encode("utf-8", "backslashreplace").decode()


def is_encodable(text: str) -> bool:
    """Return True if a text can be UTF-8. Bytes that Python decoded with surrogateescape can."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
