"""How the console's helper sleeps: quiet streams wake it, and while one is busy a timer does."""

import pytest

from chiplog.console.poll_policy import BURST_REST_S, POLL_INTERVAL_S, QUIET_S, PollPolicy

OUT, ERR = 5, 6
PIPE, TERMINAL = 64 << 10, 4 << 10


@pytest.fixture
def policy() -> PollPolicy:
    return PollPolicy({OUT: PIPE, ERR: PIPE})


def write(policy: PollPolicy, descriptor: int, times: int, *, every: float, begin: float, n_bytes: int = 2) -> float:
    """Note writes at a steady pace; return when the last one came."""
    for number in range(times):
        policy.record_write(descriptor, n_bytes, begin + number * every)
    return begin + (times - 1) * every


def test_a_stream_wakes_until_it_is_written_to_all_the_time_and_again_when_it_was_quiet(policy) -> None:
    assert not policy.uses_timer(0.0)
    policy.record_write(OUT, 6, 0.0)
    assert not policy.uses_timer(0.0)
    now = write(policy, OUT, 3, every=QUIET_S / 2, begin=QUIET_S / 2)
    assert policy.uses_timer(now)
    policy.record_write(ERR, 2, now)  # another one that is quiet changes nothing
    assert policy.uses_timer(now + 0.9 * QUIET_S)
    assert not policy.uses_timer(now + 1.1 * QUIET_S)


def test_a_stream_that_is_written_to_now_and_then_wakes_each_time(policy) -> None:
    for number in range(10):
        policy.record_write(OUT, 2, number * 2 * QUIET_S)
        assert not policy.uses_timer(number * 2 * QUIET_S)


@pytest.mark.parametrize("bytes_per_look", [PIPE // 4 + 1, PIPE])
def test_a_stream_that_fills_its_pipe_between_two_looks_wakes(policy, bytes_per_look) -> None:
    now = write(policy, OUT, 5, every=POLL_INTERVAL_S, begin=0.0, n_bytes=bytes_per_look)
    assert not policy.uses_timer(now)
    now = write(policy, OUT, 3, every=POLL_INTERVAL_S, begin=now + POLL_INTERVAL_S)
    assert policy.uses_timer(now)


def test_a_stream_that_fills_its_pipe_in_small_pieces_wakes_also_beside_a_busy_one(policy) -> None:
    now = write(policy, OUT, 100, every=POLL_INTERVAL_S / 50, begin=0.0, n_bytes=1000)
    write(policy, ERR, 100, every=POLL_INTERVAL_S / 50, begin=0.0)
    assert not policy.uses_timer(now)


def test_a_terminal_wakes_for_a_while_after_a_table_also_beside_a_progress_bar() -> None:
    """A terminal holds little, so the writer of the next table would wait for one poll after another."""
    policy = PollPolicy({OUT: TERMINAL, ERR: PIPE}, terminals={OUT})
    now = write(policy, OUT, 300, every=0.0, begin=0.0, n_bytes=81)
    for begin in (now, now + BURST_REST_S / 2):
        now = write(policy, OUT, 20, every=0.01, begin=begin + 0.01, n_bytes=4)
        write(policy, ERR, 20, every=0.01, begin=begin + 0.01, n_bytes=1)
        assert not policy.uses_timer(now)
    now = write(policy, OUT, 200, every=0.01, begin=now + 0.01, n_bytes=4)
    assert policy.uses_timer(now)


def test_a_stream_that_has_ended_counts_no_more(policy) -> None:
    now = write(policy, OUT, 5, every=POLL_INTERVAL_S, begin=0.0)
    assert policy.uses_timer(now)
    policy.forget(OUT)
    assert not policy.uses_timer(now)
