"""Bytes relayed unchanged, by a process that may be killed at any moment, and copied."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog.console.relay import SpliceRelay, bytes_available, drain_lines, is_filling, read_all
from chiplog.console.shared_counters import SharedCounters
from chiplog.console.stream_fds import StreamFds, open_stream_fds
from tests.support.console import script
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until


@proves("killed-helper-leaves-bytes", "what a killed helper had not passed on is still in the pipe", value="-1")
def test_a_helper_that_is_killed_while_the_reader_is_slow_costs_the_terminal_nothing(chiplog_dir, tmp_path) -> None:
    flag = tmp_path / "killed"
    body = f"""
    run = init()
    victim = helper_of(run)
    os.write(1, b"".join(b"%06d\\n" % n for n in range(28000)))  # more than the reader's pipe holds, less than ours
    tally = run._console._pipes._tally
    while not tally.is_waiting: time.sleep(0.01)
    time.sleep(0.1)
    os.kill(victim, signal.SIGKILL)
    while run._console.helper in (0, victim): time.sleep(0.01)
    open({str(flag)!r}, "w").close()
    """
    training = subprocess.Popen([sys.executable, script(tmp_path, body)], stdout=subprocess.PIPE)
    wait_until(flag.exists, "a helper that was killed")
    assert training.communicate(timeout=WAIT_S)[0].decode().splitlines() == [f"{n:06d}" for n in range(28_000)]


def test_a_file_that_is_appended_to_gets_every_byte(chiplog_dir, tmp_path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("before\n")
    path = script(tmp_path, "run = init()\nfor n in range(3000): print(n)\nprint('e', file=sys.stderr)\n")
    with open(target, "ab") as file:
        assert subprocess.run([sys.executable, path], stdout=file, stderr=file, timeout=WAIT_S).returncode == 0
    expected = sorted(["before", "e", *map(str, range(3000))])
    wait_until(lambda: sorted(target.read_text().splitlines()) == expected, "all lines in the file")


class Captured:
    """A pipe in place of a stream, its relay, and the counters of both."""

    def __init__(self, target: int, tally: SharedCounters, *, terminal: int | None = None) -> None:
        self.tally = tally
        if terminal is None:
            source, self.writer = os.pipe()
            self.ends = StreamFds(1, source, os.dup(target))
        else:
            self.ends, self.writer = open_stream_fds(terminal)
            self.ends.stream = 1  # the number of the terminal's descriptor counts nothing
        self.relay = SpliceRelay(self.ends, tally)

    def write(self, data: bytes) -> None:
        assert os.write(self.writer, data) == len(data)

    def moved(self) -> bytes:
        return b"".join(self.relay.relay_all())

    def end(self) -> None:
        """Close the last writer."""
        os.close(self.writer)
        self.writer = -1

    def close(self) -> None:
        if self.writer >= 0:
            self.end()
        self.relay.close()


@pytest.fixture
def tally() -> Iterator[SharedCounters]:
    memory = os.memfd_create("tally")
    os.ftruncate(memory, SharedCounters.SIZE)
    counters = SharedCounters(memory)
    yield counters
    counters.close()
    os.close(memory)


@pytest.fixture
def capture(tally: SharedCounters) -> Iterator[Callable[..., Captured]]:
    opened: list[Captured] = []

    def open_on(target: int, **options: Any) -> Captured:
        opened.append(Captured(target, tally, **options))
        return opened[-1]

    yield open_on
    for captured in opened:
        captured.close()


@pytest.mark.parametrize("flags", [0, os.O_APPEND], ids=["spliced", "copied to a file that is appended to"])
def test_bytes_are_moved_in_order_and_returned_and_counted(capture, tally, tmp_path: Path, flags: int) -> None:
    target = os.open(tmp_path / "target", os.O_WRONLY | os.O_CREAT | flags)
    captured = capture(target)
    assert captured.moved() == b""
    captured.write(b"one\n")
    captured.write(b"\xff\0two")
    assert captured.moved() == b"one\n\xff\0two"
    captured.write(b"three")
    assert captured.moved() == b"three"
    assert (tmp_path / "target").read_bytes() == b"one\n\xff\0twothree"
    assert (tally.passed(1), tally.is_waiting) == (14, False)
    assert (captured.relay.has_ended, captured.relay.reader_closed, captured.relay.write_error) == (False, False, None)
    os.close(target)


@pytest.mark.parametrize("flags", [0, os.O_APPEND], ids=["spliced", "copied to a file that is appended to"])
def test_what_a_killed_process_moved_and_had_not_counted_yet_is_counted(
    capture, tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int
) -> None:
    target = os.open(tmp_path / "target", os.O_WRONLY | os.O_CREAT | flags)
    captured = capture(target)
    captured.write(b"shown\n")
    pid = os.fork()
    if not pid:
        monkeypatch.setattr(tally, "note_passed", lambda *given: os.kill(os.getpid(), signal.SIGKILL))
        captured.moved()
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert (tmp_path / "target").read_bytes() == b"shown\n"
    assert (captured.moved(), tally.passed(1)) == (b"", 0)
    for _ in range(2):
        SpliceRelay(captured.ends, tally).close_copy()  # of its successors
        assert tally.passed(1) == 6
    os.close(target)


def test_a_stream_ends_once_its_writers_have_closed_and_all_is_moved(capture, tmp_path: Path) -> None:
    with open(tmp_path / "target", "wb") as target:
        captured = capture(target.fileno())
        captured.write(b"last words")
        captured.end()
        assert captured.relay.relay() == b"last words"
        assert not captured.relay.has_ended
        assert captured.relay.relay() == b""
        assert captured.relay.has_ended


def test_one_pass_ends_although_the_process_keeps_writing(capture) -> None:
    with open(os.devnull, "wb") as target:
        captured = capture(target.fileno())
        captured.write(b"x")
        for n_chunks, _ in enumerate(captured.relay.relay_all()):
            captured.write(b"x")
            assert n_chunks < 1000
        assert captured.moved() == b"x", "the rest comes with the next pass"


def test_a_target_without_a_reader_is_known_and_costs_no_line(capture) -> None:
    reader, target = os.pipe()
    captured = capture(target)
    os.close(reader)
    captured.write(b"shown to no reader\n")
    assert captured.relay.relay() == b"shown to no reader\n"
    assert captured.relay.reader_closed
    assert captured.relay.write_error is None
    os.close(target)


def test_a_full_disk_costs_what_it_refuses_and_no_line(capture) -> None:
    with open("/dev/full", "wb", buffering=0) as target:
        captured = capture(target.fileno())
        captured.write(b"refused\n")
        assert captured.moved() == b"refused\n"
        assert captured.relay.write_error is not None
        assert captured.relay.write_error.errno == errno.ENOSPC
        assert not captured.relay.reader_closed
        with open(os.devnull, "wb") as other:
            os.dup2(other.fileno(), captured.ends.target)  # there is room again
        captured.write(b"taken\n")
        assert captured.moved() == b"taken\n"
        assert captured.relay.write_error is None


def test_a_target_that_is_full_for_a_while_gets_every_byte(capture, tally) -> None:
    reader, target = os.pipe()
    os.set_blocking(target, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(target, b"." * 4096)
    n_before = bytes_available(reader)
    captured = capture(target)
    captured.write(b"waits")
    moving = threading.Thread(target=captured.moved)
    moving.start()
    wait_until(lambda: tally.is_waiting, "a relay that waits for its target")
    assert len(read_all(reader, n_before)) == n_before
    moving.join(WAIT_S)
    assert read_all(reader, 5) == b"waits"
    assert not tally.is_waiting
    os.close(reader)
    os.close(target)


def test_a_source_that_cannot_be_copied_in_the_kernel_is_read(capture, tally, tmp_path: Path) -> None:
    other, theirs = socket.socketpair()
    with open(tmp_path / "target", "wb") as target:
        captured = capture(target.fileno())
        os.dup2(theirs.fileno(), captured.ends.source)
        theirs.close()
        assert captured.relay.capacity_bytes == 0
        other.send(b"through a socket")
        assert captured.moved() == b"through a socket"
        other.close()
        assert captured.moved() == b""
        assert captured.relay.has_ended
        assert (tmp_path / "target").read_bytes() == b"through a socket"
        assert tally.passed(1) == 16


def test_what_is_written_to_a_terminal_reaches_the_terminal_as_it_was(capture) -> None:
    master, slave = os.openpty()
    captured = capture(slave, terminal=slave)
    assert captured.relay.capacity_bytes == 4096
    captured.write(b"a\nb")
    found = b""
    while len(found) < 3:
        found += captured.moved()
    assert found == b"a\nb"
    assert os.read(master, 100) == b"a\r\nb", "the real terminal processes the output, once"
    captured.end()
    wait_until(lambda: captured.moved() == b"" and captured.relay.has_ended, "the end of the terminal's stream")
    os.close(master)
    os.close(slave)


def test_lines_are_taken_whole_and_the_rest_stays_in_the_pipe(capture, tally, tmp_path: Path) -> None:
    with open(tmp_path / "target", "wb") as target:
        captured = capture(target.fileno())
        assert drain_lines(captured.ends, tally) == b""
        captured.write(b"one\ntwo\nunfini")
        assert drain_lines(captured.ends, tally) == b"one\ntwo\n"
        assert drain_lines(captured.ends, tally) == b""
        assert bytes_available(captured.ends.source) == 6
        captured.write(b"shed\n")
        assert drain_lines(captured.ends, tally) == b"unfinished\n"
        assert (tmp_path / "target").read_bytes() == b"one\ntwo\nunfinished\n"


def test_a_line_that_fills_the_pipe_is_not_waited_for(capture, tally) -> None:
    with open(os.devnull, "wb") as target:
        captured = capture(target.fileno())
        quarter = fcntl.fcntl(captured.ends.source, fcntl.F_GETPIPE_SZ) // 4
        captured.write(b"x" * quarter)
        assert not is_filling(captured.ends)
        assert drain_lines(captured.ends, tally) == b""
        captured.write(b"x")
        assert is_filling(captured.ends)
        assert drain_lines(captured.ends, tally) == b"x" * (quarter + 1)
        assert not is_filling(captured.ends)


def test_a_rank_that_drains_lines_does_not_wait_for_a_slow_reader(capture, tally) -> None:
    reader, target = os.pipe()
    os.write(target, b"unread")
    captured = capture(target)
    captured.write(b"a line\n")
    assert drain_lines(captured.ends, tally) == b""
    assert os.read(reader, 100) == b"unread"
    assert drain_lines(captured.ends, tally) == b"a line\n"
    assert os.read(reader, 100) == b"a line\n"
    os.close(reader)
    os.close(target)


def test_a_terminal_that_is_gone_does_not_fill() -> None:
    closed, other = os.pipe()
    os.close(closed)
    os.close(other)
    assert not is_filling(StreamFds(1, closed, other))
    assert not is_filling(StreamFds(1, closed, other, master=closed))
