"""Commands: in this process, or as real processes on pipes and on a terminal of a given width.

A test of what a command prints calls it. Commands on a terminal are forked from one process that has done the imports.
A command that depends on its start, on its environment or on typed input is started as users start it.
"""

import io
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from chiplog_cli.root import main
from chiplog_schemas.limits import QUERY_TIMEOUT_S
from tests.support.waiting import WAIT_S

CLI = [sys.executable, "-m", "chiplog_cli"]
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ON_ONE_WORKER = pytest.mark.xdist_group("cli")  # the database and the process with the imports are made once


def environment(root: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CHIPLOG_")}
    return {**kept, "CHIPLOG_DIR": str(root), "TZ": "Europe/Berlin", "PYTHONWARNINGS": "error", **more}


# Imports, then forks for each request: `python -m chiplog_cli` from there on, with the streams that came along.
FORKING = """
import json, os, runpy, socket, sys
import arro3.core, arro3.io, click, duckdb, rich.console, rich.table, zmq
import chiplog_cli.completion
from chiplog_cli.commands.look import logs, runs, show, sql
chiplog_cli.completion.ANSWER_S = float(sys.argv[2])  # on a machine however slow
requests = socket.socket(fileno=int(sys.argv[1]))
assert len(os.listdir("/proc/self/task")) == 1
while True:
    data, streams, _, _ = socket.recv_fds(requests, 65536, 3)
    if not data:
        break
    child = os.fork()
    if not child:
        requests.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)
        request = json.loads(data)
        os.environ.update(request["environment"])
        sys.argv = ["chiplog", *request["arguments"]]
        runpy.run_module("chiplog_cli", run_name="__main__")
    for stream in streams:
        os.close(stream)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    requests.send(str(code).encode())
requests.close()
"""


@contextmanager
def forking_process(root: Path) -> Iterator[socket.socket]:
    """Start the process that has done the imports; yield the socket that takes requests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(WAIT_S)
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", FORKING, str(theirs.fileno()), str(QUERY_TIMEOUT_S)],
            pass_fds=[theirs.fileno()],
            env=environment(root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        yield ours
    assert process.wait(WAIT_S) == 0


def fork(forking: socket.socket, arguments: tuple[str, ...], streams: list[int], **environment: str) -> None:
    """Start a command on streams, which are closed here; its exit code is what `forking` receives next."""
    request = json.dumps({"arguments": arguments, "environment": environment}).encode()
    socket.send_fds(forking, [request], streams)
    for stream in set(streams):
        os.close(stream)


def on_pipes(
    forking: socket.socket, root: Path, arguments: tuple[str, ...], stdin: str = "", **environment: str
) -> tuple[int, str, str]:
    (in_read, in_write), (out_read, out_write), (error_read, error_write) = os.pipe(), os.pipe(), os.pipe()
    fork(forking, arguments, [in_read, out_write, error_write], CHIPLOG_DIR=str(root), **environment)
    with ThreadPoolExecutor(2) as pool, open(out_read, encoding="utf-8") as out, open(error_read) as error:
        read = [pool.submit(stream.read) for stream in (out, error)]
        with open(in_write, "w", encoding="utf-8") as target:
            target.write(stdin)
        text, errors = [done.result() for done in read]
    return int(forking.recv(100)), text, errors


def call(root: Path, arguments: tuple[str, ...], stdin: str = "") -> tuple[int, str, str]:
    """Call a command with streams and the environment of a process on pipes; return code, stdout, stderr."""
    streams = [io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8") for text in (stdin, "", "")]
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {"CHIPLOG_DIR": str(root), "TZ": "Europe/Berlin"}.items():
            patched.setenv(name, value)
        time.tzset()
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patched.setattr(sys, name, stream)
        code = main(arguments)
    time.tzset()
    out, errors = (stream.detach().getvalue().decode() for stream in streams[1:])  # type: ignore[attr-defined]
    return code, out, errors


def one_line(stderr: str) -> str:
    assert stderr.endswith("\n") and stderr.count("\n") == 1, stderr
    return stderr[:-1]


def run_cli(root: Path, *arguments: str) -> tuple[int, str, str]:
    """Start a command as users do, in the directory of a node; return code, stdout, stderr."""
    done = subprocess.run(
        [*CLI, *arguments], capture_output=True, text=True, timeout=WAIT_S, env=dict(os.environ, CHIPLOG_DIR=str(root))
    )
    return done.returncode, done.stdout, done.stderr
