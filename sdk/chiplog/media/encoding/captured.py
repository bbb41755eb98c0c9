"""Media that are read when they are made: what the training changes afterwards is not logged."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.foreign_names import is_stand_in
from chiplog.safety.lenient_calls import unknown_argument_diagnostic
from chiplog.safety.text import clean_utf8
from chiplog.values.media_value import Content, MediaError, MediaValue
from chiplog_schemas.interrupts import is_interrupt, unless_interrupt
from chiplog_schemas.limits import MEDIA_BYTES_MAX, TEXT_CHARS_MAX
from chiplog_schemas.once import OnceLogger

_log = logging.getLogger("chiplog")
_once = OnceLogger(_log.warning, keys_max=100)  # one line for each wrong call, of which a script has a few
_METADATA_BYTES_MAX = 1 << 19  # as JSON: half of an event
_MESSAGE_CHARS = 200  # of a foreign exception


class CapturedMedia(MediaValue):
    """Base of media that their constructor reads. What fails there, `to_content` raises."""

    _problem = ""
    _content: Content | None = None

    def _capture(self, value: Any, read: Callable[[], None], more: tuple[Any, ...], unknown: Mapping[str, Any]) -> None:
        """Call what reads a value, and keep its failure. Report unknown arguments."""
        report_unknown_arguments(type(self).__name__, more, unknown)
        try:
            refuse_stand_in(value)
            read()
        except Exception as error:
            self._problem = problem_of(error)

    def to_content(self) -> Content:
        """Return the bytes and what describes them. They are encoded once.

        Raises:
            MediaError: The value cannot be stored.
        """
        if self._problem:
            raise MediaError(self._problem)
        if self._content is None:
            try:
                content = self._encode()
                check_size(content)
            except Exception as error:
                self._problem = problem_of(error)
                raise MediaError(self._problem) from None
            self._content = content
        return self._content

    def _encode(self) -> Content:
        raise NotImplementedError


def problem_of(error: Exception) -> str:
    """Return the reason in an exception as a clause. Raises what a signal handler raised."""
    if is_interrupt(error):
        raise error
    if isinstance(error, MediaError):
        return str(error)
    try:
        message = clean_utf8(" ".join(str(error).split()))[:_MESSAGE_CHARS]
    except unless_interrupt(Exception):  # an exception whose str() raises
        message = ""
    return f"it cannot be read: {type(error).__name__} {message}".rstrip()


def refuse_stand_in(value: Any) -> None:
    """Raise MediaError for an object of a name that chiplog does not have: it takes every use, and holds nothing."""
    if is_stand_in(value):
        raise MediaError(f"a {type(value).__name__} of another library holds nothing in chiplog; log its data")


def check_size(content: Content) -> None:
    """Raise MediaError if a content or its metadata is too large."""
    described = len(json.dumps(content.metadata))
    if described > _METADATA_BYTES_MAX:
        limit = f"the limit is {_METADATA_BYTES_MAX}; log fewer boxes, classes or columns"
        raise MediaError(f"its metadata have {described} bytes, {limit}")
    if len(content.data) > MEDIA_BYTES_MAX:
        size = len(content.data)
        raise MediaError(f"it has {size} bytes, the limit is {MEDIA_BYTES_MAX}; log a smaller one, or save() a file")


def report_unknown_arguments(call: str, more: tuple[Any, ...], unknown: Mapping[str, Any]) -> None:
    """Warn once of arguments that a constructor does not have."""
    if more or unknown:
        report_once(unknown_argument_diagnostic(call, more, unknown, "is left out"))


def report_once(diagnostic: Diagnostic) -> None:
    """Warn of a wrong use, once."""
    _once.log(diagnostic.key, "chiplog: %s", diagnostic.message)


def caption_metadata(caption: Any) -> dict[str, Any]:
    """Return the entry `caption` of the metadata, nothing without a caption. A long one is cut, which an … shows."""
    if caption is None:
        return {}
    text = clean_utf8(str(caption))
    return {"caption": text if len(text) <= TEXT_CHARS_MAX else f"{text[: TEXT_CHARS_MAX - 1]}…"}
