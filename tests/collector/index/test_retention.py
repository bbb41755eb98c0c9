"""What a collector is set to keep: older runs and samples are deleted by requests, each with its cut-off."""

import time

import pytest

from chiplog_collector.index.requests import plan_request
from chiplog_collector.index.retention import INTERVAL_S, Retention
from chiplog_collector.query.pending_request import PendingRequest
from chiplog_schemas.bounds import Limits
from chiplog_schemas.codec import pack
from chiplog_schemas.model.changes import encode_change
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.query import query_messages
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import START_US, Rank, whole
from tests.support.index import Index
from tests.support.kept_log import finished

DAY_US = 86_400 * 10**6


class Desk:
    """Carries requests out at once."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.asked: list[tuple[str, dict[str, object]]] = []

    def submit(self, request: PendingRequest) -> None:
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
    retention = Retention(desk.index.database.connection, Limits(retention_days=90), desk.submit)
    retention.turn(1_000.0, START_US)
    assert desk.asked == [("delete", {"runs": ["old"], "why": "older than 90 days"})]
    assert desk.index.sql("SELECT run_id FROM runs ORDER BY ALL") == [("live",), ("new",)]
    said = "SELECT message FROM events WHERE kind = 'run_deleted'"
    assert desk.index.sql(said) == [("deleted run old (older than 90 days)",)]
    assert desk.index.sql("SELECT count(*) FROM system_samples") == [(4,)]


def test_it_looks_once_an_hour(desk: Desk) -> None:
    retention = Retention(desk.index.database.connection, Limits(retention_days=1), desk.submit)
    retention.turn(1_000.0, START_US - 5 * DAY_US)
    assert len(desk.asked) == 1
    retention.turn(1_000.0 + INTERVAL_S - 1, START_US + 5 * DAY_US)
    assert len(desk.asked) == 1
    retention.turn(1_000.0 + INTERVAL_S, START_US + 5 * DAY_US)
    assert [arguments["runs"] for _, arguments in desk.asked] == [["old"], ["new"]]


def test_old_samples_are_deleted_with_their_cut_off_at_a_full_hour(desk: Desk) -> None:
    retention = Retention(desk.index.database.connection, Limits(system_retention_days=2), desk.submit)
    retention.turn(1_000.0, START_US + 1)
    [(action, arguments)] = desk.asked
    assert action == "trim_system"
    assert arguments["until"] == (START_US + 1 - 2 * DAY_US) // (3_600 * 10**6) * 3_600 * 10**6
    assert desk.index.sql("SELECT count(*) FROM system_samples") == [(3,)]
    retention.turn(1_000.0 + INTERVAL_S, START_US + 1)
    assert len(desk.asked) == 1, "nothing old is left, so nothing is written"


def test_by_default_everything_is_kept(desk: Desk) -> None:
    Retention(desk.index.database.connection, Limits(), desk.submit).turn(time.monotonic(), START_US + 10_000 * DAY_US)
    assert desk.asked == []
