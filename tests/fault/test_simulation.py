"""Seeded schedules of faults on virtual clocks, disks and networks, around the real parts of the delivery path.

Invariant of all of them: when every fault has been repaired, every event is stored once or declared lost, unless the
only disk with the event was destroyed. Nothing is acknowledged before it is synced, credit is kept, and everything is
drained within a minute and a half of virtual time. A failing seed repeats the same schedule; the error's notes contain
its last actions.
"""

import random
from collections import deque

import pytest

from chiplog_agent.pipeline import spool
from chiplog_schemas.codec import unpack
from chiplog_schemas.protocol.messages import MessageKind, parse
from chiplog_schemas.storage.log_reader import LogReader
from chiplog_schemas.storage.record import Kind, Record
from chiplog_schemas.storage.segment_format import read_segment
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.support.rounds import Rounds
from tests.support.safeguard import proves
from tests.support.simulation.machines import live
from tests.support.simulation.virtual import DiskPath, Killed
from tests.support.simulation.world import VirtualLink, World, patched


@proves(
    "spool-synced-before-acknowledge",
    "the agent syncs its spool before it acknowledges",
    environment={"CHIPLOG_FAULT_SEED": "1"},
)
@proves(
    "log-synced-before-acknowledge",
    "the collector syncs its log before it acknowledges",
    environment={"CHIPLOG_FAULT_SEED": "1"},
)
@proves(
    "unacknowledged-sent-again",
    "what was on its way is sent again in a new session",
    environment={"CHIPLOG_FAULT_SEED": "1"},
)
@proves(
    "stored-once",
    "the ledger accepts an event once",
    value="[(first, last)] if have.add(first, last) or True else []",
    environment={"CHIPLOG_FAULT_SEED": "1"},
)
@proves(
    "lost-end-of-rank-declared",
    "what a dead rank produced and did not keep is declared",
    condition=False,
    environment={"CHIPLOG_FAULT_SEED": "1"},
)
@proves(
    "rollback-declared",
    "what a log once acknowledged and has no more is declared",
    condition=False,
    environment={"CHIPLOG_FAULT_SEED": "2000"},
)
@proves(
    "damaged-blocks-declared",
    "what is damaged in a spool is declared",
    part=", reason",
    environment={"CHIPLOG_FAULT_SEED": "1"},
)
@pytest.mark.promise(1)
@pytest.mark.soak(4)
@pytest.mark.timeout(900)
def test_every_event_is_stored_once_or_declared_lost_whatever_fails_on_the_path(rounds: Rounds) -> None:
    for seed in rounds(1_500):
        world = World(seed)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        rounds.count("events", sum(journal.next_seq for journal in world.journals))
        for name, count in world.counts.items():
            if name.startswith("kill"):
                rounds.count("kills", count)
            elif name.startswith("power"):
                rounds.count("power failures", count)
            elif name.startswith(("disk_fills", "spool_is", "network_is_cut", "log_is_rolled")):
                rounds.count(name.replace("_", " "), count)


@proves(
    "acknowledge-only-synced",
    "an acknowledgement covers synced records, not received ones",
    part="._synced",
    new=".next_numbers",
    environment={"CHIPLOG_FAULT_SEED": "1"},
)
@proves(
    "welcome-names-next",
    "a welcome names what the receiver has",
    value="max(previous, message.first) + 1",
    environment={"CHIPLOG_FAULT_SEED": "1"},
)
@proves(
    "foreign-session-dropped",
    "a sender drops what is not of its session",
    new="if self.state is SenderState.CLOSED:",
    environment={"CHIPLOG_FAULT_SEED": "1"},
)
@proves(
    "replaced-session-forgotten",
    "a receiver forgets a session that was replaced",
    environment={"CHIPLOG_FAULT_SEED": "1"},
)
@proves(
    "data-jump-is-loss", "a jump in DATA is a lost message", condition=False, environment={"CHIPLOG_FAULT_SEED": "1"}
)
@proves(
    "ping-shows-loss",
    "a PING beyond the received numbers shows a lost message",
    condition=False,
    environment={"CHIPLOG_FAULT_SEED": "1"},
)
@proves(
    "sent-within-credit",
    "no slice is sent beyond the credit",
    value="self.credit if self.state is SenderState.OPEN else 0",
    environment={"CHIPLOG_FAULT_SEED": "1"},
)
@pytest.mark.soak(2)
@pytest.mark.timeout(900)
def test_both_hops_deliver_everything_whatever_the_network_and_the_processes_do(rounds: Rounds) -> None:
    for seed in rounds(2_000):
        try:
            rounds.count("actions", len(live(seed)))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_seed_lives_through_the_same_again() -> None:
    for seed in range(20):
        first, second = World(seed), World(seed)
        first.run()
        second.run()
        assert (first.trace, first.rows, first.clock.now) == (second.trace, second.rows, second.clock.now), seed
        assert first.disk.directories.keys() == second.disk.directories.keys()
        assert live(seed) == live(seed)


def test_the_schedules_reach_every_bound_and_every_kind_of_loss() -> None:
    """Else they would prove less than they seem to."""
    declared, losses, excused, full = 0, 0, 0, 0
    for seed in range(300):
        world = World(seed)
        world.run()
        assert world.index is not None
        declared += bool(world.declared_gaps())
        losses += any(world.index.applier.state.lost.values())
        excused += bool(world.excused)
        full += world.n_full > 0
    assert min(declared, losses, excused, full) > 0, (declared, losses, excused, full)


@proves("unsynced-tail-synced", "what a killed writer left unsynced is synced before it counts")
def test_what_a_killed_writer_left_is_synced_by_the_next_one() -> None:
    """Found by a schedule: what counts as had after a start was in the page cache only, and was acknowledged."""
    world = World(0)
    directory = DiskPath("/c/log")
    with patched(world):
        log = SegmentLog(directory, b"o" * 16)
        log.append(Kind.BLOCK, b"first")
        log.commit()
        log.append(Kind.BLOCK, b"second")
        world.disk.kill_at["c"] = "before"
        with pytest.raises(Killed):
            log.commit()
        assert SegmentLog(directory, b"o" * 16).next_number == 2
        world.disk.lose_power("c")
        left = SegmentLog(directory, b"o" * 16).segments()
        assert [item.number for _, path in left for item in read_segment(path)] == [0, 1]  # type: ignore[union-attr]


@proves("waiting-records-count", "what waits for a refusing disk counts as there", value="self.next_number")
def test_a_spool_whose_first_write_is_refused_sends_it_when_the_disk_has_room() -> None:
    """Found by a schedule: an empty log treated pending blocks as gone, and declared them lost to the collector."""
    world = World(0)
    with patched(world):
        waiting = spool.Spool(DiskPath("/t/spool"), b"s" * 16)  # type: ignore[arg-type]
        waiting.append(b"block")
        world.disk.full.add("t")
        with pytest.raises(OSError, match="virtual disk full"):
            waiting.sync()
        assert waiting.first_number == 0
        waiting.seek(0)
        world.disk.full.clear()
        waiting.sync()
        piece = waiting.read(1_000)
        assert piece is not None
        assert (piece.first, piece.last, piece.lost) == (0, 0, "")


@proves("seen-numbers-not-reused", "numbers that the collector may have seen are not reused", condition=False)
def test_a_spool_whose_only_record_is_damaged_begins_anew_under_another_id() -> None:
    """Found by a schedule: its numbers were reused under the same ID, and the new records were treated as received."""
    world = World(0)
    with patched(world):
        first = spool.Spool(DiskPath("/t/spool"), b"s" * 16)  # type: ignore[arg-type]
        first.append(b"block")
        first.sync()
        (file,) = world.disk.directories["/t/spool"].values()
        file.data[-1] ^= 1
        world.ends.clear()  # never synced: lost in a power failure
        assert spool.Spool(DiskPath("/t/spool"), b"n" * 16).id == b"n" * 16  # type: ignore[arg-type]


@proves("loss-keeps-its-place", "a loss is sent in its place: if the connection loses it, the next connection sends it")
def test_a_loss_whose_message_is_lost_is_told_again() -> None:
    world = World(0)
    with patched(world):
        damaged = spool.Spool(DiskPath("/t/spool"), b"s" * 16)  # type: ignore[arg-type]
        for block in (b"first", b"second", b"third"):
            damaged.append(block)
        damaged.sync()
        (file,) = (f for name, f in world.disk.directories["/t/spool"].items() if name.endswith(".seg"))
        file.data[file.data.index(b"second")] ^= 1
        again = spool.Spool(DiskPath("/t/spool"), b"s" * 16)  # type: ignore[arg-type]
        world.start_collector()
        sending = VirtualLink(None, "collector", again.id, {"node": "t"}, again)
        n_lost = 0
        for _ in range(100):
            sending.poll(world.clock.now)
            leaving = sending.socket.leaving if sending.socket is not None else deque()  # type: ignore[attr-defined]
            for entry in [entry for entry in leaving if not n_lost and parse(entry[1]).kind == MessageKind.LOST]:
                leaving.remove(entry)
                n_lost += 1
            world.turn(0.1)
        assert n_lost == 1
        assert again.is_drained
        found = LogReader(world.log_path).read(1 << 40, 1 << 20)
        gaps = [unpack(item.payload) for item in found if isinstance(item, Record) and item.kind == Kind.GAP]
        assert gaps == [[b"s" * 16, 1, 1, spool.DAMAGED]]


def test_a_virtual_power_failure_keeps_what_was_synced() -> None:
    """The disk itself: a simulation on one that keeps too much or too little proves nothing."""
    kept = set()
    for seed in range(50):
        world = World(seed)
        world.chance = random.Random(seed)
        with patched(world):
            log = SegmentLog(DiskPath("/c/log"), b"o" * 16)
            log.append(Kind.BLOCK, b"x" * 50)
            log.commit()
            log.append(Kind.BLOCK, b"y" * 50)
            log.commit(sync=False)
            world.disk.lose_power("c")
            kept.add(SegmentLog(DiskPath("/c/log"), b"o" * 16).next_number)
    assert kept == {1, 2}
