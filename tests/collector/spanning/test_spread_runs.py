"""Where a run is in several logs: which row counts, attempts, the primary, and ranges that two logs have."""

import random
from typing import Any

import pytest

from chiplog_collector.spanning.spread_runs import (
    Place,
    SeenProducer,
    SeenRun,
    described,
    parted,
    primary_of,
    spread_runs,
)


def seen(log: str, uuid: str, **given: Any) -> SeenProducer:
    fields: dict[str, Any] = {
        "run_id": "r",
        "label": "rank0",
        "launch": "one",
        "restart": 0,
        "attempt": 0,
        "is_primary": False,
        "has_ended": False,
        "is_presumed": False,
        "fallback": False,
        "started_us": 100,
        "ended_us": 0,
        "seen_us": 0,
    }
    return SeenProducer(log, uuid, **(fields | given))


def run(log: str, label: str | None, launch: str = "one", restart: int = 0, **given: Any) -> SeenRun:
    fields = dict.fromkeys(("project", "name", "run_group", "job_type", "tags", "notes")) | given.pop("fields", {})
    return SeenRun(log, "r", label, launch if label else None, restart, fields, given.pop("edited", ()))


def places(producers: list[SeenProducer]) -> list[Place]:
    return [place for found in spread_runs(producers, [run("a", None), run("b", None)]) for place in found.places]


def test_attempts_follow_launch_and_restart_whichever_log_has_them() -> None:
    producers = [
        seen("b", "2", restart=1, started_us=300),
        seen("a", "1", started_us=100),
        seen("a", "3", launch="two", started_us=500),
        seen("b", "4", label="rank1"),
    ]
    expected = [
        Place("a", "1", 0, False),
        Place("a", "3", 2, False),
        Place("b", "2", 1, False),
        Place("b", "4", 0, False),
    ]
    for _ in range(5):
        random.shuffle(producers)
        assert sorted(places(producers), key=lambda place: place.uuid) == sorted(expected, key=lambda p: p.uuid)


def test_of_a_producer_in_two_logs_the_one_that_saw_its_end_counts() -> None:
    left = seen("a", "1", has_ended=True, is_presumed=True, seen_us=5)  # its agent has moved, so it seemed to die
    assert [place.log for place in places([left, seen("b", "1", seen_us=3)])] == ["b"]
    assert [place.log for place in places([seen("b", "1", seen_us=3), seen("a", "1", seen_us=3)])] == ["a"]


@pytest.mark.parametrize(
    ("later", "is_ended", "primary"),
    [
        (run("b", "rank1"), False, "rank0"),
        (run("b", "rank1", restart=1), False, "rank1"),
        (run("b", "rank1", launch="two"), False, "rank0"),
        (run("b", "rank1", launch="two"), True, "rank1"),
        (run("b", None), False, "rank0"),
    ],
    ids=["same launch", "later restart", "other launch, the first one runs", "other launch, it has ended", "no claim"],
)
def test_the_primary_keeps_its_role_until_it_ends_or_a_later_restart_claims_it(
    later: SeenRun, is_ended: bool, primary: str
) -> None:
    first = seen("a", "1", has_ended=is_ended, ended_us=150)
    by_label = {"rank0": [first], "rank1": [seen("b", "2", label="rank1", started_us=200)]}
    for claims in ([run("a", "rank0"), later], [later, run("a", "rank0")]):
        found = primary_of(claims, by_label)
        assert found is not None
        assert found.primary_label == primary


def test_a_run_is_described_by_its_primary_and_by_what_a_person_has_set() -> None:
    first = run("a", "rank0", fields={"name": "from primary", "notes": None})
    other = run("b", None, fields={"name": "of another", "notes": "by hand", "job_type": "x"}, edited=("notes",))
    found = described([other, first], first)
    assert (found["name"], found["notes"], found["job_type"]) == ("from primary", "by hand", None)
    assert described([other, run("c", None)], None)["job_type"] == "x"


def test_ranges_of_two_logs_count_once() -> None:
    chooser = random.Random(5)
    for _ in range(300):
        ranges = {
            log: [(first, first + chooser.randrange(5)) for first in chooser.sample(range(40), chooser.randrange(1, 6))]
            for log in "abc"
        }
        found = parted(ranges)
        counted: list[int] = []
        for kept, doubled in found.values():
            counted += [seq for first, last in kept for seq in range(first, last + 1)]
            assert not any(first <= end and begin <= last for first, last in kept for begin, end in doubled)
        assert sorted(counted) == sorted(
            {seq for parts in ranges.values() for a, b in parts for seq in range(a, b + 1)}
        )
        assert found["a"][1] == []
