"""A server of the page, and a client that speaks HTTP with it as a browser does, without one."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chiplog_page.server.access import Access
from chiplog_page.server.source import Source
from chiplog_page.web_server import PageServer

WAIT_S = 25.0  # for an answer: less than a query may take


@dataclass
class Answer:
    """Status, headers with lower-case names, and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class PageClient:
    """Requests to one server."""

    server: PageServer
    access: Access
    cookie: str = ""
    used: list[str] = field(default_factory=list)  # addresses that were announced after a token was used

    def sign_in(self) -> "PageClient":
        address = urlsplit(self.server.new_address())
        answer = self.ask(f"{address.path}?{address.query}")
        assert answer.status == 303, answer
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return self

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        """Send one request. A header's name has _ for -."""
        with self.asked(path, method, body, **headers) as connection:
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())

    @contextmanager
    def asked(
        self, path: str, method: str = "GET", body: Any = None, **headers: str
    ) -> Iterator[http.client.HTTPConnection]:
        """Send one request, and close the connection at the end of the block, answered or not."""
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=WAIT_S)
        sent = {"Cookie": self.cookie} if self.cookie else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, sent)
            yield connection
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Return the JSON of api/PATH, which must be there."""
        answer = self.ask(f"/api/{path}")
        assert answer.status == 200, answer
        return answer.json


@contextmanager
def serving(
    root: Path, *, hosts: tuple[str, ...] = (), password: str | None = None, port: int = 0
) -> Iterator[PageClient]:
    """Serve the page of a data directory; the client has not signed in yet."""
    used: list[str] = []
    access = Access(hosts, password)
    server = PageServer(Source(dir=str(root), may_start=False), access, port=port, on_token_used=used.append)
    server.start()
    try:
        yield PageClient(server, access, used=used)
    finally:
        server.close()
