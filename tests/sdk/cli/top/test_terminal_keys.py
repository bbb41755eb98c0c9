"""Keys of a terminal: characters, arrows, and the modes that are restored."""

import os
import pty
import termios

import pytest

from chiplog_cli.top.terminal_keys import parse_keys, read_keys, unbuffered


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1bOF", ["page up", "page down", "home", "end"]),
        (b"\x1b", ["escape"]),
        (b"/a\xc3\xa9\r", ["/", "a", "é", "enter"]),
        (b"\x7f", ["backspace"]),
        (b"\x1b[24;5~s", ["s"]),  # a key that is not known
        (b"\x1b[", []),
        (b"\x01\xff\x00x", ["x"]),
    ],
)
def test_bytes_become_keys(data: bytes, keys: list[str]) -> None:
    assert parse_keys(data) == keys


def test_any_bytes_become_keys_without_an_end() -> None:
    for first in range(256):
        for second in range(256):
            parse_keys(bytes([first, second]))


def test_a_key_is_read_at_once_without_an_echo_and_the_modes_are_restored() -> None:
    master, slave = pty.openpty()
    try:
        before = termios.tcgetattr(slave)
        with unbuffered(slave):
            assert read_keys(slave, 0.0) == []
            os.write(master, b"s")
            assert read_keys(slave, 10.0) == ["s"]
            assert not termios.tcgetattr(slave)[3] & termios.ECHO
        assert termios.tcgetattr(slave)[3] == before[3]
    finally:
        os.close(slave)
        os.close(master)


def test_a_closed_input_is_an_end() -> None:
    read, write = os.pipe()
    os.close(write)
    try:
        assert read_keys(read, 1.0) == ["end of input"]
    finally:
        os.close(read)
