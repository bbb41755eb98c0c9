"""/metrics, /healthz and /readyz of a daemon, for a monitoring system: on a thread, and only if an address is given.

prometheus_client writes the text of /metrics, and is imported here alone.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from socketserver import TCPServer
from typing import Any

from chiplog_schemas.model.exposed import Exposed, Health
from chiplog_schemas.model.system_metrics import SYSTEM_METRICS
from chiplog_schemas.once import OnceLogger

_TIMEOUT_S = 10.0  # of one request: a scraper that reads nothing must not hold a thread
_RETRY_S = 10.0  # a port that is in use becomes free, a name that is unknown at boot becomes known
_CONNECTIONS_MAX = 16  # at once, each with a thread: scrapers and probes of health need a few
_log = logging.getLogger("chiplog.metrics")


class MetricsServer:
    """Serves until the process ends. What it cannot listen at is tried again, and both are logged.

    Attributes:
        address: Host and port that it listens at; None until it does.
    """

    def __init__(self, host: str, port: int, health: Health, retry_s: float = _RETRY_S) -> None:
        self.address: tuple[str, int] | None = None
        self._wanted = host, port
        self._retry_s = retry_s
        self._handler = type("_Handler", (_Handler,), {"health": health, "write": staticmethod(_metrics_writer())})
        self._server: ThreadingHTTPServer | None = None
        refused = self._listen()
        if refused:
            _log.warning(
                "metrics cannot be served at %s: %s; everything else continues, and it is tried again each %g s",
                *(_shown(host, port), refused, retry_s),
            )
        threading.Thread(target=self._serve, name="chiplog-metrics", daemon=True).start()

    def close(self) -> None:
        """Stop to serve."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _listen(self) -> str:
        """Return why the address cannot be used now, else ''."""
        family = AF_INET6 if ":" in self._wanted[0] else AF_INET
        server = type("_AtHost", (_Server,), {"address_family": family})
        try:
            self._server = server(self._wanted, self._handler)
        except OSError as error:
            return error.strerror or str(error)
        self.address = self._wanted[0], int(self._server.server_address[1])  # the port may have been 0
        _log.info("metrics are at http://%s/metrics", _shown(*self.address))
        return ""

    def _serve(self) -> None:
        while self._server is None:
            time.sleep(self._retry_s)
            self._listen()
        self._server.serve_forever()


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Server(ThreadingHTTPServer):
    """Binds without a query to DNS, which may take long, and closes connections for which there is no thread."""

    daemon_threads = True
    request_queue_size = _CONNECTIONS_MAX

    def __init__(self, *args: Any) -> None:
        self._free = threading.Semaphore(_CONNECTIONS_MAX)
        self._once = OnceLogger(_log.warning, keys_max=1)
        super().__init__(*args)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return False, which closes the connection, while all threads are busy."""
        if self._free.acquire(blocking=False):  # safeguard: metrics-threads-bounded
            return True
        message = "more than %d connections ask for metrics at once; further ones are closed"
        self._once.log("full", message, _CONNECTIONS_MAX)
        return False

    def process_request(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started now
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()  # safeguard: metrics-threads-used-again

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log no traceback: the client has left, or no thread can be started."""
        _log.debug("a connection for metrics failed", exc_info=True)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    health: Health
    write: Callable[[Iterable[Exposed]], tuple[str, bytes]]
    timeout = _TIMEOUT_S
    server_version, sys_version = "chiplog", ""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                try:
                    kind, body = self.write(self.health.collect())
                except ImportError as error:
                    self._answer(501, f"{error}; pip install 'chiplog[metrics]'\n")
                except Exception as error:  # an answer, in place of a traceback in a daemon's log
                    self._answer(500, f"{type(error).__name__}: {error}\n")
                else:
                    self._send(200, kind, body)
            case "/healthz":
                self._judge(self.health.is_alive())
            case "/readyz":
                self._judge(self.health.is_ready())
            case _:
                self._answer(404, "/metrics, /healthz and /readyz are here\n")

    def _judge(self, reason: str) -> None:
        self._answer(503 if reason else 200, f"{reason or 'ok'}\n")

    def _answer(self, status: int, text: str) -> None:
        self._send(status, "text/plain; charset=utf-8", text.encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scraper asks each few seconds."""


def _metrics_writer() -> Callable[[Iterable[Exposed]], tuple[str, bytes]]:
    """Return a function that writes the text of /metrics; without prometheus_client, one that raises ImportError."""
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
        from prometheus_client.core import Metric
    except ImportError as error:
        reason = str(error)
        _log.warning("/metrics has no values: %s; pip install 'chiplog[metrics]'", reason)

        def refuse(exposed: Iterable[Exposed]) -> tuple[str, bytes]:
            raise ImportError(reason)

        return refuse

    class _Registry:
        def __init__(self, exposed: Iterable[Exposed]) -> None:
            self._exposed = exposed

        def collect(self) -> Iterator[Metric]:
            families: dict[str, Metric] = {}
            for labels, names, values in self._exposed:
                for name, value in zip(names, values, strict=True):
                    if (metric := SYSTEM_METRICS.get(name)) is None:
                        continue
                    family_name, own = metric.exposed
                    family = families.get(family_name)
                    if family is None:
                        title = metric.title.partition(",")[0] if metric.label else metric.title
                        family = families[family_name] = Metric(
                            family_name, title, "counter" if metric.is_counter else "gauge"
                        )
                    total = "_total" if metric.is_counter else ""
                    family.add_sample(f"{family_name}{total}", {**labels, **own}, value)
            yield from families.values()

    return lambda exposed: (CONTENT_TYPE_LATEST, generate_latest(_Registry(exposed)))
