"""Which streams wake the console's helper: quiet ones do, and a timer polls at most one of two."""

import pytest

from chiplog.console.poll_policy import BURST_REST_S, LOOK_INTERVAL_S, QUIET_S, PollPolicy

OUT, ERR = 5, 6
PIPE, TERMINAL = 64 << 10, 4 << 10


@pytest.fixture
def waking() -> PollPolicy:
    return PollPolicy({OUT: PIPE, ERR: PIPE})


def write(
    waking: PollPolicy, descriptor: int, times: int, *, every: float, begin: float, data: bytes = b"x\n"
) -> float:
    """Note writes at a steady pace; return when the last one came."""
    for number in range(times):
        waking.record_write(descriptor, data, begin + number * every)
    return begin + (times - 1) * every


def test_a_stream_wakes_until_it_is_written_to_all_the_time_and_again_when_it_was_quiet(waking) -> None:
    assert waking.choose_timer_stream(0.0) is None
    waking.record_write(OUT, b"alone\n", 0.0)
    assert waking.choose_timer_stream(0.0) is None
    now = write(waking, OUT, 3, every=QUIET_S / 2, begin=QUIET_S / 2)
    assert waking.choose_timer_stream(now) == OUT
    assert waking.choose_timer_stream(now + 0.9 * QUIET_S) == OUT
    assert waking.choose_timer_stream(now + 1.1 * QUIET_S) is None


def test_a_stream_that_is_written_to_now_and_then_wakes_each_time(waking) -> None:
    for number in range(10):
        waking.record_write(OUT, b"x\n", number * 2 * QUIET_S)
        assert waking.choose_timer_stream(number * 2 * QUIET_S) is None


def test_of_two_busy_streams_the_one_that_is_written_to_less_wakes(waking) -> None:
    for begin, busier, other in ((0.0, ERR, OUT), (1.0, OUT, ERR)):
        for number in range(40):
            now = begin + number * LOOK_INTERVAL_S
            waking.record_write(other, b"x\n", now)
            waking.record_write(busier, b"\r50%" * 3, now)
            waking.choose_timer_stream(now)
        assert waking.timer_fd == busier


def test_roles_do_not_change_with_each_line(waking) -> None:
    chosen = set()
    for number in range(100):
        now = number * LOOK_INTERVAL_S
        waking.record_write((OUT, ERR)[number % 2], b"x\n", now)
        chosen.add(waking.choose_timer_stream(now))
    assert len(chosen - {None}) == 1


@pytest.mark.parametrize("bytes_per_look", [PIPE // 4 + 1, PIPE])
def test_a_stream_that_fills_its_pipe_between_two_looks_wakes(waking, bytes_per_look) -> None:
    now = write(waking, OUT, 5, every=LOOK_INTERVAL_S, begin=0.0, data=b"x" * (bytes_per_look - 1) + b"\n")
    assert waking.choose_timer_stream(now) is None
    now = write(waking, OUT, 3, every=LOOK_INTERVAL_S, begin=now + LOOK_INTERVAL_S)
    assert waking.choose_timer_stream(now) == OUT


def test_a_stream_that_fills_its_pipe_in_small_pieces_wakes(waking) -> None:
    now = write(waking, OUT, 100, every=LOOK_INTERVAL_S / 50, begin=0.0, data=b"x" * 999 + b"\n")
    assert waking.choose_timer_stream(now) is None


def test_a_terminal_wakes_for_a_while_after_a_table_also_beside_a_progress_bar() -> None:
    """A terminal holds little, so the writer of the next table would wait for one poll after another."""
    waking, table = PollPolicy({OUT: TERMINAL, ERR: PIPE}, terminals={OUT}), b"y" * 79 + b"\r\n"
    now = write(waking, OUT, 300, every=0.0, begin=0.0, data=table)
    write(waking, ERR, 300, every=0.0, begin=0.0, data=table)
    for begin in (now, now + BURST_REST_S / 2):
        now = write(waking, OUT, 20, every=0.01, begin=begin + 0.01, data=b"\r50%")
        write(waking, ERR, 20, every=0.01, begin=begin + 0.01, data=b"x")
        assert waking.choose_timer_stream(now) == ERR
    now = write(waking, OUT, 200, every=0.01, begin=now + 0.01, data=b"\r50%")
    assert waking.choose_timer_stream(now) == OUT


def test_a_stream_that_has_ended_is_chosen_no_more(waking) -> None:
    now = write(waking, OUT, 5, every=LOOK_INTERVAL_S, begin=0.0)
    assert waking.choose_timer_stream(now) == OUT
    waking.forget(OUT)
    assert waking.choose_timer_stream(now) is None
