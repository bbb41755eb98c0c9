"""Capture of descriptors: what Python, C and subprocesses print is recorded, and the terminal sees the same bytes."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import chiplog
import chiplog_schemas
from chiplog.console.helper import ConsoleHelper
from chiplog.console.relay import RelayLock
from chiplog.console.stream_fds import StreamFds
from tests.support.console import notices, recorded, run_script, script
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until


def test_streams_keep_their_order_and_their_names(chiplog_dir, tmp_path) -> None:
    done = run_script(
        tmp_path,
        """
        run = init()
        helper_of(run)
        for number in range(20):
            print(f"line {number}", file=(sys.stdout, sys.stderr)[number % 2])
            while waiting(run, 1 + number % 2): time.sleep(0.001)
        """,
    )
    assert done.stdout.decode().splitlines() == [f"line {number}" for number in range(0, 20, 2)]
    assert recorded(chiplog_dir, 20) == [(1 + number % 2, f"line {number}") for number in range(20)]


def test_a_stream_that_is_printed_to_all_the_time_keeps_its_order_with_the_other_and_wakes_the_helper_seldom(
    chiplog_dir, tmp_path
) -> None:
    done = run_script(
        tmp_path,
        """
        run = init()
        helper = helper_of(run)
        def wakes():
            with open(f"/proc/{helper}/status") as status:
                return int(status.read().split("\\nvoluntary_ctxt_switches:")[1].split()[0])
        before = wakes()
        for number in range(400):
            print("busy", number)
            time.sleep(0.001)
            if number % 10 == 9:
                print("out", number, flush=True)
                print("err", number, file=sys.stderr)
                while waiting(run, 2): time.sleep(0.0005)
        assert wakes() - before < 300, wakes() - before
        """,
    )
    assert (done.returncode, done.stderr.count(b"\n")) == (0, 40), done.stderr
    lines = recorded(chiplog_dir, 480)
    expected = []
    for number in range(400):
        expected += [(1, f"busy {number}")]
        expected += [(1, f"out {number}"), (2, f"err {number}")] if number % 10 == 9 else []
    assert lines == expected


@proves(
    "streams-in-written-order",
    "what was written first to one of two streams is shown first, also by a helper that waited for a core",
    value="select.EPOLLIN",
)
def test_what_was_written_first_is_moved_first_however_late_the_helper_is(tmp_path) -> None:
    """The helper's own loop, turn by turn: between two of them it waits for a core as long as it likes."""
    control, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    target = tmp_path / "both"
    pipes = [os.pipe(), os.pipe()]
    writers = [writer for _, writer in pipes]
    limits = {"console_lines_per_s": 1, "console_burst_lines": 1}
    with control, ours, open(os.memfd_create("lock"), "wb") as lock, target.open("wb") as file:
        streams = [StreamFds(n + 1, source, os.dup(file.fileno())) for n, (source, _) in enumerate(pipes)]
        config = {"limits": limits, "pid": os.getpid(), "watch": []}
        helper = ConsoleHelper(config, control, streams, RelayLock(lock.fileno()))
        helper._records = False  # no journal is opened
        expected = b""
        for number in range(20):
            first = number // 2 % 2
            for stream in (first, 1 - first):
                expected += b"%d %d\n" % (stream, number)
                os.write(writers[stream], b"%d %d\n" % (stream, number))
            helper.poll_once()
            # In between: a stream that was just polled, and then is written to after the other one.
            os.write(writers[1], b"alone\n")
            expected += b"alone\n"
            helper.poll_once()
        for writer in writers:
            os.close(writer)
        helper.poll_once()
    assert helper._streams == {}
    assert target.read_bytes() == expected


def test_a_helper_needs_no_other_package_until_the_first_line(tmp_path) -> None:
    """All that it imports before is in chiplog and the standard library: msgpack alone would cost it 4 MB."""
    paths = [str(Path(module.__path__[0]).parent) for module in (chiplog, chiplog_schemas)]
    body = "import sys, types; package = types.ModuleType('chiplog'); sys.modules['chiplog'] = package\n"
    body += f"sys.path += {paths!r}; package.__path__ = [sys.path[-2] + '/chiplog']\n"
    body += "import chiplog.console.helper\nassert not {'msgpack', 'zmq', 'dataclasses'} & {*sys.modules}, sys.path\n"
    done = subprocess.run([sys.executable, "-P", "-S", "-c", body], capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_bars_are_folded_and_bytes_that_are_no_text_are_kept(chiplog_dir, tmp_path) -> None:
    written = b"10%\r50%\r100%\n\xff\xfe \xc3\xa9\n|\b/\b-\b done\nwindows\r\n\x1b[31mred\x1b[0m\n\0\n"
    done = run_script(tmp_path, f"run = init()\nos.write(1, {written!r})\n")
    assert done.stdout == written
    lines = [line for _, line in recorded(chiplog_dir, 6)]
    assert lines == ["100%", "\udcff\udcfe é", " done", "windows", "\x1b[31mred\x1b[0m", "\0"]


def test_lines_above_the_rate_are_declared_with_their_number(chiplog_dir, tmp_path) -> None:
    """Recorded + declared = printed."""
    environment = dict(os.environ, CHIPLOG_CONSOLE_BURST_LINES="100", CHIPLOG_CONSOLE_LINES_PER_S="1")
    body = "run = init()\nos.write(1, b''.join(b'line %d\\n' % n for n in range(30000)))\n"
    begun = time.monotonic()
    done = run_script(tmp_path, body, env=environment)
    assert done.stdout.count(b"\n") == 30_000

    def told() -> int:
        return len(recorded(chiplog_dir, 100)) + sum(body["lines"] for body in notices(chiplog_dir, "console_lost"))

    wait_until(lambda: told() >= 30_000, "every line, recorded or declared")  # the helper ends after its training
    assert told() == 30_000
    assert len(recorded(chiplog_dir, 100)) <= 101 + time.monotonic() - begun


@pytest.mark.parametrize(
    ("end", "code"),
    [("os.abort()", -signal.SIGABRT), ("os.kill(os.getpid(), 9)", -signal.SIGKILL), ("os._exit(3)", 3)],
    ids=["abort", "SIGKILL", "_exit"],
)
def test_the_last_words_of_a_process_that_dies_are_recorded(chiplog_dir, tmp_path, end, code) -> None:
    body = f"""
    run = init()
    print("first")
    libc.perror(b"native code fails")
    os.write(1, b"and leaves half a line")
    {end}
    """
    done = run_script(tmp_path, body)
    assert done.returncode == code
    assert done.stdout == b"first\nand leaves half a line"
    lines = recorded(chiplog_dir, 3)
    assert sorted(lines)[:2] == [(1, "and leaves half a line"), (1, "first")]
    assert lines[-1][0] in (1, 2)
    assert any(stream == 2 and line.startswith("native code fails") for stream, line in lines)


@pytest.mark.full
def test_what_c_code_prints_is_followed_by_label_while_the_run_goes_on(node, tmp_path) -> None:
    """A helper is killed and replaced: the new one's lines continue where those of the old one ended."""
    body = """
    run = init(mode="online", label="rank3")
    libc.puts(b"one"); libc.fflush(None)
    sys.stdin.readline()
    victim = helper_of(run)
    os.kill(victim, signal.SIGKILL)
    while run._console.capture.helper in (0, victim): time.sleep(0.01)
    libc.puts(b"two"); libc.fflush(None)
    sys.stdin.readline()
    os.write(1, b"three\\n")
    os.abort()
    """
    environment = {**os.environ, "CHIPLOG_DIR": str(node.root), "CHIPLOG_AGENT": node.place.agent_address}
    training = subprocess.Popen(
        [sys.executable, script(tmp_path, body)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert training.stdin is not None
    lines = "SELECT stream, line FROM console WHERE run_id = 'r' AND label = 'rank3' ORDER BY line_no"
    follow = None
    try:
        node.until(lines, lambda rows: rows[-1]["line"] == "one")
        command = [sys.executable, "-P", "-m", "chiplog_cli", "logs", "r", "--label", "rank3", "--follow"]
        follow = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        assert follow.stdout is not None
        training.stdin.write(b"\n")
        training.stdin.flush()
        node.until(lines, lambda rows: rows[-1]["line"] == "two")
        training.stdin.write(b"\n")
        training.stdin.close()
        assert training.wait(WAIT_S) == -signal.SIGABRT
        told = follow.communicate(timeout=WAIT_S)[0].decode().splitlines()
    finally:
        for process in filter(None, (training, follow)):
            if process.poll() is None:
                process.kill()
            process.wait()
    assert told == ["one", "two", "three"]
    rows = node.sql("SELECT label, attempt, state FROM labels")
    assert rows == [{"label": "rank3", "attempt": 0, "state": "crashed"}], "helpers are no attempts"
    node.until("SELECT * FROM events WHERE kind = 'console_helper'")
    (row,) = node.until("SELECT * FROM completeness", lambda rows: rows[0]["pending"] == 0)
    assert row["produced"] == row["stored"] + row["lost"]
