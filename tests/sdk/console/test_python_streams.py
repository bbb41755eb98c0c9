"""Capture of the streams: what is recorded, what reaches the terminal, and what is declared lost above the limit."""

import io
import logging
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

import chiplog
from chiplog.console import python_streams
from chiplog.console.lines import LineLimiter
from chiplog.console.python_streams import STDERR, STDOUT, PythonStreamCapture, ReentrancyGuard, TeeStream
from chiplog_schemas.limits import CONSOLE_BURST_LINES, CONSOLE_LINES_PER_S
from chiplog_schemas.model.events import EventKind
from tests.support.waiting import WAIT_S


def limiter(
    on_line: Callable[[int, int, str], None] = lambda *line: None,
    on_lost: Callable[[str, dict[str, int]], None] = lambda *notice: None,
    lines_per_s: float = CONSOLE_LINES_PER_S,
) -> LineLimiter:
    return LineLimiter(on_line, on_lost, lambda: True, lines_per_s, CONSOLE_BURST_LINES)


def tee_of(stream: io.StringIO, on_line: Callable[[str], None]) -> TeeStream:
    return TeeStream(stream, on_line, ReentrancyGuard(limiter()))


@pytest.fixture
def noted():
    """Return a Tee over a text buffer, and the lines that it noted."""
    lines: list[str] = []
    stream = io.StringIO()
    return tee_of(stream, lines.append), stream, lines


@pytest.mark.parametrize(
    ("written", "lines", "rest"),
    [
        (["one\n", "two\nthree\n"], ["one", "two", "three"], None),
        (["no end"], [], "no end"),
        (["10%\r", "20%\r", "100%\n"], [], "100%"),
        (["\r10%", "\r100%\n", "done\n"], ["100%", "done"], None),
        (["ü", "µ\n"], ["üµ"], None),
    ],
)
def test_lines_are_noted_when_they_end_with_progress_bars_folded(noted, written, lines, rest) -> None:
    tee, stream, found = noted
    assert [tee.write(text) for text in written] == [len(text) for text in written]
    assert found == lines
    assert tee.detach() is stream
    assert found == lines + ([] if rest is None else [rest])
    assert stream.getvalue() == "".join(written), "the terminal sees everything as it was written"


def test_the_last_state_of_a_bar_is_noted_by_a_later_tick(noted, monkeypatch) -> None:
    tee, _, lines = noted
    now = 0.0
    monkeypatch.setattr(python_streams, "time", SimpleNamespace(monotonic=lambda: now))
    tee.write("\r99%\r100%\n")
    tee.tick()
    assert lines == []
    now = 1.0
    tee.tick()
    assert lines == ["100%"]


def test_what_a_stream_can_do_the_tee_can_do(noted) -> None:
    tee, _, lines = noted
    tee.writelines(["a\n", "b\n"])
    tee.flush()
    assert lines == ["a", "b"]
    assert tee.getvalue() == "a\nb\n"
    assert not tee.isatty()
    with pytest.raises(AttributeError):
        _ = tee.no_such_thing


def test_an_error_while_noting_ends_the_noting_and_not_the_printing() -> None:
    def fail(line: str) -> None:
        raise RuntimeError("telemetry is broken")

    stream = io.StringIO()
    tee = tee_of(stream, fail)
    print("one", file=tee)
    print("two", file=tee)
    assert stream.getvalue() == "one\ntwo\n"


def test_a_print_while_a_line_is_noted_does_not_recurse() -> None:
    stream = io.StringIO()
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        print("noted", line, file=tee)

    tee = tee_of(stream, on_line)
    print("one", file=tee)
    assert lines == ["one"]
    assert stream.getvalue() == "one\nnoted one\n"


def test_threads_that_print_at_once_lose_no_line() -> None:
    lines: list[str] = []
    tee = tee_of(io.StringIO(), lines.append)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [
            threading.Thread(target=lambda who=who: [tee.write(f"{who} {i}\n") for i in range(1000)])
            for who in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    finally:
        sys.setswitchinterval(interval)
    assert sorted(lines) == sorted(f"{who} {i}" for who in range(4) for i in range(1000))


@pytest.fixture
def put_buffers(monkeypatch):
    """Return what puts buffers in place of the streams; pytest changes them itself between fixture and test."""

    def put() -> tuple[io.StringIO, io.StringIO]:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        return out, err

    return put


def test_both_streams_are_captured_numbered_together_and_given_back(put_buffers) -> None:
    streams = put_buffers()
    lines: list[tuple[int, int, str]] = []
    console = PythonStreamCapture(limiter(lambda *line: lines.append(line)))
    print("out")
    print("err", file=sys.stderr)
    print("unfinished", end="")
    console.close()
    print("after")
    assert lines == [(STDOUT, 1, "out"), (STDERR, 2, "err"), (STDOUT, 3, "unfinished")]
    assert (sys.stdout, sys.stderr) == streams
    assert streams[0].getvalue() == "out\nunfinishedafter\n"


def test_streams_that_somebody_put_in_place_later_are_left_alone(put_buffers) -> None:
    streams = put_buffers()
    lines: list[str] = []
    console = PythonStreamCapture(limiter(lambda stream, number, line: lines.append(line)))
    mine = io.StringIO()
    sys.stdout = mine
    console.close()
    assert sys.stdout is mine
    assert sys.stderr is streams[1]


def test_a_process_without_streams_can_be_captured_too(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    console = PythonStreamCapture(limiter())
    print("without a stream")
    assert sys.stdout is None
    console.release_in_child()
    console.close()
    assert sys.stdout is None


def test_lines_above_the_rate_limit_are_declared_with_their_number(put_buffers) -> None:
    """Noted + declared = printed."""
    put_buffers()
    noted: list[int] = []
    lost: list[int] = []
    lines = limiter(
        lambda stream, number, line: noted.append(number), lambda message, body: lost.append(body["lines"]), 0.0
    )
    console = PythonStreamCapture(lines)
    for _ in range(CONSOLE_BURST_LINES + 500):
        print("line")
    assert len(noted) == CONSOLE_BURST_LINES
    lines._bucket.allowance = 1.0  # time passes
    print("room again")
    assert lost == [500]
    assert noted[-1] == CONSOLE_BURST_LINES + 501, "the numbers of lines show the gap too"
    print("too much")
    console.close()
    assert lost == [500, 1]


def test_a_run_logs_what_is_printed_and_gives_the_streams_back(chiplog_dir, put_buffers, offline) -> None:
    streams = put_buffers()
    run = chiplog.init(mode="offline")
    print("hello")
    print("half \ud800", file=sys.stderr)
    print("still noted")
    run.finish()
    assert (sys.stdout, sys.stderr) == streams
    lines = [(e.fields["stream"], e.fields["line"]) for e in offline(EventKind.CONSOLE)]
    assert lines == [(STDOUT, "hello"), (STDERR, "half \\ud800"), (STDOUT, "still noted")]


def test_a_warning_of_ours_on_a_captured_stream_does_not_recurse(chiplog_dir, put_buffers, offline) -> None:
    put_buffers()
    run = chiplog.init(mode="offline")
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger("chiplog").addHandler(handler)
    try:
        run.log({"x": None})
    finally:
        logging.getLogger("chiplog").removeHandler(handler)
    run.finish()
    assert [e.fields["line"][:12] for e in offline(EventKind.CONSOLE)] == ["chiplog: 'x'"]


def test_lines_are_not_captured_when_that_is_not_wanted(chiplog_dir, put_buffers, offline) -> None:
    streams = put_buffers()
    run = chiplog.init(mode="offline", capture_console=False)
    assert (sys.stdout, sys.stderr) == streams
    print("hello")
    run.finish()
    assert offline(EventKind.CONSOLE) == []
