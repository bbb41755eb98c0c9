"""Deletions of other collectors: the own part of a run goes once, when its labels are over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_collector.index.changes.store_requests import AGAIN_S, LOOK_S, StoreRequests
from chiplog_collector.store.deletion_requests import DeletionRequest, DeletionRequests
from chiplog_schemas.model.events import EventKind
from tests.support.changes import ChangedIndex, logged
from tests.support.collector_log import LOG_ID, Rank, whole
from tests.support.index import Index
from tests.support.safeguard import proves

OTHER = "bb" * 16


class World(ChangedIndex):
    """An index, and what other logs deleted."""

    def __init__(self, index: Index, directory: Path) -> None:
        super().__init__(index)
        self.files = DeletionRequests(directory / "store", LOG_ID.hex())
        self.files.take([])
        self.restart()

    def restart(self) -> None:
        self.requests = StoreRequests(self.files, self.queue.submit, lambda: self.index.database.next_number - 1)

    def turn(self) -> int:
        return self.turn_until_done(lambda: self.requests.turn(self.index.follower.state, self.now), LOOK_S)


@pytest.fixture
def world(index: Index, tmp_path: Path) -> Iterator[World]:
    world = World(index, tmp_path)
    yield world
    world.close()


def ended(number: int, run_id: str) -> Rank:
    rank = logged(number, run_id=run_id)
    rank.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    return rank


@proves(
    "answer-is-no-request",
    "the answer to a deletion is no request to the collector that asked",
    part='body.get("answer") is not True',
    new="True",
)
def test_the_own_part_of_a_run_is_deleted_once(world: World) -> None:
    world.index.take(whole(ended(0, "gone")), whole(ended(1, "kept")))
    request = DeletionRequest(OTHER, 7, "gone")
    world.files.take([request, DeletionRequest(OTHER, 7, "unknown")])
    assert world.turn() == 1
    assert world.index.sql("SELECT run_id FROM runs") == [("kept",)]
    assert world.index.sql("SELECT bool_or(is_request) FROM base.deletions") == [(False,)]
    assert world.files.waiting() == []
    [(deleted,)] = world.index.sql("SELECT max(flush) FROM base.deletions")
    assert world.files.answered_until(deleted - 1) == {OTHER: 6}, "the store does not have the deletion yet"
    world.files.take([request])
    assert world.files.answered_until(deleted - 1) == {OTHER: 6}
    assert world.files.answered_until(deleted) == {OTHER: 7}
    world.index.take(whole(ended(2, "gone")), whole(ended(3, "unknown")))
    world.restart()
    assert world.turn() == 0
    assert world.index.sql("SELECT count(*) FROM runs") == [(3,)]


@proves("refused-request-asked-again", "a run that another collector deleted goes once its labels are over", new="pass")
def test_a_run_that_is_not_over_is_deleted_later(world: World) -> None:
    rank = logged(0, run_id="gone")
    world.index.take(whole(rank))
    world.files.take([DeletionRequest(OTHER, 7, "gone")])
    for _ in range(3):
        assert world.turn() == 0
    assert world.index.sql("SELECT count(*) FROM runs") == [(1,)]
    rank.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    world.index.take(whole(rank))
    assert world.turn() == 0, "it waits a minute"
    world.now += AGAIN_S
    assert world.turn() == 1
    assert world.index.sql("SELECT count(*) FROM runs") == [(0,)]
    assert world.files.waiting() == []
