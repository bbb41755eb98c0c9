"""Connections that send nothing, or half a request, do not stop the page."""

import contextlib
import resource
import socket
from pathlib import Path

import pytest

from chiplog_page.server import connections
from chiplog_page.server.connections import CONNECTIONS_MAX, connections_max
from tests.support.marks import everyday
from tests.support.page_client import PageClient, serving
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def connect(client: PageClient) -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.server.port), timeout=WAIT_S)


@proves("connections-bounded", "silent connections do not take the descriptors of the process", condition=False)
def test_many_silent_connections_leave_room_for_a_reader_and_log_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path) as client, contextlib.ExitStack() as stack:
        client.sign_in()
        silent = [stack.enter_context(connect(client)) for _ in range(3 * CONNECTIONS_MAX)]
        assert client.ask("/").status == 200
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b"", "the oldest was closed"
    lines = [record.getMessage() for record in caplog.records if record.name == "chiplog_page"]
    assert len(lines) == 1 and lines[0].startswith("more than 128 connections are open"), lines


@proves("silent-connection-closed", "a connection without a whole request is closed", condition=False)
@pytest.mark.parametrize(
    "sent", everyday(2, [b"", HEAD, HEAD + b"\r\n" + HEAD]), ids=["nothing", "half", "one and a half"]
)
def test_half_a_request_is_closed_after_a_while(tmp_path: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    with serving(tmp_path) as client, connect(client) as silent:
        silent.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            while silent.recv(4096):
                pass


def test_a_process_with_few_descriptors_keeps_most_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    assert connections_max() == 64
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert connections_max() == CONNECTIONS_MAX
