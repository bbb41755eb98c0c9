"""The server of the page: it listens until it is closed or the process ends."""

import asyncio
import atexit
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable

import uvicorn

from chiplog_page.app import build_app
from chiplog_page.server.access import SESSION_S, Access
from chiplog_page.server.access_checks import Gate
from chiplog_page.server.connections import BoundedProtocol
from chiplog_page.server.source import Source

END_WAIT_S = 5.0
ALL_INTERFACES = ("0.0.0.0", "::")
HEAD_BYTES_MAX = 256 << 10  # of a request: its address has up to 1,024 labels of 128 characters
_HUB_VARIABLE = "JUPYTERHUB_SERVICE_PREFIX"  # the path of a user's server, set for all that runs in it
_log = logging.getLogger("uvicorn.error")  # all that uvicorn logs, but for requests


def hub_proxy() -> str | None:
    """Return the path of JupyterHub's proxy for the ports of this machine; None outside of JupyterHub.

    The proxy is the package jupyter-server-proxy, in the environment of Jupyter's server.
    """
    prefix = os.environ.get(_HUB_VARIABLE)
    return f"{prefix.rstrip('/')}/proxy" if prefix else None


class _Server(uvicorn.Server):
    """Ends the streams and the queries of open pages first, which would last until they are cancelled.

    uvicorn logs a traceback for each request that it cancels. At the end of a server that helps no one.
    """

    def __init__(self, config: uvicorn.Config, end_requests: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_requests = end_requests

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_requests()
        level = _log.level
        _log.setLevel(logging.CRITICAL)
        try:
            await super().shutdown(sockets)
            if tasks := set(self.server_state.tasks):  # cancelled
                await asyncio.wait(tasks, timeout=END_WAIT_S)
        finally:
            _log.setLevel(level)


class PageServer:
    """Serves the page.

    Args:
        source: The data.
        access: Who may see it.
        host: Address to listen on.
        port: Port; 0 for any that is free.
        proxy: Path of a proxy that serves the ports of this machine below their numbers, such as that of JupyterHub.
            Its host is unknown here, so any is allowed unless `access` was given some.
        on_token_used: Called with the next address when one has been used.

    Raises:
        OSError: The address is in use or not of this machine.
    """

    def __init__(
        self,
        source: Source,
        access: Access,
        host: str = "127.0.0.1",
        port: int = 0,
        proxy: str | None = None,
        on_token_used: Callable[[str], None] = lambda address: None,
    ) -> None:
        self._access = access
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._name = socket.gethostname() if host in ALL_INTERFACES else host
        access.allow_host(self._name)  # its own address must open the page
        self._proxy = proxy
        if proxy is not None:
            access.allow_any_host()
        app = build_app(source)
        # A free port is another one at the next start: a lasting cookie would only add to those of other servers.
        lasts_s = int(SESSION_S) if port else None
        gate = Gate(app, access, f"chiplog-{self.port}", lambda: on_token_used(self.new_address()), lasts_s)
        if _log.level == logging.NOTSET:
            _log.setLevel(logging.WARNING)
        config = uvicorn.Config(
            gate,
            http=BoundedProtocol,
            ws="none",
            log_config=None,  # it would close all handlers of this process, such as those of a training
            lifespan="on",
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )

        def end_requests() -> None:
            app.state.live.close()
            source.stop()

        self._server = _Server(config, end_requests)
        self._thread: threading.Thread | None = None

    def new_address(self) -> str:
        """Return an address that opens the page once; behind a proxy, its part after the name of the host."""
        name = f"[{self._name}]" if ":" in self._name else self._name
        base = f"http://{name}:{self.port}" if self._proxy is None else f"{self._proxy.rstrip('/')}/{self.port}"
        return f"{base}/?token={self._access.new_token()}"

    def serve(self) -> None:
        """Serve until SIGINT or SIGTERM."""
        self._server.run(sockets=[self._socket])

    def start(self) -> None:
        """Serve in a thread, until `close` or the end of the process."""
        self._thread = threading.Thread(target=self._run, name="chiplog-page", daemon=True)
        self._thread.start()
        # A query that runs would end with the process in native code, which aborts it.
        atexit.register(self.close)

    def stop(self) -> None:
        """Stop serving soon. May be called from another thread."""
        self._server.should_exit = True

    def close(self) -> None:
        """Stop serving, and wait for the end of the thread."""
        atexit.unregister(self.close)
        self.stop()
        if self._thread is not None:
            self._thread.join(END_WAIT_S)
        with contextlib.suppress(OSError):
            self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))
