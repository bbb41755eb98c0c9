"""Queries in the zone of this machine: the views' times and literals without a zone are local."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import click
import pytest

from chiplog_cli.tables.local_time import localized, zone_name
from chiplog_client.client import Client, connect
from tests.support.marks import everyday
from tests.support.recorded import create_database

ZONE = "America/New_York"  # where 03:04 UTC in January is 22:04 of the day before


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    found, database = create_database(tmp_path_factory.mktemp("recorded"), "2026-01-02 03:04:05")
    database.close()
    with connect(dir=found.root) as client:
        yield client


@pytest.fixture
def zone_of_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    yield monkeypatch
    monkeypatch.undo()
    time.tzset()


def rows(client: Client, query: str) -> list[dict[str, object]]:
    return client.sql(localized(client, query, ZONE), time_zone=ZONE).rows()


@pytest.mark.parametrize(
    ("condition", "n_found"),
    [
        ("started_at = '2026-01-01 22:04:05'", 1),
        ("started_at = '2026-01-02 03:04:05'", 0),
        ("started_at::DATE = '2026-01-01'", 1),
        ("date_trunc('day', started_at) = '2026-01-01'", 1),
        ("started_at < now()", 1),
        ("started_at = TIMESTAMPTZ '2026-01-02 03:04:05+00'", 1),
    ],
)
@pytest.mark.parametrize("end", everyday(4, ["", ";", " ; -- of the query"]))
def test_a_literal_without_a_zone_is_local(client: Client, condition: str, n_found: int, end: str) -> None:
    assert len(rows(client, f"SELECT * FROM labels WHERE {condition}{end}")) == n_found


def test_the_time_itself_stays_the_same(client: Client) -> None:
    [row] = rows(client, "SELECT epoch(started_at) AS seconds FROM LABELS")
    assert row["seconds"] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("query", ["DESCRIBE labels", " -- the columns\n/* of */ summarize labels", "SELECT 1 AS a"])
def test_a_query_without_times_stays_as_it_is(client: Client, query: str) -> None:
    assert localized(client, query, ZONE) == query


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kolkata", "UTC"])
def test_the_zone_of_this_machine_is_found(zone: str, zone_of_machine: pytest.MonkeyPatch) -> None:
    zone_of_machine.setenv("TZ", zone)
    time.tzset()
    assert zone_name() == zone


def test_a_zone_that_the_database_takes_for_another_is_refused(zone_of_machine: pytest.MonkeyPatch) -> None:
    zone_of_machine.setenv("TZ", "XYZ-3:17")
    time.tzset()
    with pytest.raises(click.UsageError, match="set TZ to an IANA name"):
        zone_name()
