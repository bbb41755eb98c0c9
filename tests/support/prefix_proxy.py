"""A reverse proxy that serves a page below a path prefix, as a notebook hub does. It keeps the host."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PREFIX = "/user/anna/proxy/8642"
_OF_A_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class _Handler(BaseHTTPRequestHandler):
    """Passes each request on, and its answer back piece by piece, so that streams stay live."""

    protocol_version = "HTTP/1.1"
    target = ("127.0.0.1", 0)

    def _pass_on(self) -> None:
        if not self.path.startswith(PREFIX + "/"):
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("content-length") or 0)) or None
        connection = http.client.HTTPConnection(*self.target)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_A_HOP}
            connection.request(self.command, self.path[len(PREFIX) :], body, headers)
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_A_HOP:
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            while piece := answer.read1(65_536):
                self.wfile.write(piece)
                self.wfile.flush()
        except OSError:
            pass  # the browser or the page has gone
        finally:
            self.close_connection = True
            connection.close()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def behind_prefix(port: int) -> Iterator[str]:
    """Yield the address below which the server at `port` of this machine is reached, with a slash at its end."""
    handler = type("Handler", (_Handler,), {"target": ("127.0.0.1", port)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="prefix-proxy", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{PREFIX}/"
        finally:
            server.shutdown()
            thread.join()
