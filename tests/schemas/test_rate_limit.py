"""A token bucket: a burst at once, then a rate, and never more than the burst after a pause."""

from chiplog_schemas.rate_limit import TokenBucket


def allowed(bucket: TokenBucket, now: float, attempts: int = 100) -> int:
    return sum(bucket.allow(now) for _ in range(attempts))


def test_a_burst_is_allowed_and_then_the_rate() -> None:
    bucket = TokenBucket(1000.0, 2.0, 5)
    assert allowed(bucket, 1000.0) == 5
    assert allowed(bucket, 1000.25) == 0
    assert allowed(bucket, 1000.5) == 1
    assert allowed(bucket, 1002.0) == 3


def test_a_pause_allows_one_burst_however_long_it_is() -> None:
    bucket = TokenBucket(0.0, 2.0, 5)
    allowed(bucket, 0.0)
    assert allowed(bucket, 1e6) == 5


def test_refused_attempts_do_not_delay_the_next_one() -> None:
    bucket = TokenBucket(0.0, 1.0, 1)
    assert [bucket.allow(tenth / 10) for tenth in range(11)] == [True] + [False] * 9 + [True]


def test_a_time_that_another_thread_read_earlier_takes_nothing_away() -> None:
    bucket = TokenBucket(10.0, 1.0, 3)
    assert bucket.allow(9.0)
    assert bucket.allowance == 2.0
