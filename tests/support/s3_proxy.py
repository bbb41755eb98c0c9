"""A proxy before a server of S3: it counts requests by kind, and answers some of them in its place."""

import contextlib
import http.client
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.support.waiting import WAIT_S

LISTED = ("list-type", "prefix", "delimiter")
_NOT_PASSED_ON = {"transfer-encoding", "connection", "content-length"}
_ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>%s</Message></Error>"


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # each ends with its request

    def handle_error(self, *_: object) -> None:
        """Print nothing: clients close connections that they need no more."""


class S3Proxy:
    """What the proxy does and has seen.

    Attributes:
        url: Where it listens.
        counts: Requests by kind: PUT, LIST, GET, HEAD, DELETE.
        paths: The kind and path of each.
        refuse: Given kind and path, returns the status and the code of the answer in place of the server's, or None.
        accepts_all: True to answer as a server that ignores If-None-Match.
    """

    def __init__(self, server: str) -> None:
        self.counts: Counter[str] = Counter()
        self.paths: list[tuple[str, str]] = []
        self.refuse: Callable[[str, str], tuple[int, str] | None] = lambda kind, path: None
        self.accepts_all = False
        self._server = urlsplit(server).netloc
        self._lock = threading.Lock()
        self._http = _Server(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Count from zero."""
        with self._lock:
            self.counts.clear()
            self.paths.clear()

    def close(self) -> None:
        """End it."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def _note(self, method: str, target: str) -> tuple[int, str] | None:
        found = urlsplit(target)
        is_listing = method == "GET" and any(name in parse_qs(found.query, True) for name in LISTED)
        kind = "LIST" if is_listing else "PUT" if method == "POST" and "delete" not in found.query else method
        with self._lock:
            self.counts[kind] += 1
            self.paths.append((kind, target))
        return self.refuse(kind, found.path)

    def _handler(proxy) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10.0  # of a connection without a request

            def log_message(self, *_: object) -> None:
                """Print nothing."""

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if (refusal := proxy._note(self.command, self.path)) is not None:
                    status, code = refusal
                    data = _ERROR % (code.encode(), code.encode())
                    self._answer(status, {"Content-Type": "application/xml"}, data)
                    return
                given = dict(self.headers.items())
                given["Content-Length"] = str(len(body))
                upstream = http.client.HTTPConnection(proxy._server, timeout=WAIT_S)
                with contextlib.closing(upstream):
                    upstream.request(self.command, self.path, body, given)
                    answer = upstream.getresponse()
                    data = answer.read()
                passed = {name: value for name, value in answer.getheaders() if name.lower() not in _NOT_PASSED_ON}
                length = answer.getheader("Content-Length") if self.command == "HEAD" else None
                is_accepted = answer.status == 412 and proxy.accepts_all
                self._answer(200 if is_accepted else answer.status, {"ETag": '"0"'} | passed, data, length)

            def _answer(self, status: int, headers: dict[str, str], data: bytes, length: str | None = None) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Connection", "close")
                if status != 204:
                    self.send_header("Content-Length", length or str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

        return Handler


@contextlib.contextmanager
def s3_proxy(server: str) -> Iterator[S3Proxy]:
    """Stand before a server."""
    proxy = S3Proxy(server)
    try:
        yield proxy
    finally:
        proxy.close()
