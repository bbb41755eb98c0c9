"""What a process writes becomes lines: split anywhere, progress bars folded, long lines cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiplog.console.lines import LineSplitter, collapse_overwrites, decode_line
from chiplog_schemas.limits import CONSOLE_LINE_CHARS_MAX

WRITTEN = st.lists(st.sampled_from([b"a", b"bc", b"\r", b"\n", b"\r\n", b"\b", b"\xff", "ü".encode()]), max_size=40)


def lines_of(*pieces: bytes) -> list[str]:
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return [decode_line(line) for line in lines + splitter.flush()]


@given(WRITTEN, st.integers(1, 5))
def test_lines_are_the_same_in_whatever_pieces_they_come(written: list[bytes], size: int) -> None:
    data = b"".join(written)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert lines_of(*pieces) == lines_of(data)


def test_a_line_is_complete_with_its_end_and_the_rest_comes_with_flush() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntwo") == [b"one"]
    assert splitter.feed(b" more\n\n") == [b"two more", b""]
    assert splitter.flush() == []
    splitter.feed(b"no end")
    assert splitter.flush() == [b"no end"]
    assert splitter.flush() == []


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("10%\r50%\r100%", "100%"),
        ("100%\r", "100%"),
        ("text\r\r", "text"),
        ("|/\b-", "|-"),
        ("ab\b\b\b\bc", "cb"),
        ("a\rb\bc", "c"),
    ],
)
def test_of_a_progress_bar_what_it_shows_at_last_is_kept(written: str, shown: str) -> None:
    assert collapse_overwrites(written) == shown


def test_bytes_that_are_no_utf8_can_be_had_back() -> None:
    assert decode_line(b"caf\xe9").encode("utf-8", "surrogateescape") == b"caf\xe9"


def test_a_long_line_is_cut_with_a_mark_and_one_without_end_takes_no_more_memory() -> None:
    whole = "ü" * CONSOLE_LINE_CHARS_MAX
    assert decode_line(whole.encode()) == whole
    splitter = LineSplitter()
    for _ in range(3):
        assert splitter.feed(f"{whole}ü".encode()) == []
    [kept] = splitter.flush()
    assert len(kept) < len(whole.encode()) * 3
    assert decode_line(kept) == whole[:-1] + "…"


def test_a_bar_that_never_ends_a_line_is_kept_as_its_last_state_only() -> None:
    splitter = LineSplitter()
    for percent in range(101):
        assert splitter.feed(b"\r%d%%" % percent) == []
    assert splitter.flush() == [b"100%"]
