"""What the SDK measures of itself, with time by hand; a real training: tests/collector/receiver."""

from collections.abc import Iterator

import pytest

from chiplog.journal.health import PERIOD_S, JournalHealth
from chiplog.journal.journal import Journal
from chiplog_schemas.model.system_metrics import PIPELINE_PERIOD_S, SDK_METRICS

COUNTS = {"lost_device_values": 2, "rejected": 3, "errors": 4}


@pytest.fixture
def journal() -> Iterator[Journal]:
    journal = Journal(None, bytes(16), b"", bytes_max=2 << 20)
    yield journal
    journal.close(remove=True)


def test_values_are_due_each_ten_seconds_and_have_the_names_of_the_table(journal: Journal) -> None:
    assert PERIOD_S == PIPELINE_PERIOD_S
    health = JournalHealth(journal, lambda: COUNTS, 100.0)
    assert not health.turn(109.9, is_open=True)
    assert not health.turn(110.0, is_open=False), "no agent answers"
    values = health.turn(111.0, is_open=True)
    assert values.keys() == SDK_METRICS.keys()
    assert [values[f"chiplog.sdk.{name}"] for name in ("lost.device_values", "rejected", "errors")] == [2, 3, 4]
    assert not health.turn(120.9, is_open=True)
    assert health.turn(121.0, is_open=True)


def test_events_are_counted_and_the_oldest_that_the_agent_lacks_has_an_age(journal: Journal) -> None:
    health = JournalHealth(journal, lambda: COUNTS, 100.0)
    journal.append(b"x")
    health.turn(101.0, is_open=True)
    values = health.turn(110.0, is_open=True)
    assert values["chiplog.sdk.events"] == values["chiplog.sdk.in_memory"] == 1
    assert values["chiplog.sdk.journal_oldest"] == pytest.approx(9.0)
    assert values["chiplog.sdk.journal"] == 256 * 1024
    assert values["chiplog.sdk.cpu_time"] > 0
    journal.acknowledged(1)
    values = health.turn(120.0, is_open=True)
    assert (values["chiplog.sdk.journal_oldest"], values["chiplog.sdk.in_memory"]) == (0, 0)


def test_events_without_room_are_counted_as_lost(journal: Journal) -> None:
    while not journal.dropped:
        journal.append(bytes(4096))
    for _ in range(4):
        journal.append(bytes(4096))
    values = JournalHealth(journal, lambda: COUNTS, 0.0).turn(10.0, is_open=True)
    assert values["chiplog.sdk.lost.journal_full"] == 5
    assert values["chiplog.sdk.events"] == journal.next_seq
