"""Displays that move the cursor become one line per row, with its last state: by hand, and with tqdm and rich."""

import fcntl
import os
import pty
import random
import re
import struct
import subprocess
import sys
import termios

import pytest

from chiplog.console.lines import ByteSplitter, LineSplitter
from chiplog.console.screen import REDRAW_S, ROWS_MAX, SETTLE_S, Screen
from chiplog_schemas.limits import CONSOLE_LINE_CHARS_MAX

ESCAPE = re.compile(r"\x1b(?!\[[0-9;:]*m)|[\r\b]")


def rows_of(*pieces: str) -> list[str]:
    screen = Screen(0.0)
    return [line for piece in pieces for line in screen.feed(piece, 0.0)] + screen.flush()


@pytest.mark.parametrize(
    ("written", "rows"),
    [
        ("a\r\n\rb 1\x1b[A\n\rb 2\x1b[A\ra 2", ["a 2", "b 2"]),  # tqdm: a bar below the cursor's row
        ("one\n\x1b[Fxx\n", ["xxe"]),  # F: up, to the first column
        ("one\ntwo\x1b[2Dx", ["one", "txo"]),  # D: left
        ("ab\x1b[2Cx", ["ab  x"]),  # C: right
        ("abc\x1b[2Gx", ["axc"]),  # G: to a column
        ("a\x1b[2Bb", ["a", " b"]),  # B: down
        ("a\x1b[Eb", ["a", "b"]),  # E: down, to the first column
        ("x\x1b[2;3Hy", ["x", "  y"]),  # H: to row 2, column 3
        ("abc\x1b[2D\x1b[K", ["a"]),  # K: to the end of the row
        ("abc\x1b[2D\x1b[1K", ["  c"]),  # 1K: from its beginning
        ("abc\r\x1b[2Kd", ["d"]),  # 2K: the row
        ("a\nb\nc\x1b[2A\x1b[J", ["a"]),  # J: to the end of the screen
        ("a\nb\x1b[1J", []),  # 1J: from its beginning
        ("a\nb\x1b[2Jc", [" c"]),  # 2J: all of it
        ("\r\x1b[32mgreen\x1b[0m plain", ["\x1b[32mgreen\x1b[0m plain"]),
        ("\r\x1b[1m\x1b[31mab\x1b[0m\rcd", ["cd"]),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\x1b[?25l\x1b7\x1b(B!", ["link!"]),  # a hyperlink and others
        ("a\x1b[12\nb", ["a[12", "b"]),  # an invalid sequence
    ],
)
def test_a_row_has_what_the_terminal_shows(written: str, rows: list[str]) -> None:
    screen = Screen(0.0)
    screen.feed("\x1b[?25l", 0.0)  # nothing is final before the end
    assert screen.feed(written, 0.0) == []
    assert screen.flush() == rows


def test_sequences_may_come_in_pieces() -> None:
    written = "\router 0\n\r\x1b[31minner 0\x1b[0m\x1b[A\x1b]0;title\x07\n\rinner 1\x1b[A\router 1\n\n"
    assert rows_of(*written) == rows_of(written) == ["outer 1", "inner 1"]


@pytest.mark.parametrize("n_chars", [1, 3, 10_000])
@pytest.mark.parametrize("move", ["\x1b[2J\x1b[H", "\x1b[A\x1b[A\x1b[J", "\x1b[A\r\x1b[2K", "\x1b[1J"])
def test_what_was_printed_before_a_display_stays_however_the_text_is_cut(n_chars: int, move: str) -> None:
    written = f"epoch 1\nepoch 2\n{move}panel\n"
    splitter = LineSplitter()
    pieces = (written[at : at + n_chars] for at in range(0, len(written), n_chars))
    lines = [line for piece in pieces for line in splitter.feed(piece, 0.0)] + splitter.flush()
    assert lines == ["epoch 1", "epoch 2", "panel"]


def test_a_row_within_the_reach_of_a_display_is_held_longer() -> None:
    splitter = LineSplitter()
    assert splitter.feed("\router\n\rinner\x1b[A\n", 0.0) == []
    assert splitter.settle(SETTLE_S + 0.1) == []
    assert splitter.feed("\rinner 2\x1b[A\n", 5.0) == []  # moves over both
    assert splitter.settle(5.0 + REDRAW_S - 0.1) == []
    assert splitter.settle(5.0 + REDRAW_S) == ["outer"]
    assert splitter.flush() == ["inner 2"]


def test_what_is_printed_above_a_display_is_final_soon() -> None:
    splitter = LineSplitter()
    splitter.feed("\x1b[?25l\ra\n\rb", 0.0)
    for number in range(5):
        now = 0.1 * number
        splitter.feed(f"\r\x1b[2K\x1b[1A\x1b[2Ktext {number}\na {number}\nb {number}", now)
    splitter.feed("\x1b[?25h", 0.5)
    assert splitter.settle(0.5 + SETTLE_S) == [f"text {number}" for number in range(5)]
    assert splitter.flush() == ["a 4", "b 4"]


def test_a_display_that_starts_at_the_top_of_the_screen_is_one_line_per_row() -> None:
    assert rows_of(*(f"\x1b[H\x1b[2Jfirst {n}\nsecond {n}\n" for n in range(30))) == ["first 29", "second 29"]


def test_rows_and_columns_are_bounded() -> None:
    splitter = LineSplitter()
    lines = splitter.feed("\x1b[?25l" + "".join(f"\r{n}\n" for n in range(1000)), 0.0)
    assert len(lines) >= 1000 - ROWS_MAX
    assert lines + splitter.flush() == [str(n) for n in range(1000)]
    splitter.feed(f"\x1b[{'9' * 5000}B\x1b[{'9' * 5000}Cx" + "\r\ry" * 3 + "z" * 100_000, 0.0)
    assert max(map(len, splitter.flush())) == CONSOLE_LINE_CHARS_MAX
    assert len(Screen(0.0).feed("\x1b]" + "x" * 100_000 + "\n", 0.0)[0]) <= CONSOLE_LINE_CHARS_MAX + 1


def test_any_bytes_are_read_to_the_end() -> None:
    """Whatever is written, in pieces of any size, raises nothing, and what follows without controls is whole."""
    chooser = random.Random(7)
    parts = [
        b"\x1b",
        b"[",
        b"A",
        b"2J",
        b"H",
        b";",
        b"25l",
        b"?",
        b"m",
        b"31",
        b"\r",
        b"\n",
        b"\b",
        b"]",
        b"\x07",
        b"x",
    ]
    for _ in range(300):
        splitter = ByteSplitter()
        data = b"".join(chooser.choices(parts, k=chooser.randrange(60)))
        lines = [line for at in range(0, len(data), 3) for line in splitter.feed_bytes(data[at : at + 3], at / 10)]
        lines += splitter.flush()
        assert not any(ESCAPE.search(line) for line in lines), data
        assert splitter.feed_bytes(b"plain\n", 1e6) == ["plain"]
        assert rows_of(data.decode()) == rows_of(*data.decode()), data


BARS = {
    "tqdm": """
from tqdm import tqdm
for i in tqdm(range(3), desc="outer", mininterval=0):
    for _ in tqdm(range(100), desc="inner", leave=False, mininterval=0):
        pass
    tqdm.write(f"text {i}")
print("after")
""",
    "rich": """
from rich.progress import Progress
with Progress(auto_refresh=False) as progress:
    outer, inner = progress.add_task("outer", total=300), progress.add_task("inner", total=300)
    for i in range(300):
        progress.advance(outer)
        progress.advance(inner)
        progress.refresh()
        if i % 100 == 0:
            progress.console.print("text", i // 100)
print("after")
""",
}


@pytest.mark.parametrize("name", BARS)
def test_300_nested_updates_leave_one_row_per_bar_and_what_was_printed(name: str) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    program = subprocess.Popen([sys.executable, "-c", BARS[name]], stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    splitter, lines = ByteSplitter(), []
    try:
        while data := os.read(master, 4096):
            lines += splitter.feed_bytes(data, 0.0)
    except OSError:
        pass  # EIO: the program has ended
    os.close(master)
    assert program.wait() == 0
    lines += splitter.flush()
    assert not any(ESCAPE.search(line) for line in lines)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    bars = [line for line in plain if line.startswith(("outer", "inner"))]
    assert [line for line in plain if line not in bars] == ["text 0", "text 1", "text 2", "after"]
    assert [line.partition(" ")[0].rstrip(":") for line in bars] == (
        ["outer"] if name == "tqdm" else ["outer", "inner"]
    )
    assert all("100%" in line for line in bars)
