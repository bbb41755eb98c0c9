"""The wall clock: whole microseconds since the epoch."""

import time

from chiplog_schemas.clock import now_us


def test_the_wall_time_is_in_whole_microseconds_since_the_epoch() -> None:
    before = time.time()
    now = now_us()
    assert type(now) is int
    assert int(before * 1e6) - 1 <= now <= time.time() * 1e6 + 1
