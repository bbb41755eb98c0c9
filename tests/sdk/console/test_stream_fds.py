"""What takes the place of a stream: a pipe, or beside a terminal a pseudo-terminal of its size and modes."""

import fcntl
import os
import struct
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog.console.stream_fds import (
    FIRST,
    PIPE_BYTES,
    StreamFds,
    dup_above_stdio,
    fd_identity,
    inherited_pipes,
    open_stream_fds,
)


@pytest.fixture
def terminal() -> Iterator[int]:
    master, slave = os.openpty()
    yield slave
    os.close(master)
    os.close(slave)


def size_of(terminal: int) -> tuple[int, int]:
    rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(terminal, termios.TIOCGWINSZ, b"\0" * 8))
    return rows, columns


def set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def close(opened: StreamFds, replacement: int) -> None:
    for descriptor in {*opened.fds, replacement}:
        os.close(descriptor)


def test_a_file_gets_a_pipe_whose_other_end_has_what_is_written(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as file:
        opened, replacement = open_stream_fds(file.fileno())
        try:
            os.write(replacement, b"printed")
            assert os.read(opened.source, 100) == b"printed"
            assert opened.capacity_bytes == PIPE_BYTES
            assert fd_identity(opened.target) == fd_identity(file.fileno())
            assert not opened.sync_window_size()
            assert min(*opened.fds, replacement) >= FIRST
            assert not any(os.get_inheritable(descriptor) for descriptor in (*opened.fds, replacement))
        finally:
            close(opened, replacement)


def test_a_terminal_gets_a_terminal_of_its_size_that_follows_it(terminal: int) -> None:
    set_size(terminal, 40, 132)
    opened, replacement = open_stream_fds(terminal)
    try:
        assert os.isatty(replacement) and os.ttyname(replacement) == opened.name
        assert size_of(replacement) == (40, 132)
        assert not opened.sync_window_size()
        set_size(terminal, 24, 80)
        assert opened.sync_window_size()
        assert size_of(replacement) == (24, 80)
        os.write(replacement, b"a\nb")
        assert os.read(opened.source, 100) == b"a\nb", "the real terminal processes the output"
    finally:
        close(opened, replacement)


def test_a_terminal_that_is_gone_changes_no_size(terminal: int) -> None:
    opened, replacement = open_stream_fds(terminal)
    try:
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), opened.target)
        assert not opened.sync_window_size()
    finally:
        close(opened, replacement)


def test_another_process_gets_the_numbers_that_the_descriptors_have_there(terminal: int) -> None:
    opened, replacement = open_stream_fds(terminal)
    try:
        given = {descriptor: 100 + number for number, descriptor in enumerate(opened.fds)}
        there = StreamFds(*opened.to_helper_args(given))
        assert there.fds == (100, 101)
        assert (there.stream, there.name) == (opened.stream, opened.name)
    finally:
        close(opened, replacement)


def test_a_forked_child_writes_to_what_its_parents_stream_was(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as file:
        read, write = os.pipe()  # the parent's, in place of the file
        inherited_pipes[write] = (fd_identity(write), file.fileno())
        try:
            opened, replacement = open_stream_fds(write)
            assert fd_identity(opened.target) == fd_identity(file.fileno())
            close(opened, replacement)
            inherited_pipes[write] = (fd_identity(read)[0], -1), file.fileno()  # something else was put there
            opened, replacement = open_stream_fds(write)
            assert fd_identity(opened.target) == fd_identity(write)
            close(opened, replacement)
        finally:
            del inherited_pipes[write]
            os.close(read)
            os.close(write)


def test_a_stream_that_is_closed_leaves_no_descriptor_open() -> None:
    read, write = os.pipe()
    os.close(write)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        open_stream_fds(write)
    assert set(os.listdir("/proc/self/fd")) == before
    os.close(read)


def test_a_descriptor_above_the_standard_streams_stays_where_it_is() -> None:
    read, write = os.pipe()
    assert dup_above_stdio(read) == read
    os.close(read)
    os.close(write)
    assert fd_identity(write) == (-1, -1)
