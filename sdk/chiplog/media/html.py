"""Pages of HTML, from text or a file."""

import os
from typing import Any

from chiplog.media.encoding.captured import CapturedMedia
from chiplog.media.encoding.files import extension_of, read_file, read_stream
from chiplog.safety.lenient_calls import hide_unknown_arguments
from chiplog.safety.text import clean_utf8
from chiplog.values.media_value import Content, MediaError

_HEAD = '<base target="_blank">'  # a link opens a window, and does not replace the page in its frame


class Html(CapturedMedia):
    """A page of HTML, logged as one value. It is read at once.

    Never raises: `log()` counts a value that cannot be stored, and says why in one line.

    Args:
        data: HTML as text, an open file, or the path of a file that ends in .html.
        inject: Let links open a new window. False stores the HTML unchanged. W&B's style sheet is not added, because a
            page must not load anything from another host.
        data_is_not_path: Take a text as HTML even if a file has this name.

    Attributes:
        html: The stored text.

    Examples:
        >>> run.log({"report": chiplog.Html("<h1>Report</h1>")})
    """

    @hide_unknown_arguments
    def __init__(
        self, data: Any = None, inject: bool = True, data_is_not_path: bool = False, *more: Any, **unknown: Any
    ) -> None:
        self.html = ""

        def read() -> None:
            html = _read(data, data_is_not_path)
            self.html = _with_head(html) if inject else html

        self._capture(data, read, more, unknown)

    def _encode(self) -> Content:
        return Content("html", self.html.encode(), {"format": "html"})


def _read(data: Any, is_text: bool) -> str:
    if isinstance(data, os.PathLike) or (isinstance(data, str) and not is_text and _names_a_file(data)):
        return read_file(data).decode("utf-8", "replace")
    if isinstance(data, str):
        return clean_utf8(data)
    if isinstance(data, bytes | bytearray):
        return data.decode("utf-8", "replace")
    if hasattr(data, "read"):
        return read_stream(data).decode("utf-8", "replace")
    raise MediaError(f"a value of type {type(data).__name__} is not HTML; log a text, an open file or a path")


def _names_a_file(text: str) -> bool:
    return "<" not in text and "\n" not in text and extension_of(text) in ("html", "htm")


def _with_head(html: str) -> str:
    for tag, before, after in (("<head>", "<head>", ""), ("<html>", "<html><head>", "</head>")):
        start, found, rest = html.partition(tag)
        if found:
            return f"{start}{before}{_HEAD}{after}{rest}"
    return _HEAD + html
