"""What a collector is set to keep: older runs and samples are deleted by requests, each with its cut-off."""

import struct
import time

import pytest

from chiplog_collector.index.changes.change_plan import plan_request
from chiplog_collector.index.cleaning.retention import INTERVAL_S, Retention
from chiplog_collector.query.change_request import ChangeRequest
from chiplog_schemas.codec import pack
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.model.change_record import encode_change
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.query import query_messages
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import START_US, Rank, whole
from tests.support.index import Index
from tests.support.kept_log import finished
from tests.support.safeguard import proves

DAY_US = 86_400 * 10**6
HOUR_US = 3_600 * 10**6
MINUTE_US = 60 * 10**6


def limits(**days: int) -> Limits:
    """Return limits that keep everything but for what is given."""
    return Limits(**({"system_seconds_days": 0, "system_minutes_days": 0} | days))  # type: ignore[arg-type]


class Desk:
    """Carries requests out at once."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.asked: list[tuple[str, dict[str, object]]] = []

    def submit(self, request: ChangeRequest) -> None:
        question = request.question
        self.asked.append((question.action, question.arguments))
        plan = plan_request(self.index.follower.state, question.id, question.action, question.arguments)
        self.index.take(*((Kind.MANAGE, encode_change(change)) for change in plan.changes))
        request.answer(request, query_messages.done(request.id, plan.info))


@pytest.fixture
def desk(index: Index) -> Desk:
    agent = Rank(9, label="agent", role="agent")
    for day in range(4):
        agent.say(EventKind.SYSTEM, "", pack(["hw.x"]), bytes(8), ts=START_US - day * DAY_US)
    runs = [finished(1, "old", age_days=100), finished(2, "new", age_days=1)]
    index.take(whole(*runs), whole(agent), whole(Rank(3, run_id="live", start_us=START_US - 200 * DAY_US)))
    return Desk(index)


def test_runs_that_ended_long_ago_are_deleted_and_running_ones_stay(desk: Desk) -> None:
    retention = Retention(desk.index.database.connection, limits(retention_days=90), desk.submit)
    retention.turn({}, 1_000.0, START_US)
    assert desk.asked == [("delete", {"runs": ["old"], "why": "older than 90 days"})]
    assert desk.index.sql("SELECT run_id FROM runs ORDER BY ALL") == [("live",), ("new",)]
    said = "SELECT message FROM events WHERE kind = 'run_deleted'"
    assert desk.index.sql(said) == [("deleted run old (older than 90 days)",)]
    assert desk.index.sql("SELECT count(*) FROM system_samples") == [(4,)]


def test_it_looks_once_an_hour(desk: Desk) -> None:
    retention = Retention(desk.index.database.connection, limits(retention_days=1), desk.submit)
    retention.turn({}, 1_000.0, START_US - 5 * DAY_US)
    assert len(desk.asked) == 1
    retention.turn({}, 1_000.0 + INTERVAL_S - 1, START_US + 5 * DAY_US)
    assert len(desk.asked) == 1
    retention.turn({}, 1_000.0 + INTERVAL_S, START_US + 5 * DAY_US)
    assert [arguments["runs"] for _, arguments in desk.asked] == [["old"], ["new"]]


def test_old_samples_are_deleted_with_their_cut_off_at_a_full_hour(desk: Desk) -> None:
    retention = Retention(desk.index.database.connection, limits(system_retention_days=2), desk.submit)
    retention.turn({}, 1_000.0, START_US + 1)
    [(action, arguments)] = desk.asked
    assert action == "trim_system"
    assert arguments["until"] == (START_US + 1 - 2 * DAY_US) // (3_600 * 10**6) * 3_600 * 10**6
    assert desk.index.sql("SELECT count(*) FROM system_samples") == [(3,)]
    retention.turn({}, 1_000.0 + INTERVAL_S, START_US + 1)
    assert len(desk.asked) == 1, "nothing old is left, so nothing is written"


@proves("stored-samples-trimmed", "samples that only a store has are deleted", part="is_stored_due or ", new="")
def test_a_store_is_told_once_a_day_which_samples_are_too_old(desk: Desk) -> None:
    """The samples of the days before have left the database for the store."""
    desk.index.database.drop_facts(desk.index.database.next_number - 1)
    retention = Retention(desk.index.database.connection, limits(system_retention_days=2), desk.submit)
    for hours in (0, 1, 25):
        retention.turn({}, 1_000.0 + hours * INTERVAL_S, START_US + hours * HOUR_US)
    due = [(START_US + hours * HOUR_US - 2 * DAY_US) // HOUR_US * HOUR_US for hours in (0, 25)]
    assert [arguments["until"] for _, arguments in desk.asked] == due


def test_samples_become_means_over_a_minute_and_then_over_an_hour_hour_by_hour(index: Index) -> None:
    agent = Rank(9, label="agent", role="agent")
    base = START_US // (24 * HOUR_US) * 24 * HOUR_US
    for second in range(0, 3 * 3_600, 20):
        value = struct.pack("<3d", float(second), float(1 << second // 20 % 2), float(second))
        names = pack(["hw.x", "hw.gpu.throttle.reasons", "hw.energy"])
        agent.say(EventKind.SYSTEM, "gpu", names, value, ts=base + second * 1_000_000)
    index.take(whole(agent))
    desk = Desk(index)
    bounds = limits(system_seconds_days=7, system_minutes_days=90)

    def turn(now_us: int) -> None:
        """Turn until nothing is left to do at this time."""
        retention = Retention(index.database.connection, bounds, desk.submit)
        for _ in range(10):
            retention._due_at = 0.0
            retention.turn(index.follower.state.rolled_until, 1_000.0, now_us)

    turn(base + 7 * DAY_US + 2 * HOUR_US + 30 * MINUTE_US)
    assert [arguments["until"] for _, arguments in desk.asked] == [base + HOUR_US, base + 2 * HOUR_US]
    counts = "SELECT ts < make_timestamp(?), count(*) FROM system_samples WHERE name = 'hw.x' GROUP BY ALL ORDER BY ALL"
    rows = index.database.connection.execute(counts, [base + 2 * HOUR_US]).fetchall()
    assert rows == [(False, 180), (True, 120)], "the last hour is as it came"
    first = "SELECT name, epoch_us(ts) - {} AS us, value FROM system_samples ORDER BY ts, name LIMIT 3"
    assert index.sql(first.format(base)) == [
        *(("hw.energy", 0, 40.0), ("hw.gpu.throttle.reasons", 0, 3.0), ("hw.x", 0, 20.0))
    ], "the last value of a counter, all bits of a mask, and else the mean"
    index.reopen()
    turn(base + 91 * DAY_US)
    assert index.sql("SELECT count(*) FROM system_samples WHERE name = 'hw.x'") == [(3,)]
    assert index.sql(first.format(base)) == [
        *(("hw.energy", 0, 3580.0), ("hw.gpu.throttle.reasons", 0, 3.0), ("hw.x", 0, 1790.0))
    ]
    n_asked = len(desk.asked)
    turn(base + 91 * DAY_US)
    assert len(desk.asked) == n_asked, "what is rolled up is left alone"
    assert index.sql("SELECT count(*) FROM events") == [(0,)], "an hourly step is no news"


def test_with_zeros_everything_is_kept_as_it_came(desk: Desk) -> None:
    retention = Retention(desk.index.database.connection, limits(), desk.submit)
    retention.turn({}, time.monotonic(), START_US + 10_000 * DAY_US)
    assert desk.asked == []


@proves(
    "failing-retention-waits",
    "a step of the retention that fails is tried again after an interval",
    new="self._due_at = 0.0",
)
def test_a_request_that_waits_is_not_repeated(desk: Desk) -> None:
    asked: list[ChangeRequest] = []
    retention = Retention(desk.index.database.connection, limits(retention_days=90), asked.append)
    retention.turn({}, 1_000.0, START_US)
    retention.turn({}, 1_000.0 + INTERVAL_S, START_US)
    assert len(asked) == 1
    asked[0].answer(asked[0], query_messages.failure(asked[0].id, "busy", "ask again later"))
    retention.turn({}, time.monotonic() + INTERVAL_S / 2, START_US)
    assert len(asked) == 1, "what failed is tried again later, not all the time"
    retention.turn({}, time.monotonic() + INTERVAL_S, START_US)
    assert len(asked) == 2
