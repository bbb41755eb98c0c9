"""A disk that fills up: one warning, then no events before it is full, and events again once there is room."""

import pytest

from chiplog_collector.receiver.disk_space import DiskSpace
from chiplog_schemas.limits import GIB, LOG_FREE_BYTES_MIN, MIB

pytestmark = pytest.mark.pure


def test_a_disk_is_warned_about_once_until_less_of_it_is_used() -> None:
    space = DiskSpace()
    assert space.check(50 * GIB, 100 * GIB) is None
    assert space.check(20 * GIB, 100 * GIB) == "80 % of the disk is in use, 20.0 GiB are free; see chiplog prune"
    assert space.check(19 * GIB, 100 * GIB) is None
    assert space.check(21 * GIB, 100 * GIB) is None, "no warning for each percent around the limit"
    assert space.check(19 * GIB, 100 * GIB) is None
    assert space.check(30 * GIB, 100 * GIB) is None
    assert space.check(15 * GIB, 100 * GIB) is not None


def test_events_stop_before_the_disk_is_full_and_are_taken_again_with_some_room() -> None:
    space = DiskSpace()
    space.check(LOG_FREE_BYTES_MIN, 100 * GIB)
    assert not space.is_short
    said = space.check(LOG_FREE_BYTES_MIN - 1, 100 * GIB)
    assert space.is_short
    assert said is not None and "no events are taken; agents keep them" in said
    assert space.check(LOG_FREE_BYTES_MIN + 1, 100 * GIB) is None
    assert space.is_short, "not at once again"
    assert (
        space.check(2 * LOG_FREE_BYTES_MIN, 100 * GIB)
        == f"{2 * LOG_FREE_BYTES_MIN:,} bytes are free: events are taken again"
    )
    assert not space.is_short


def test_a_small_disk_keeps_one_hundredth_free() -> None:
    space = DiskSpace()
    space.check(11 * MIB, 1024 * MIB)
    assert not space.is_short
    space.check(10 * MIB, 1024 * MIB)
    assert space.is_short


def test_a_disk_that_reports_no_size_is_not_full() -> None:
    space = DiskSpace()
    assert space.check(0, 0) is None
    assert not space.is_short
