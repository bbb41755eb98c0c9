"""The age of what waits at a hop."""

from chiplog_schemas.process.backlog import Backlog


def test_the_oldest_record_that_waits_has_an_age_until_it_is_done() -> None:
    backlog = Backlog(100.0)
    backlog.note(0, 0, 100.0)
    assert (backlog.age_s(105.0), backlog.done_at) == (0.0, 100.0)
    backlog.note(10, 0, 101.0)
    backlog.note(20, 0, 103.0)
    assert backlog.age_s(105.0) == 4.0
    backlog.note(20, 10, 106.0)
    assert (backlog.age_s(106.0), backlog.done_at, backlog.take_slowest_s()) == (3.0, 106.0, 5.0)
    backlog.note(20, 19, 107.0)
    assert (backlog.age_s(107.0), backlog.done_at, backlog.take_slowest_s()) == (4.0, 106.0, 0.0)
    backlog.note(20, 20, 108.0)
    assert (backlog.age_s(109.0), backlog.done_at) == (0.0, 108.0)


def test_what_waits_at_the_start_is_as_old_as_the_process() -> None:
    backlog = Backlog(0.0)
    backlog.note(5_000, 17, 0.0)
    assert backlog.age_s(60.0) == 60.0


def test_what_a_former_process_added_keeps_its_age_and_is_no_slow_record() -> None:
    backlog = Backlog(100.0, [(10, 500.0), (20, 70.0)])
    backlog.note(20, 0, 100.0)
    assert backlog.age_s(101.0) == 501.0
    backlog.note(21, 10, 102.0)
    assert (backlog.age_s(102.0), backlog.take_slowest_s()) == (72.0, 0.0)
    backlog.note(21, 21, 105.0)
    assert (backlog.age_s(105.0), backlog.take_slowest_s()) == (0.0, 3.0)


def test_a_day_without_the_next_hop_costs_a_bounded_memory_and_no_age() -> None:
    backlog = Backlog(0.0)
    for second in range(86_400):
        backlog.note(second + 1, 0, float(second))
    assert backlog.age_s(86_400.0) == 86_400.0
    assert len(backlog._added) <= 1_025
    backlog.note(86_400, 86_399, 86_400.0)
    assert 0.0 < backlog.age_s(86_400.0) < 3_600.0
