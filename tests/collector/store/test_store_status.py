"""`chiplog store status`: what it shows of each collector, at widths of 80 to 160 columns."""

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from chiplog_collector.store import store_status
from chiplog_collector.store.delta_store import Addition, DeltaStore
from chiplog_collector.store.published_tables import COMPLETE
from chiplog_collector.store.store_status import (
    LogStatus,
    StoreStatus,
    TableStatus,
    look,
    request_dollars,
    requests_a_day,
    shown,
    storage_dollars_a_day,
)
from tests.support.store_files import DAY, LOG, parquet

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
BEAT = {
    "at": "2026-11-28T12:00:00.000+00:00",
    "since": "2026-11-28T11:00:00.000+00:00",
    "host": "gpu-node-017.cluster.example",
    "number": 1_234_567,
    "waiting": 12,
    "waiting_bytes": 34_000_000,
    "lag_s": 118.0,
    "keeps_files": True,
    "requests": {"put": 7_200, "list": 10_800, "get": 54_000},
}
DONE = "SELECT '{}' AS log, 7::BIGINT AS number, 'node-a' AS host, TIMESTAMPTZ '2026-11-28 10:00:00+00' AS cut_at"


def printed(status: StoreStatus, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    for part in shown(status):
        console.print(part)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_it_is_readable_at_the_width_of_a_terminal(width: int) -> None:
    logs = [
        LogStatus(LOG, BEAT["host"], 1_234_567, NOW, 5.0, BEAT),
        LogStatus("ef" * 16, "node-b", 99, NOW, 7_200.0, BEAT | {"waiting": 0, "lag_s": 0.0, "keeps_files": False}),
        LogStatus("00" * 16, "node-c", 5, NOW, None, {}),
        LogStatus("11" * 16, "node-d", -1, None, 9_000_000.0, BEAT, is_retired=True),
    ]
    tables = [TableStatus("metrics", 64_000_000_000, 12_345, 199, 307_200_000_000)]
    lines = printed(StoreStatus(tables, logs, (10, 5_000)), width)
    assert all(len(line.rstrip()) <= width for line in lines)
    words = [line.split() for line in lines]
    assert ["metrics", "64,000,000,000", "12,345", "199", "307,200,000,000"] in words
    assert any({LOG[:8], "1,234,567", "2", "12,", "34", "1,728,000", "$2.68"} <= set(line) for line in words), lines
    assert any({"efefefef", "2", "h", "ago", "0"} <= set(line) for line in words)
    assert ["11111111", "node-d", "–", "retired", "–", "12,", "34", "MB", "–", "–"] in words
    text = " ".join(line.strip() for line in lines)
    assert "requests of publishers $5.36" in text  # a retired log makes none
    assert text.count("stay at") == 1
    assert "stay at gpu-node-017.cluster.example (CHIPLOG_STORE_FILES=0): they die with its disk" in text


def test_collectors_are_those_with_a_piece_or_a_heartbeat(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/lake"
    assert look(DeltaStore(url, LOG)) == StoreStatus([], [], (0, 0))
    assert "no collector has published to it" in printed(look(DeltaStore(url, LOG)), 80)
    store = DeltaStore(url, LOG)
    store.publish(Addition(COMPLETE, parquet(tmp_path / "done.parquet", DONE.format(LOG)), DAY, -1, 7))
    DeltaStore(url, "ef" * 16).put_heartbeat({"host": "node-b"})
    (content := tmp_path / "content").write_bytes(b"model")
    store.put_content("0a" * 32, content)
    found = look(store)
    first, second = found.logs
    assert (first.log, first.host, first.number, first.age_s) == (LOG, "node-a", 7, None)
    assert first.cut_at == datetime(2026, 11, 28, 10, tzinfo=UTC)
    assert (second.host, second.number, second.beat) == ("node-b", -1, {"host": "node-b"})
    assert not second.is_retired
    store.retire("ef" * 16)
    assert [log.is_retired for log in look(store).logs] == [False, True]
    assert found.contents == (1, 5)


def test_a_clock_that_is_behind_that_of_the_store_makes_no_negative_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DeltaStore(f"file://{tmp_path}/lake", LOG)
    store.put_heartbeat({})

    class YearAgo(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime.now(UTC) - timedelta(days=365)

    monkeypatch.setattr(store_status, "datetime", YearAgo)
    [log] = look(store).logs
    assert log.age_s == 0.0


TENTH = {
    "since": "2026-11-28T10:00:00.000+00:00",
    "at": "2026-11-28T12:24:00.000+00:00",  # a tenth of a day
    "requests": {"put": 100, "list": 200, "get": 1000},
}


def test_the_requests_of_a_tenth_of_a_day_are_those_of_a_day_and_cost_little() -> None:
    found = requests_a_day(TENTH)
    assert found == pytest.approx({"put": 1000, "list": 2000, "get": 10_000})
    assert request_dollars(found) == pytest.approx(0.005 + 0.010 + 0.004)


def test_a_terabyte_costs_23_dollars_a_month() -> None:
    assert storage_dollars_a_day(10**12) == pytest.approx(23 / 30)


@pytest.mark.parametrize(
    "beat",
    [
        {},
        TENTH | {"since": "2026-11-28T12:23:30.000+00:00"},
        TENTH | {"since": "2027-11-28T12:23:30.000+00:00"},
        TENTH | {"requests": {"put": "many"}},
        TENTH | {"requests": [1]},
        TENTH | {"at": 5},
        TENTH | {"at": "2026-11-28T12:24:00"},
    ],
)
def test_what_says_nothing_about_a_day_gives_nothing(beat: dict[str, object]) -> None:
    assert requests_a_day(beat) is None
