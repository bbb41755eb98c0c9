"""What a process writes becomes lines: split anywhere, progress bars folded, long lines cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiplog.console.lines import ByteSplitter, LineLimiter, LineSplitter
from chiplog_schemas.limits import CONSOLE_LINE_CHARS_MAX

PIECES = [b"a", b"bc", b"\r", b"\n", b"\r\n", b"\b", b"\xff", "ü".encode(), b"\x1b[A", b"\x1b[K"]
WRITTEN = st.lists(st.sampled_from(PIECES), max_size=40)


def lines_of(*pieces: bytes) -> list[str]:
    splitter = ByteSplitter()
    lines = [line for piece in pieces for line in splitter.feed_bytes(piece, 0.0)]
    return lines + splitter.flush()


@given(WRITTEN, st.integers(1, 5))
def test_lines_are_the_same_in_whatever_pieces_they_come(written: list[bytes], size: int) -> None:
    data = b"".join(written)
    if b"\x1b[A" in written:
        data = b"\x1b[?25l" + data  # a display: else lines are final before the cursor moves up to them
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert lines_of(*pieces) == lines_of(data)


def test_a_line_is_complete_with_its_end_and_the_rest_comes_with_flush() -> None:
    splitter = LineSplitter()
    assert splitter.feed("one\ntwo", 0.0) == ["one"]
    assert splitter.feed(" more\n\n", 0.0) == ["two more", ""]
    assert splitter.flush() == []
    splitter.feed("no end", 0.0)
    assert splitter.flush() == ["no end"]
    assert splitter.flush() == []
    assert not splitter.is_holding


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("10%\r50%\r100%", "100%"),
        ("100%\r", "100%"),
        ("windows\r\n", "windows"),
        ("text\r\r", "text"),
        ("|/\b-", "|-"),
        ("ab\b\b\b\bc", "cb"),
        ("a\rb\bc", "c"),
    ],
)
def test_of_a_progress_bar_what_it_shows_at_last_is_kept(written: str, shown: str) -> None:
    assert lines_of(written.encode()) == [shown]


def test_bytes_that_are_no_utf8_can_be_had_back() -> None:
    [line] = lines_of(b"caf\xe9")
    assert line.encode("utf-8", "surrogateescape") == b"caf\xe9"
    assert lines_of(b"caf" + "é".encode()[:1], "é".encode()[1:] + b"\n") == ["café"]


def test_a_long_line_is_cut_with_a_mark_and_one_without_end_takes_no_more_memory() -> None:
    whole = "ü" * CONSOLE_LINE_CHARS_MAX
    assert lines_of(whole.encode()) == [whole]
    splitter = LineSplitter()
    for _ in range(3):
        assert splitter.feed(f"{whole}ü", 0.0) == []
    assert len(splitter.partial) == CONSOLE_LINE_CHARS_MAX + 1
    assert splitter.flush() == [whole[:-1] + "…"]


def test_a_bar_that_never_ends_a_line_is_kept_as_its_last_state_only() -> None:
    splitter = LineSplitter()
    for percent in range(101):
        assert splitter.feed(f"\r{percent}%", 0.0) == []
    assert splitter.flush() == ["100%"]


def test_plain_lines_are_final_at_once_again_after_a_bar() -> None:
    splitter = LineSplitter()
    assert splitter.feed("\r10%\r100%\n", 0.0) == []
    assert splitter.is_holding
    assert splitter.feed("done\nnext", 0.1) == ["100%", "done"]
    assert splitter.feed(" line\n", 0.2) == ["next line"]
    assert not splitter.is_holding


def test_a_bar_that_has_ended_is_final_after_a_second() -> None:
    splitter = LineSplitter()
    assert splitter.feed("\r10%\r100%\n", 0.0) == []
    assert splitter.settle(0.5) == []
    assert splitter.settle(1.0) == ["100%"]
    assert not splitter.is_holding


def test_dropped_lines_are_numbered_and_declared_before_the_next_line() -> None:
    events: list[object] = []
    has_room = True
    limiter = LineLimiter(
        lambda *line: events.append(line), lambda *notice: events.append(notice), lambda: has_room, 1, 2, last_line_no=7
    )
    limiter.take(1, [f"line {number}" for number in range(4)], 10.0)
    has_room = False
    limiter.take(2, ["no room"], 20.0)
    has_room = True
    limiter.take(2, ["room again"], 20.0)
    limiter.declare()
    message = "3 lines above the rate limit, or while the journal was nearly full"
    assert events == [(1, 8, "line 0"), (1, 9, "line 1"), (message, {"lines": 3}), (2, 13, "room again")]
    assert limiter.line_no == 13
