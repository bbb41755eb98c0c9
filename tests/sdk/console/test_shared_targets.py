"""Processes of a launcher print past its capture: their lines are recorded once, and reach the terminal."""

import contextlib
import os
import socket
import subprocess
import sys

import pytest

from chiplog.console.shared_targets import TargetServer, adopt_targets
from chiplog.console.stream_fds import fd_identity, inherited_pipes
from chiplog.identity.identity import Identity, encode_parent_run
from chiplog_schemas.process.inherited_run import LAUNCHER, PARENT_RUN, process_fingerprint
from tests.support.waiting import WAIT_S

# A child whose stdout is the launcher's pipe, and whose stderr is something else.
CHILD = """
import os
from chiplog.console.shared_targets import adopt_targets
from chiplog.console.stream_fds import inherited_pipes
adopt_targets(os.environ)
print(sorted(inherited_pipes), flush=True)
for _, target in inherited_pipes.values():
    assert not os.get_inheritable(target)
    os.write(target, b"past the pipe")
"""


def record(kind: str = LAUNCHER, run: str = "r") -> dict[str, str]:
    identity = Identity(run, "launcher-a", "launch")
    return {PARENT_RUN: encode_parent_run(os.getpid(), run, identity, process_fingerprint(), kind)}


@pytest.fixture
def pipes():
    ends = [*os.pipe(), *os.pipe()]
    yield ends
    for end in ends:
        os.close(end)


def test_a_child_gets_the_target_of_the_stream_that_is_the_launchers_pipe_and_of_no_other(pipes) -> None:
    target_read, target, pipe_read, pipe = pipes
    with contextlib.closing(
        TargetServer(lambda: {1: (fd_identity(pipe), target), 2: (fd_identity(target_read), target)})
    ):
        subprocess.run(
            [sys.executable, "-c", CHILD], stdout=pipe, env=os.environ | record(), check=True, timeout=WAIT_S
        )
    assert os.read(pipe_read, 100) == b"[1]\n"
    assert os.read(target_read, 100) == b"past the pipe"


@pytest.mark.parametrize("variables", [{}, {PARENT_RUN: "1:r/rank0/0/s"}, {PARENT_RUN: "x"}])
def test_without_a_launcher_nothing_is_asked_and_nothing_changes(variables: dict[str, str]) -> None:
    before = dict(inherited_pipes)
    adopt_targets(variables)
    assert inherited_pipes == before


def test_a_launcher_that_has_closed_its_capture_or_is_gone_does_not_answer(pipes) -> None:
    server = TargetServer(lambda: {1: (fd_identity(pipes[3]), pipes[1])})
    server.close()
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, env=os.environ | record(), timeout=WAIT_S
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
    gone = record()[PARENT_RUN].replace(f"{os.getpid()}:", "999999:")
    adopt_targets({PARENT_RUN: gone})


def test_one_process_has_one_socket(pipes) -> None:
    with contextlib.closing(TargetServer(dict)) as server:
        with pytest.raises(OSError):
            TargetServer(dict)
        silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        silent.connect(server._socket.getsockname())
        assert silent.recv(100) == b"[]"
        silent.close()
