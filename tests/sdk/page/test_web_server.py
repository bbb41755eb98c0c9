"""The server: where it listens, and that it ends."""

import asyncio
import logging
import socket
import threading
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlencode, urlsplit

import pytest

from chiplog_page.server.access import Access
from chiplog_page.server.parameters import LABELS_MAX
from chiplog_page.server.source import Source
from chiplog_page.web_server import PageServer
from chiplog_schemas.limits import NAME_CHARS_MAX
from tests.support.endless_queries import EndlessQueries
from tests.support.hand_written import hand_written
from tests.support.live_runs import fill_live_runs
from tests.support.page_client import PageClient, serving
from tests.support.waiting import WAIT_S, wait_until


def test_an_address_that_is_in_use_is_an_error_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as client, pytest.raises(OSError, match="in use"):
        PageServer(Source(dir=str(tmp_path)), Access(), port=client.server.port)


def test_a_closed_server_has_no_thread_and_no_port(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with serving(tmp_path) as client:
        client.sign_in()
        assert any(thread.name == "chiplog-page" for thread in set(threading.enumerate()) - before)
        port = client.server.port
    assert not any(thread.name == "chiplog-page" for thread in set(threading.enumerate()) - before)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)


def test_a_page_that_follows_changes_does_not_delay_the_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(tmp_path) as client:
        client.sign_in()
        stream = socket.create_connection(("127.0.0.1", client.server.port), timeout=WAIT_S)
        request = f"GET /api/live HTTP/1.1\r\nHost: 127.0.0.1:{client.server.port}\r\nCookie: {client.cookie}\r\n\r\n"
        stream.sendall(request.encode())
        received = b""
        while b"retry: 2000" not in received:
            received += stream.recv(4096)
    with stream:
        while stream.recv(4096):
            pass
    assert capfd.readouterr().err == ""


def test_a_request_without_an_answer_ends_with_the_server_and_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = threading.Event()

    class Silent(Source):
        async def call(self, action: object) -> NoReturn:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    access = Access()
    server = PageServer(Silent(dir=str(tmp_path)), access, port=0)
    server.start()
    client = PageClient(server, access).sign_in()
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as request:
        text = f"GET /api/info HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nCookie: {client.cookie}\r\n\r\n"
        request.sendall(text.encode())
        assert asked.wait(WAIT_S)
        server.close()
    assert capfd.readouterr().err == ""


def test_the_end_of_the_server_cancels_the_queries_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
    endless = EndlessQueries(monkeypatch, "count(*) AS n FROM runs")
    with serving(tmp_path) as client:
        client.sign_in()
        with client.asked("/api/info"):
            assert endless.began.acquire(timeout=WAIT_S)
            client.server.close()
            assert endless.endings.get_nowait() == "cancelled"
    wait_until(lambda: "chiplog-page-query" not in str(threading.enumerate()), "a thread that ends")
    assert capfd.readouterr().err == ""


def test_an_address_names_the_host_as_a_browser_needs_it(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        return
    server = PageServer(Source(dir=str(tmp_path)), Access(), host="::1", port=0)
    assert server.new_address().startswith(f"http://[::1]:{server.port}/?token=")
    server.close()


def test_the_address_of_a_server_on_all_interfaces_opens_it(tmp_path: Path) -> None:
    access = Access()
    server = PageServer(Source(dir=str(tmp_path)), access, host="0.0.0.0")
    server.start()
    try:
        client, address = PageClient(server, access), urlsplit(server.new_address())
        assert address.netloc == f"{socket.gethostname()}:{server.port}"
        assert client.ask(f"/?{address.query}", Host=address.netloc).status == 303
        assert client.ask("/", Host=f"evil.example:{server.port}").status == 400
    finally:
        server.close()


def test_an_address_may_have_as_many_labels_as_a_request_takes(reader: PageClient) -> None:
    labels = [f"{number:x<{NAME_CHARS_MAX}}" for number in range(LABELS_MAX)]
    answer = reader.ask("/api/runs/healthy/ranks?" + urlencode({"label": labels}, doseq=True))
    assert answer.status == 200, answer


def test_the_log_of_the_process_stays_as_it_is_and_has_each_warning_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "training.log"
    handler = logging.FileHandler(path, mode="w")
    root, access = logging.getLogger(), logging.getLogger("uvicorn.access")
    level = root.level
    root.addHandler(handler)
    access.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        logging.info("before")
        with serving(tmp_path) as client:
            client.sign_in()
            with socket.create_connection(("127.0.0.1", client.server.port), timeout=WAIT_S) as request:
                request.sendall(b"no request\r\n\r\n")
                assert request.recv(4096).startswith(b"HTTP/1.1 400 ")
        logging.info("after")
        assert access.handlers == [handler] and access.propagate, "those of another server in this process"
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        access.removeHandler(handler)
        handler.close()
    assert path.read_text().splitlines() == ["before", "Invalid HTTP request received.", "after"]
    assert capfd.readouterr().err == ""
