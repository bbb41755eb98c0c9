"""Text on a stream whose encoding lacks some characters: the signs of tables have likenesses, others are escaped.

A terminal without UTF-8, PYTHONIOENCODING=ascii, or half of a surrogate pair in a name must not end a command.
"""

import codecs
import contextlib
import io
import sys

NAME = "chiplog-likeness"  # of the error handler
_LIKENESSES = {"─": "-", "│": "|", "…": "...", "→": "->", "×": "x", "·": ".", "µ": "u", "−": "-", "⏎": "\\n", "•": "*"}
_LIKENESSES |= dict(zip("▁▂▃▄▅▆▇█", "_,-~=+*#", strict=True))
_BRAILLE, _BRAILLE_LAST = "\u2800", "\u28ff"


def likeness(text: str) -> str:
    """Return ASCII in place of each character: one that looks like it, or an escape as in JSON."""
    return "".join(map(_likeness, text))


def _likeness(character: str) -> str:
    if character in _LIKENESSES:
        return _LIKENESSES[character]
    if _BRAILLE <= character <= _BRAILLE_LAST:  # of a chart
        return " " if character == _BRAILLE else "*"
    if ord(character) < 0x10000:
        return f"\\u{ord(character):04x}"
    high, low = divmod(ord(character) - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return likeness(error.object[error.start : error.end]), error.end


codecs.register_error(NAME, _replace)


def tolerate_encodings() -> None:
    """Let standard output and standard error replace what their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError, ValueError):  # closed, or detached
                stream.reconfigure(errors=NAME)  # safeguard: missing-character-replaced


def is_unicode(stream: object) -> bool:
    """Return True if a stream's encoding has all characters, or if it has none, as a buffer in memory."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return encoding.lower().replace("_", "-").startswith("utf")
