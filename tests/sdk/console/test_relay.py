"""Bytes relayed unchanged and returned, by one process at a time, which may be killed at any moment."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog.console.relay import RelayLock, StreamRelay, bytes_available, is_filling
from chiplog.console.stream_fds import StreamFds, open_stream_fds
from tests.support.console import script
from tests.support.waiting import WAIT_S, wait_until


def test_a_file_that_is_appended_to_gets_every_byte(chiplog_dir, tmp_path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("before\n")
    path = script(tmp_path, "run = init()\nfor n in range(3000): print(n)\nprint('e', file=sys.stderr)\n")
    with open(target, "ab") as file:
        assert subprocess.run([sys.executable, path], stdout=file, stderr=file, timeout=WAIT_S).returncode == 0
    expected = sorted(["before", "e", *map(str, range(3000))])
    wait_until(lambda: sorted(target.read_text().splitlines()) == expected, "all lines in the file")


class Captured:
    """A pipe in place of a stream, and its relay."""

    def __init__(self, target: int, *, terminal: int | None = None) -> None:
        if terminal is None:
            source, self.writer = os.pipe()
            os.set_blocking(source, False)
            self.fds = StreamFds(1, source, os.dup(target))
        else:
            self.fds, self.writer = open_stream_fds(terminal)
            self.fds.stream = 1  # the number of the terminal's descriptor counts nothing
        self.relay = StreamRelay(self.fds)

    def write(self, data: bytes) -> None:
        assert os.write(self.writer, data) == len(data)

    def relayed(self, *, waits: bool = True) -> bytes:
        return b"".join(self.relay.relay_all(waits=waits))

    def end(self) -> None:
        """Close the last writer."""
        os.close(self.writer)
        self.writer = -1

    def close(self) -> None:
        if self.writer >= 0:
            self.end()
        self.relay.close()


@pytest.fixture
def capture() -> Iterator[Callable[..., Captured]]:
    opened: list[Captured] = []

    def open_on(target: int, **options: Any) -> Captured:
        opened.append(Captured(target, **options))
        return opened[-1]

    yield open_on
    for captured in opened:
        captured.close()


@pytest.mark.parametrize("flags", [0, os.O_APPEND], ids=["a file", "a file that is appended to"])
def test_bytes_are_relayed_in_order_and_returned(capture, tmp_path: Path, flags: int) -> None:
    target = os.open(tmp_path / "target", os.O_WRONLY | os.O_CREAT | flags)
    captured = capture(target)
    assert captured.relayed() == b""
    captured.write(b"one\n")
    captured.write(b"\xff\0two")
    assert captured.relayed() == b"one\n\xff\0two"
    captured.write(b"three")
    assert captured.relayed() == b"three"
    assert (tmp_path / "target").read_bytes() == b"one\n\xff\0twothree"
    assert (captured.relay.has_ended, captured.relay.reader_closed, captured.relay.write_error) == (False, False, None)
    os.close(target)


def test_a_stream_ends_once_its_writers_have_closed_and_all_is_relayed(capture, tmp_path: Path) -> None:
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
        assert captured.relayed() == b"x", "the rest comes with the next pass"


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
        assert captured.relayed() == b"refused\n"
        assert captured.relay.write_error is not None
        assert captured.relay.write_error.errno == errno.ENOSPC
        assert not captured.relay.reader_closed
        with open(os.devnull, "wb") as other:
            os.dup2(other.fileno(), captured.fds.target)  # there is room again
        captured.write(b"taken\n")
        assert captured.relayed() == b"taken\n"
        assert captured.relay.write_error is None


def full_pipe() -> tuple[int, int]:
    """Return both ends of a pipe that takes no byte."""
    reader, target = os.pipe()
    os.set_blocking(target, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(target, b"." * 4096)
    return reader, target


def test_a_target_that_is_full_for_a_while_gets_every_byte(capture) -> None:
    reader, target = full_pipe()
    n_before = bytes_available(reader)
    captured = capture(target)
    captured.write(b"waits")
    relaying = threading.Thread(target=captured.relayed)
    relaying.start()
    wait_until(lambda: bytes_available(captured.fds.source) == 0, "a relay that waits for its target")
    assert os.read(reader, n_before) == b"." * n_before
    relaying.join(WAIT_S)
    assert os.read(reader, 100) == b"waits"
    os.close(reader)
    os.close(target)


def test_what_is_written_to_a_terminal_reaches_the_terminal_as_it_was(capture) -> None:
    master, slave = os.openpty()
    captured = capture(slave, terminal=slave)
    assert captured.fds.capacity_bytes == 4096
    captured.write(b"a\nb")
    found = b""
    while len(found) < 3:
        found += captured.relayed()
    assert found == b"a\nb"
    assert os.read(master, 100) == b"a\r\nb", "the real terminal processes the output, once"
    captured.end()
    wait_until(lambda: captured.relayed() == b"" and captured.relay.has_ended, "the end of the terminal's stream")
    os.close(master)
    os.close(slave)


def test_a_pipe_that_is_a_quarter_full_is_filling(capture) -> None:
    with open(os.devnull, "wb") as target:
        captured = capture(target.fileno())
        captured.write(b"x" * (captured.fds.capacity_bytes // 4))
        assert not is_filling(captured.fds)
        captured.write(b"x")
        assert is_filling(captured.fds)
        assert captured.relayed() == b"x" * (captured.fds.capacity_bytes // 4 + 1)
        assert not is_filling(captured.fds)


def test_a_rank_does_not_wait_for_a_slow_reader(capture) -> None:
    reader, target = full_pipe()
    os.set_blocking(target, True)
    captured = capture(target)
    captured.write(b"x" * 10_000)
    assert captured.relayed(waits=False) == b""
    os.read(reader, 8192)
    assert captured.relayed(waits=False) == b"x" * 8192
    os.read(reader, 1 << 20)
    assert captured.relayed(waits=False) == b"x" * (10_000 - 8192)
    assert captured.relayed(waits=False) == b""
    os.close(reader)
    os.close(target)


def test_a_terminal_that_is_gone_does_not_fill() -> None:
    closed, other = os.pipe()
    os.close(closed)
    os.close(other)
    assert not is_filling(StreamFds(1, closed, other))
    assert not is_filling(StreamFds(1, closed, other, "/dev/pts/0"))


OTHER = """
import sys
from chiplog.console.relay import RelayLock
lock = RelayLock(int(sys.argv[1]))
print(lock.acquire(), flush=True)
print(lock.line_no, lock.take_begun(), lock.take_begun(), flush=True)
lock.line_no = 8
lock.leave_begun({2: b"three"})
print("left", flush=True)
sys.stdin.readline()
"""


def test_one_process_relays_and_leaves_the_next_one_the_last_number_and_begun_lines() -> None:
    with open(os.memfd_create("lock"), "wb") as memory:
        lock = RelayLock(memory.fileno())
        assert (lock.line_no, lock.take_begun()) == (0, {})
        lock.line_no = 7
        lock.leave_begun({1: b"one \xff", 2: b""})
        command = [sys.executable, "-c", OTHER, str(memory.fileno())]
        with subprocess.Popen(
            command, pass_fds=[memory.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "True\n"
            assert other.stdout.readline() == "7 {1: b'one \\xff', 2: b''} {}\n"
            assert other.stdout.readline() == "left\n"
            assert not lock.acquire()
            other.send_signal(signal.SIGKILL)
            assert lock.acquire(wait=True)
        assert (lock.line_no, lock.take_begun(), lock.take_begun()) == (8, {2: b"three"}, {})
        lock.release()


def test_the_begin_of_an_endless_line_is_cut() -> None:
    with open(os.memfd_create("lock"), "wb") as memory:
        lock = RelayLock(memory.fileno())
        lock.leave_begun({1: b"x" * 1_000_000})
        assert set(lock.take_begun()[1]) == set(b"x")
        assert os.fstat(memory.fileno()).st_size < 100_000
