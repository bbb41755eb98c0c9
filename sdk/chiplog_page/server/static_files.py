"""The files that a browser loads, each compressed once, without comments and indentation."""

import functools
import gzip
import os
import re

from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC = os.path.join(os.path.dirname(os.path.dirname(__file__)), "static")
LEVEL = 9
# Browsers ask each time whether a file has changed. Without it they mix old and new modules after an upgrade.
CACHING = "no-cache"
COMPRESSED = (".js", ".css", ".html", ".svg")
# A sixth of the bytes of a module. Empty lines take their place, so that lines have the numbers of the source.
COMMENT = re.compile(rb"^[ \t]*(//.*|/\*\*(?:(?!\*/)[\s\S])*\*/[ \t]*)$", re.MULTILINE)
# At the end of a line; a text that looks like one has a quote after it.
LATE_COMMENT = re.compile(rb"[ \t]+// [^\"'`\n]*$", re.MULTILINE)
INDENTATION = re.compile(rb"^[ \t]+", re.MULTILINE)  # no text of several lines has any
# And spaces around signs, indentation, empty lines.
STYLE_COMMENT = re.compile(rb"/\*(?:(?!\*/)[\s\S])*\*/\s*|(?<=[{};,:])\s+|\s+(?=[{}])")


class CompressedFiles(StaticFiles):
    """Serves the files of the page, compressed where the browser takes it."""

    def __init__(self) -> None:
        super().__init__(directory=STATIC)

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Return a file, or that the browser has it already."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["cache-control"] = CACHING
        is_text = os.fspath(full_path).endswith(COMPRESSED)
        if (
            not is_text
            or not isinstance(response, FileResponse)
            or "gzip" not in Headers(scope=scope).get("accept-encoding", "")
        ):
            return response
        headers = {name: value for name, value in response.headers.items() if name != "content-length"}
        headers |= {"content-encoding": "gzip", "vary": "accept-encoding"}
        return Response(compressed(os.fspath(full_path), stat_result.st_mtime_ns), status_code, headers)


@functools.cache
def compressed(path: str, written_at: int) -> bytes:
    """Return a file, compressed. written_at: when it was written, in ns: a newer one is read again."""
    with open(path, "rb") as file:
        text = file.read()
    is_ours = f"{os.sep}vendor{os.sep}" not in path  # those keep their licence
    if is_ours and path.endswith(".css"):
        text = STYLE_COMMENT.sub(b"", text)
    elif is_ours and path.endswith(".js"):
        text = COMMENT.sub(lambda found: b"\n" * found[0].count(b"\n"), text)
        text = INDENTATION.sub(b"", LATE_COMMENT.sub(b"", text))
    return gzip.compress(text, LEVEL, mtime=0)
