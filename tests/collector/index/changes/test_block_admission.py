"""Blocks of a newer version are applied once after an upgrade, and count to the record that admits them."""

from collections.abc import Iterator

import pytest

from chiplog_collector.index import database
from chiplog_collector.index.apply import applier as applier_module
from chiplog_collector.index.changes import block_admission
from chiplog_collector.index.changes.block_admission import AGAIN_S, BlockAdmission
from chiplog_collector.index.changes.change_queue import ChangeQueue
from chiplog_collector.index.database import StaleDatabaseError
from chiplog_collector.index.follower import LogFollower
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.storage.record import Kind
from tests.support.changes import ChangedIndex, logged
from tests.support.collector_log import Rank, receipt, whole
from tests.support.index import Index
from tests.support.safeguard import proves

FLUSHES = "SELECT l.label, m.step, m.flush FROM base.metric_facts m JOIN base.producers l USING (producer) ORDER BY ALL"
QUARANTINE = "SELECT number, code, block_version FROM base.quarantine"


def newer(rank: Rank) -> bytes:
    block = bytearray(whole(rank))
    block[4:6] = (2).to_bytes(2, "little")
    return bytes(block)


def upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the index read version 2, which has the layout of version 1."""
    monkeypatch.setattr(block_admission, "BLOCK_VERSION", 2)
    monkeypatch.setattr(database, "BLOCK_VERSION", 2)
    monkeypatch.setattr(
        applier_module,
        "decode_block",
        lambda data, **how: decode_block(bytes(data[:4]) + b"\1\0" + bytes(data[6:]), **how),
    )


class World(ChangedIndex):
    """An index that may have blocks of a newer version."""

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self.restart()

    def restart(self, *, has_receiver: bool = True) -> None:
        self.queue = ChangeQueue(self.channel if has_receiver else None)
        self.admission = BlockAdmission(self.queue.submit)

    def turn(self) -> int:
        return self.turn_until_done(lambda: self.admission.turn(self.index.follower.state, self.now), 1.0)

    def rebuild(self, *ends: int) -> None:
        """Make the database again, with flushes that end at these records."""
        self.index.follower.close()
        self.index.database.close()
        self.index.path.unlink()
        self.index.reopen()
        self.index.follower = LogFollower(self.index.database, self.index.directory / "log", ends)
        self.index.follow()


@pytest.fixture
def world(index: Index) -> Iterator[World]:
    world = World(index)
    yield world
    world.close()


def waiting(world: World) -> None:
    """Log a block that can be read, and two that cannot."""
    world.index.take(whole(logged(0)), newer(logged(1)), newer(logged(2)))
    assert world.turn() == 0
    assert {label for label, *_ in world.index.sql(FLUSHES)} == {"rank0"}


@proves(
    "newer-block-waits-for-admission",
    "blocks of a newer version count to the record that admits them, also after a rebuild",
    condition=False,
)
def test_parked_blocks_count_to_the_record_that_admits_them(world: World, monkeypatch) -> None:
    waiting(world)
    upgrade(monkeypatch)
    world.rebuild()
    assert {label for label, *_ in world.index.sql(FLUSHES)} == {"rank0"}, "until the log says so"
    before = world.index.log.next_number
    assert world.turn() == 1
    rows, views = world.index.sql(FLUSHES), world.index.views()
    assert len(rows) == 9
    assert all((flush >= before) == (label != "rank0") for label, _, flush in rows)
    assert [(number, version) for number, _, version in world.index.sql(QUARANTINE)] == [(2, None), (4, None)]
    world.rebuild(before - 1)
    assert world.index.views() == views
    assert all((flush >= before) == (label != "rank0") for label, _, flush in world.index.sql(FLUSHES))
    world.restart()
    assert world.turn() == 0, "once"


def test_what_comes_after_the_admission_is_applied_in_its_place(world: World, monkeypatch) -> None:
    upgrade(monkeypatch)
    assert world.turn() == 1, "an index that reads more than the log has admitted says so at its start"
    number = world.index.log.next_number
    world.index.take(newer(logged(3)))
    assert {flush for *_, flush in world.index.sql(FLUSHES)} == {number + 1}
    assert world.index.sql(QUARANTINE) == []
    world.index.reopen()
    assert world.turn() == 0


def test_many_parked_blocks_are_applied_by_several_records(world: World, monkeypatch) -> None:
    waiting(world)
    upgrade(monkeypatch)
    monkeypatch.setattr(applier_module, "_AGAIN_MAX", 1)
    assert world.turn() == 2
    assert len(world.index.sql(FLUSHES)) == 9
    assert world.index.sql("SELECT count(*) FROM events WHERE kind = 'accepted_blocks'") == [(2,)]


@proves(
    "unread-blocks-applied-in-place",
    "blocks that an older version passed are applied where a newer one had applied them",
    new="if n_unread := 0:",
)
def test_after_a_downgrade_blocks_are_applied_where_they_were(world: World, monkeypatch) -> None:
    waiting(world)
    with monkeypatch.context() as upgraded:
        upgrade(upgraded)
        world.turn()
        admitted = world.index.log.next_number
        rows = world.index.sql(FLUSHES)
        world.index.take(newer(logged(3)))
    world.rebuild()
    assert {label for label, *_ in world.index.sql(FLUSHES)} == {"rank0"}
    assert world.turn() == 1, "from here on they are parked again"
    world.index.take(newer(logged(4)))
    assert {label for label, *_ in world.index.sql(FLUSHES)} == {"rank0"}
    upgrade(monkeypatch)
    with pytest.raises(StaleDatabaseError, match="lacks 3 blocks"):
        world.index.reopen()
    world.index.path.unlink()
    world.index.reopen()
    world.index.follower = LogFollower(world.index.database, world.index.directory / "log", [5, admitted - 1])
    world.index.follow()
    assert [row for row in world.index.sql(FLUSHES) if row[0] < "rank3"] == rows
    downgraded = world.index.log.next_number
    assert world.turn() == 1
    assert {label for label, _, flush in world.index.sql(FLUSHES) if flush >= downgraded} == {"rank4"}


@proves(
    "parked-block-keeps-sender",
    "a parked block says no more of other nodes than its sender's key allowed",
    part="None if speaker is None else (speaker, number)",
    new="None",
)
def test_the_key_of_the_sender_counts_as_it_was(world: World, monkeypatch) -> None:
    world.index.take_from("node1", newer(logged(1, node="node1")))
    world.index.take_from("node1", newer(logged(2, node="node2")))
    upgrade(monkeypatch)
    assert world.turn() == 1
    assert {label for label, *_ in world.index.sql(FLUSHES)} == {"rank1"}
    assert world.index.sql("SELECT count(*) FROM events WHERE kind = 'refused_node'") == [(1,)]
    world.index.log.append(Kind.RECEIPT, receipt(world.index.log.next_number, b"node1".ljust(16, b"-"), ["node*"]))
    world.index.log.commit()
    world.index.follow()
    assert {label for label, *_ in world.index.sql(FLUSHES)} == {"rank1", "rank2"}


def test_a_parked_block_that_cannot_be_read_again_costs_itself(world: World, monkeypatch) -> None:
    waiting(world)
    upgrade(monkeypatch)
    applier = world.index.follower._applier
    monkeypatch.setattr(
        applier, "_read_again", lambda number: None if number == 2 else world.index.follower._read_again(number)
    )
    assert world.turn() == 1
    assert {label for label, *_ in world.index.sql(FLUSHES)} == {"rank0", "rank2"}
    assert [code for _, code, _ in sorted(world.index.sql(QUARANTINE))] == ["newer_block", "record_gone", "newer_block"]


@proves("refused-admission-waits", "a refused admission is asked for again after a minute", new="pass")
def test_without_a_receiver_it_asks_again_later(world: World, monkeypatch, caplog) -> None:
    waiting(world)
    upgrade(monkeypatch)
    world.restart(has_receiver=False)
    asked: list[float] = []
    submit = world.queue.submit
    monkeypatch.setattr(world.admission, "_submit", lambda request: (asked.append(world.now), submit(request)))
    for _ in range(3):
        world.turn()
    assert len(asked) == 1
    world.now += AGAIN_S
    world.turn()
    assert len(asked) == 2
    assert len([line for line in caplog.messages if "cannot be applied yet" in line]) == 1
