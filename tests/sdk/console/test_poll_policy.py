"""How the console's helper sleeps: quiet streams wake it, and while one is busy a timer does."""

import pytest

from chiplog.console.poll_policy import BURST_REST_S, POLL_INTERVAL_S, QUIET_S, StreamRate, uses_timer

PIPE, TERMINAL = 64 << 10, 4 << 10


@pytest.fixture
def out() -> StreamRate:
    return StreamRate(PIPE, is_terminal=False)


@pytest.fixture
def err() -> StreamRate:
    return StreamRate(PIPE, is_terminal=False)


def write(rate: StreamRate, times: int, *, every: float, begin: float, n_bytes: int = 2) -> float:
    """Note writes at a steady pace; return when the last one came."""
    for number in range(times):
        rate.record_write(n_bytes, begin + number * every)
    return begin + (times - 1) * every


def test_a_stream_wakes_until_it_is_written_to_all_the_time_and_again_when_it_was_quiet(out, err) -> None:
    assert not uses_timer([out, err], 0.0)
    out.record_write(6, 0.0)
    assert not uses_timer([out, err], 0.0)
    now = write(out, 3, every=QUIET_S / 2, begin=QUIET_S / 2)
    assert uses_timer([out, err], now)
    err.record_write(2, now)  # a second, quiet stream changes nothing
    assert uses_timer([out, err], now + 0.9 * QUIET_S)
    assert not uses_timer([out, err], now + 1.1 * QUIET_S)


def test_a_stream_that_is_written_to_now_and_then_wakes_each_time(out, err) -> None:
    for number in range(10):
        out.record_write(2, number * 2 * QUIET_S)
        assert not uses_timer([out, err], number * 2 * QUIET_S)


@pytest.mark.parametrize("bytes_per_look", [PIPE // 4 + 1, PIPE])
def test_a_stream_that_fills_its_pipe_between_two_looks_wakes(out, err, bytes_per_look) -> None:
    now = write(out, 5, every=POLL_INTERVAL_S, begin=0.0, n_bytes=bytes_per_look)
    assert not uses_timer([out, err], now)
    now = write(out, 3, every=POLL_INTERVAL_S, begin=now + POLL_INTERVAL_S)
    assert uses_timer([out, err], now)


def test_a_stream_that_fills_its_pipe_in_small_pieces_wakes_also_beside_a_busy_one(out, err) -> None:
    now = write(out, 100, every=POLL_INTERVAL_S / 50, begin=0.0, n_bytes=1000)
    write(err, 100, every=POLL_INTERVAL_S / 50, begin=0.0)
    assert not uses_timer([out, err], now)


def test_a_terminal_wakes_for_a_while_after_a_table_also_beside_a_progress_bar(err) -> None:
    """A terminal holds little, so the writer of the next table would wait for one poll after another."""
    out = StreamRate(TERMINAL, is_terminal=True)
    now = write(out, 300, every=0.0, begin=0.0, n_bytes=81)
    for begin in (now, now + BURST_REST_S / 2):
        now = write(out, 20, every=0.01, begin=begin + 0.01, n_bytes=4)
        write(err, 20, every=0.01, begin=begin + 0.01, n_bytes=1)
        assert not uses_timer([out, err], now)
    now = write(out, 200, every=0.01, begin=now + 0.01, n_bytes=4)
    assert uses_timer([out, err], now)
