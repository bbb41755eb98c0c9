"""Why an address does not answer: asked of the kernel, with real sockets."""

import os
import socket
from pathlib import Path

import pytest

from chiplog.journal.reachability import Reason, probe


def test_a_socket_file_that_somebody_listens_at_answers_also_with_a_full_queue(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/agent"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as other:
        listener.bind(str(tmp_path / "agent"))
        listener.listen(0)
        assert probe(address) is None
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.connect(str(tmp_path / "agent"))
        assert probe(address) is None
    found = probe(address)
    assert found is not None and (found.reason, found.text) == (Reason.NOT_LISTENING, "connection refused")
    os.unlink(tmp_path / "agent")
    found = probe(address)
    assert found is not None and (found.reason, found.text) == (Reason.NOT_LISTENING, "no such file or directory")


def test_a_port_answers_while_somebody_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert probe(address) is None
    found = probe(address)
    assert found is not None and (found.reason, found.text) == (Reason.NOT_LISTENING, "connection refused")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:99999", "tcp://without-a-port"])
def test_an_address_that_cannot_be_is_a_reason_and_no_exception(address: str) -> None:
    found = probe(address)
    assert found is not None and found.reason is Reason.NOT_LISTENING
    assert found.text
