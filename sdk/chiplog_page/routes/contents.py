"""Stored contents as responses: downloads, and logged media that a browser shows, whole or a range of their bytes."""

import contextlib
import re
from collections.abc import AsyncGenerator, Iterable, Iterator

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from chiplog_client.reads.media.shown_types import shown_type
from chiplog_page.server.access_checks import FRAME_ANCESTORS
from chiplog_page.server.source import Source

# A player reads a range as slowly as it plays. A short answer is read at once, and holds no client of the source.
RANGE_BYTES_MAX = 4 << 20
_SANDBOX = f"default-src 'none'; frame-ancestors {FRAME_ANCESTORS}; sandbox"
# No scripts: no policy keeps those from the network, which WebRTC reaches. Links open a window.
_HTML_SANDBOX = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; font-src data:; "
    f"frame-ancestors {FRAME_ANCESTORS}; sandbox allow-popups allow-popups-to-escape-sandbox"
)
_DOWNLOAD = "application/octet-stream"
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


async def download(source: Source, sha256: str, n_bytes: int, name: str) -> Response:
    """Return the first bytes of a content as a download. Raises QueryError if the content is not stored."""
    plain = name.encode("ascii", "replace").decode().replace('"', "_").replace("\\", "_")
    return await _stream(source, sha256, n_bytes, _DOWNLOAD, {"content-disposition": f'attachment; filename="{plain}"'})


async def logged_content(
    source: Source, sha256: str, n_bytes: int, *, kind: str, form: str | None, wanted: str
) -> Response:
    """Return a logged value: as what a browser shows, else as a download.

    Args:
        source: The collector.
        sha256: Its digest.
        n_bytes: Its size.
        kind: As in the view `media`.
        form: The format in its metadata.
        wanted: The header Range. Ranges are answered up to RANGE_BYTES_MAX.

    Raises:
        QueryError: The content is not stored there, or the collector does not answer.
    """
    content_type = shown_type(kind, form)
    headers = {
        "accept-ranges": "bytes",
        "cache-control": "private, max-age=3600, immutable",
        "content-security-policy": _HTML_SANDBOX if kind == "html" else _SANDBOX,
    }
    if content_type is None:
        headers["content-disposition"] = "attachment"  # the page names it
    content_type = content_type or _DOWNLOAD
    chosen = _range_of(wanted, n_bytes)
    if chosen is None:
        return await _stream(source, sha256, n_bytes, content_type, headers)
    first, last = chosen
    if first > last:
        return Response(status_code=416, headers={"content-range": f"bytes */{n_bytes}"})
    body = await source.call(lambda client: b"".join(_start_of(client.read_file(sha256, first), last - first + 1)))
    headers["content-range"] = f"bytes {first}-{last}/{n_bytes}"
    return Response(body, 206, headers, content_type)


def _range_of(wanted: str, n_bytes: int) -> tuple[int, int] | None:
    """Return the first and the last byte of a header Range; the first is above the last if there is no such byte.

    None without a range, and for several, which a server may ignore.
    """
    found = _RANGE.fullmatch(wanted)
    if found is None or not (found[1] or found[2]):
        return None
    if found[1]:
        first, last = int(found[1]), int(found[2] or n_bytes)
    else:
        first, last = max(n_bytes - int(found[2]), 0), n_bytes
    return first, min(last, n_bytes - 1, first + RANGE_BYTES_MAX - 1)


async def _stream(source: Source, sha256: str, n_bytes: int, content_type: str, headers: dict[str, str]) -> Response:
    parts = source.iterate(lambda client: _start_of(client.read_file(sha256), n_bytes))
    first = await anext(parts, b"")
    return _Stream(first, parts, content_type, {**headers, "content-length": str(n_bytes)})


class _Stream(StreamingResponse):
    """Sends parts, and frees the client that they come from at the end, however that comes."""

    def __init__(
        self, first: bytes, rest: AsyncGenerator[bytes, None], content_type: str, headers: dict[str, str]
    ) -> None:
        super().__init__(_joined(first, rest), media_type=content_type, headers=headers)
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts."""
        async with contextlib.aclosing(self._rest):
            await super().__call__(scope, receive, send)


async def _joined(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    yield first
    async for part in rest:
        yield part


def _start_of(parts: Iterable[bytes], n_bytes: int) -> Iterator[bytes]:
    """Yield so many bytes, and read no part after them."""
    left = n_bytes
    for part in parts:
        yield part[:left]
        left -= len(part)
        if left <= 0:
            return
