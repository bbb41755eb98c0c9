"""Edits at other collectors: the own row of a run changes once, and of two edits the later one counts."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chiplog_collector.index.changes.edit_requests import AGAIN_S, EditRequests
from chiplog_collector.query.change_request import Edit, edit_of
from chiplog_schemas.model.change_record import Action
from chiplog_schemas.paths import ensure_private_dir
from tests.support.changes import ChangedIndex, change, logged
from tests.support.collector_log import START_US, whole
from tests.support.index import Index
from tests.support.published_index import publish_in_pieces
from tests.support.safeguard import proves
from tests.support.store_reader import Reader

LATER_US = START_US + 60_000_000
RUNS = "SELECT run_id, name, tags, notes FROM runs ORDER BY run_id"


class World(ChangedIndex):
    """An index, and what was edited at other collectors."""

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self.others: list[Edit] = []
        self.restart()

    def restart(self) -> None:
        self.requests = EditRequests(self.read, self.queue.submit)

    def read(self) -> list[Edit]:
        rows = self.index.sql("SELECT epoch_us(ts), body FROM base.events WHERE kind = 'run_edited'")
        return [*self.others, *(edit for row in rows if (edit := edit_of(*row)) is not None)]

    def edit(self, number: int, received_us: int, run_id: str = "r", **fields: Any) -> None:
        self.others.append(Edit(received_us, number.to_bytes(8, "big"), run_id, fields))
        self.requests.note_news()

    def turn(self) -> int:
        return self.turn_until_done(lambda: self.requests.turn(self.index.follower.state, self.now), 1.0)


@pytest.fixture
def world(index: Index) -> Iterator[World]:
    world = World(index)
    yield world
    world.close()


@proves("edit-repeated-once", "an edit at another collector is repeated once", value="False")
@proves(
    "edit-has-one-row",
    "an edit is one row of events, however many collectors have the run",
    part=" and not is_repeated",
)
def test_an_edit_at_another_collector_changes_the_own_row_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "chiplog.index")
    world.index.take(whole(logged(0, run_id="r")), whole(logged(1, run_id="other")))
    world.edit(1, LATER_US, name="new", tags=["a", "b"])
    world.edit(2, LATER_US, "unknown", name="n")
    assert world.turn() == 1
    assert world.index.sql(RUNS) == [("other", None, [], None), ("r", "new", ["a", "b"], None)]
    assert world.index.sql("SELECT count(*) FROM base.events WHERE kind = 'run_edited'") == [(0,)]
    world.index.reopen()
    world.restart()
    assert world.turn() == 0
    assert caplog.messages == ["run r is edited, as at another collector"]
    assert world.index.sql(RUNS)[1] == ("r", "new", ["a", "b"], None)


@proves(
    "later-edit-counts", "of two edits of a field the later one counts, whichever arrives first", value="edit.fields"
)
def test_an_earlier_edit_that_arrives_late_leaves_what_was_edited_since(world: World) -> None:
    world.index.take(whole(logged(0, run_id="r")))
    world.index.take(change(Action.EDIT, 9, run="r", fields={"name": "own"}))
    [(own_us,)] = world.index.sql("SELECT epoch_us(ts) FROM base.events WHERE kind = 'run_edited'")
    world.edit(1, own_us - 2, name="earlier", notes="first")
    world.edit(2, own_us - 1, notes="second")
    assert world.turn() == 1, "the first has nothing left to do"
    assert world.index.sql(RUNS) == [("r", "own", [], "second")]
    world.edit(3, own_us + 1, name=None)
    world.turn()
    assert world.index.sql(RUNS) == [("r", None, [], "second")]


def test_an_edit_of_a_run_that_was_deleted_concerns_no_later_run_of_its_id(world: World) -> None:
    world.index.take(whole(logged(0, run_id="r")))
    world.edit(1, START_US - 60_000_000, name="of the former one")
    assert world.turn() == 0
    assert world.index.sql(RUNS) == [("r", None, [], None)]


def test_what_cannot_be_read_is_tried_again_and_what_is_refused_is_not(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.index.take(whole(logged(0, run_id="r")))

    def fail() -> list[Edit]:
        raise duckdb.IOException("away")

    world.requests = EditRequests(fail, world.queue.submit)
    assert world.turn() == 0
    assert caplog.messages == ["edits of other collectors cannot be read: away"]
    world.requests._read = world.read
    world.edit(1, LATER_US, colour="red")
    world.edit(2, LATER_US, name="new")
    assert world.turn() == 0, "it waits a minute"
    world.now += AGAIN_S
    assert world.turn() == 1
    world.now += AGAIN_S
    world.requests.note_news()
    assert world.turn() == 0
    [line] = [line for line in caplog.messages if "stays" in line]
    assert line.startswith("run r, which another collector edited, stays: field 'colour' cannot be edited")


@proves("foreign-edit-ends-no-index", "a row of another collector that is no edit ends no index", value="()")
def test_what_is_no_edit_is_left_out() -> None:
    good = {"request": "01" * 8, "run_id": "r", "fields": {"name": "n"}}
    assert edit_of(5, json.dumps(good)) == Edit(5, b"\1" * 8, "r", {"name": "n"})
    for bad in ({}, [], good | {"request": "x"}, good | {"request": 5}, good | {"run_id": 5}, good | {"fields": "n"}):
        assert edit_of(5, json.dumps(bad)) is None
    assert edit_of(5, "no JSON") is None


def test_a_reader_passes_on_the_edits_of_all_logs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        ensure_private_dir(tmp_path / name)
    far, near = Index(tmp_path / "one"), Index(tmp_path / "two", b"\2" * 16)
    publish_in_pieces(far, tmp_path / "lake", [change(Action.EDIT, 1, run="r", fields={"name": "far", "notes": None})])
    near.take(whole(logged(0, run_id="r")), change(Action.EDIT, 2, run="r", fields={"name": "near"}))
    reader = Reader(f"file://{tmp_path}/lake", tmp_path, near.database.connection, near.log_id.hex())
    found = {edit.id[-1]: (edit.run_id, edit.fields) for edit in reader.store.edits()}
    assert found == {1: ("r", {"name": "far", "notes": None}), 2: ("r", {"name": "near"})}
    calls: list[int] = []
    reader.store.note_edits = lambda: calls.append(1)
    publish_in_pieces(far, tmp_path / "lake", [change(Action.EDIT, 3, run="r", fields={"name": "again"})])
    reader.store._look_at = 0.0
    reader.store.turn()
    assert (calls, len(reader.store.edits())) == ([1], 3)
    reader.close()
    far.close()
    near.close()
