"""The two delivery machines on both hops, without blocks or files: rank → relay → sink, over the virtual network.

Each hop is a real `SenderProtocol`, a real `ReceiverProtocol` and the few lines of a shell. A log is a list of (number,
event); a power failure removes what was not synced. The driver, a seed or hypothesis, calls the methods.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from chiplog_schemas.limits import PEER_SILENT_S
from chiplog_schemas.protocol.actions import (
    Acknowledged,
    Connect,
    DataReceived,
    Disconnect,
    NumbersLost,
    Reply,
    Resume,
    Send,
)
from chiplog_schemas.protocol.receiver import ReceiverProtocol
from chiplog_schemas.protocol.sender import SenderProtocol, SenderState
from tests.support.simulation.virtual import Clock, Dealer, Network, Router

CREDIT = 6
SLICE = 4  # a payload's length is the number of its records
DRAINED_WITHIN_S = 60.0
Entry = tuple[int, Any]


class Payload(tuple[Entry, ...]):
    """A slice of a log. Its length is what credit counts; the wire carries it as it is."""

    __slots__ = ()


@dataclass
class Log:
    """Numbered entries on a disk. `synced`: the number after the last one that survives a power failure."""

    first: int = 0
    next: int = 0
    synced: int = 0
    entries: list[Entry] = field(default_factory=list)

    def append(self, event: Any) -> None:
        self.entries.append((self.next, event))
        self.next += 1

    def trim(self, before: int) -> None:
        if before > self.first:
            self.first = min(before, self.next)
            self.entries = [entry for entry in self.entries if entry[0] >= self.first]


class Upper:
    """The sending end of a hop: a process, and a log that outlives it."""

    def __init__(self, hops: "Hops", name: bytes, address: str) -> None:
        self.hops, self.name, self.address = hops, name, address
        self.log = Log()
        self.dealer: Dealer | None = None
        self.restart()

    def restart(self) -> None:
        self.drop()
        chance = self.hops.chance
        self.machine = SenderProtocol(
            self.name, {}, lambda: chance.getrandbits(64).to_bytes(8, "big"), lambda: 0.5 + chance.random() / 2
        )
        self.position = self.log.first
        self.granted = 0

    def drop(self) -> None:
        if self.dealer is not None:
            if self.hops.chance.random() < 0.5:
                self.dealer.leaving.clear()
            self.dealer.close()
            self.dealer = None

    def turn(self) -> None:
        now = self.hops.clock.now
        while self.dealer is not None and self.dealer.arriving and self.dealer.arriving[0][0] <= now:
            if self.hops.network.is_cut(self.dealer, "back"):
                break
            self.act(self.machine.receive(self.dealer.arriving.popleft()[1], now))
        self.act(self.machine.tick(now, self.log.first))
        while (window := self.machine.window()) > 0:
            limit = min(window, SLICE)
            piece = [entry for entry in self.log.entries if self.position <= entry[0] < self.log.synced][:limit]
            if not piece:
                break
            self.position = piece[-1][0] + 1
            self.act([self.machine.data(piece[0][0], piece[-1][0], Payload(piece), now)])  # type: ignore[arg-type]
        self.hops.check_credit(self)

    def act(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Connect(frames):
                    self.drop()
                    self.granted = 0
                    self.dealer = self.hops.network.connect(self.address, self.name.decode().strip())
                    self.dealer.send_multipart(list(frames))
                case Disconnect():
                    self.drop()
                case Send(frames):
                    assert self.dealer is not None
                    self.dealer.send_multipart(list(frames))
                case Resume(number):
                    self.position = max(number, self.log.first)
                case Acknowledged(number):
                    self.hops.check_acknowledged(self, number)
                    self.log.trim(number)
        self.granted = max(self.granted, self.machine.credit)


class Lower:
    """The receiving end: a process that receives, syncs and acknowledges. The sink keeps numbers, a relay does not."""

    def __init__(self, hops: "Hops", address: str, *, keeps: bool) -> None:
        self.hops, self.address, self.keeps = hops, address, keeps
        self.kept: dict[bytes, int] = {}  # next numbers on the disk
        self.synced: dict[bytes, set[Any]] = {}  # events on the disk, by sender
        self.refuses = False  # the disk
        self.restart()

    def restart(self) -> None:
        self.machine = ReceiverProtocol(self.kept if self.keeps else None, CREDIT)
        self.router = self.hops.network.routers[self.address] = Router()
        self.taken: list[DataReceived] = []
        self.gaps: list[NumbersLost] = []

    def turn(self) -> None:
        now = self.hops.clock.now
        self.hops.network.deliver(self.address)
        while self.router.queue:
            routing, frames = self.router.queue.popleft()
            self.act(self.machine.receive(routing, frames, now))
        self.act(self.machine.tick(now))

    def act(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Reply():
                    self.router.send_multipart([action.routing, *action.frames])
                case DataReceived():
                    self.taken.append(action)
                case NumbersLost():
                    self.gaps.append(action)

    def sync(self) -> None:
        if self.refuses:
            return
        taken, self.taken = self.taken, []
        for take in taken:
            events = [event for _, event in take.payload]
            self.synced.setdefault(take.sender, set()).update(events)
            self.kept[take.sender] = max(take.last + 1, self.kept.get(take.sender, 0))
            self.hops.arrived(self, events)
        for take in taken:
            self.act(self.machine.acknowledge(take.sender, take.last + 1))


class Hops:
    """Ranks, one relay, one sink. `check` asserts what must hold when all faults are repaired."""

    def __init__(self, chance: random.Random, n_ranks: int = 2) -> None:
        self.chance = chance
        self.clock = Clock()
        self.network = Network(self.clock, chance)
        self.ranks = [Upper(self, f"rank{n}".encode().ljust(16), "relay") for n in range(n_ranks)]
        self.relay = Lower(self, "relay", keeps=False)
        self.up = Upper(self, b"spool".ljust(16), "sink")
        self.sink = Lower(self, "sink", keeps=True)
        self.had: set[Any] = set()  # what the sink synced
        self.logged: set[Any] = set()

    def all_ends(self) -> tuple[list[Upper], list[Lower]]:
        return [*self.ranks, self.up], [self.relay, self.sink]

    # -- what is watched --

    def arrived(self, lower: Lower, events: list[Any]) -> None:
        if lower is self.relay:
            for event in events:
                self.up.log.append(event)
            self.up.log.synced = self.up.log.next
        else:
            self.had.update(events)

    def check_acknowledged(self, upper: Upper, number: int) -> None:
        lower = self.sink if upper is self.up else self.relay
        there = lower.synced.get(upper.name, set())
        missing = [entry for entry in upper.log.entries if entry[0] < number and entry[1] not in there]
        assert not missing, f"acknowledged up to {number}, and {missing} is on no disk"

    def check_credit(self, upper: Upper) -> None:
        machine = upper.machine
        in_flight = machine.in_flight_bytes if machine.state is SenderState.OPEN else 0
        assert 0 <= in_flight <= max(upper.granted, machine.credit), f"{in_flight} records for {machine.credit}"
        assert len(machine._in_flight) <= CREDIT + 1
        assert machine.state is SenderState.OPEN or machine.window() == 0

    def check_memory(self) -> None:
        for lower in (self.relay, self.sink):
            machine = lower.machine
            assert len(machine._sessions) == len(machine._senders) <= len(self.ranks)

    # -- what may happen --

    def log(self, which: int, count: int) -> None:
        rank = self.ranks[which]
        for _ in range(count):
            self.logged.add((which, rank.log.next))
            rank.log.append((which, rank.log.next))
        rank.log.synced = rank.log.next  # its page cache survives the process

    def skip_numbers(self, which: int, count: int) -> None:
        """A journal that was full: these numbers are in no log."""
        self.ranks[which].log.next += count

    def turn(self, dt: float = 0.1, *, sync: bool = True) -> None:
        uppers, lowers = self.all_ends()
        self.clock.now += dt
        for upper in uppers:
            upper.turn()
        for lower in lowers:
            lower.turn()
            if sync:
                lower.sync()
        self.check_memory()

    def silence(self) -> None:
        self.turn(PEER_SILENT_S + 1)

    def kill_rank(self, which: int) -> None:
        self.ranks[which].restart()

    def kill_relay(self) -> None:
        """Restart the agent: its spool stays, received and unsynced records are gone."""
        self.relay.restart()
        self.up.restart()

    def kill_sink(self) -> None:
        self.sink.restart()

    def fail_to_send(self, which: int) -> None:
        upper = self.all_ends()[0][which % (len(self.ranks) + 1)]
        upper.act(upper.machine.abort(self.clock.now, "queue full"))

    def set_credit(self, credit: int) -> None:
        for lower in (self.relay, self.sink):
            lower.act(lower.machine.set_credit(credit))

    def refuse(self, which: int, *, refuses: bool) -> None:
        (self.relay, self.sink)[which].refuses = refuses

    def lose_messages(self, which: int) -> None:
        if self.network.dealers:
            self.network.lose_some(self.network.dealers[which % len(self.network.dealers)])

    def lose_one_between(self, which: int) -> None:
        """A rank sends two slices, and the first of them is lost."""
        rank = self.ranks[which]
        for is_lost in (True, False):
            self.log(which, 1)
            rank.turn()
            if is_lost and rank.dealer is not None and rank.dealer.leaving:
                rank.dealer.leaving.pop()

    def lose_acknowledgements(self, which: int) -> None:
        if self.network.dealers:
            self.network.dealers[which % len(self.network.dealers)].arriving.clear()

    def cut(self, which: int, way: str) -> None:
        self.network.cuts.add((self.all_ends()[0][which % (len(self.ranks) + 1)].name.decode().strip(), way))

    def mend(self) -> None:
        self.network.cuts.clear()

    def slow(self, delay_s: float) -> None:
        self.network.delay_s = delay_s

    def repeat(self) -> None:
        """A message comes again, in its session or long after it."""
        self.network.repeat_one()

    # -- the end --

    def heal(self) -> None:
        self.mend()
        self.slow(0.0)
        self.relay.refuses = self.sink.refuses = False
        self.set_credit(CREDIT)
        end = self.clock.now + DRAINED_WITHIN_S
        uppers, _ = self.all_ends()
        while any(upper.log.entries for upper in uppers):
            assert self.clock.now < end, [(u.name, u.machine.state, u.log.entries[:3]) for u in uppers]
            self.turn(0.2)

    def check(self) -> None:
        assert self.had == self.logged, f"{sorted(self.logged - self.had)} never came"
        assert not self.sink.gaps, "nothing was lost, and a gap was declared"


def live(seed: int) -> list[str]:
    """Live through one schedule and check it; return what happened. An AssertionError's notes hold the same."""
    chance = random.Random(seed)
    hops = Hops(chance)
    trace: list[str] = []
    try:
        for _ in range(chance.randint(8, 24)):
            act = chance.choice(ACTIONS)
            trace.append(f"{hops.clock.now:7.2f} {act.__name__}")
            act(hops, chance)
            hops.turn(chance.choice((0.0, 0.02, 0.1, 0.5)), sync=chance.random() < 0.7)
        trace.append(f"{hops.clock.now:7.2f} heal")
        hops.heal()
        hops.check()
    except AssertionError as error:
        error.add_note("\n".join(trace[-25:]))
        raise
    return trace


def log_some(hops: Hops, chance: random.Random) -> None:
    for which in range(len(hops.ranks)):
        hops.log(which, chance.randint(1, 3))


def log_more(hops: Hops, chance: random.Random) -> None:
    hops.log(chance.randrange(len(hops.ranks)), 8)


def skip_numbers(hops: Hops, chance: random.Random) -> None:
    hops.skip_numbers(chance.randrange(len(hops.ranks)), chance.randint(1, 4))


def work(hops: Hops, chance: random.Random) -> None:
    for _ in range(3):
        hops.turn(0.06)


def kill_rank(hops: Hops, chance: random.Random) -> None:
    hops.kill_rank(chance.randrange(len(hops.ranks)))


def kill_relay(hops: Hops, chance: random.Random) -> None:
    hops.kill_relay()


def kill_sink(hops: Hops, chance: random.Random) -> None:
    hops.kill_sink()


def fail_to_send(hops: Hops, chance: random.Random) -> None:
    hops.fail_to_send(chance.randrange(3))


def change_credit(hops: Hops, chance: random.Random) -> None:
    hops.set_credit(chance.choice((0, 1, 3, CREDIT)))


def disk_refuses(hops: Hops, chance: random.Random) -> None:
    hops.refuse(chance.randrange(2), refuses=chance.random() < 0.5)


def lose_messages(hops: Hops, chance: random.Random) -> None:
    hops.lose_messages(chance.randrange(8))


def lose_acknowledgements(hops: Hops, chance: random.Random) -> None:
    hops.lose_acknowledgements(chance.randrange(8))


def cut(hops: Hops, chance: random.Random) -> None:
    hops.cut(chance.randrange(3), chance.choice(("forth", "back")))


def mend(hops: Hops, chance: random.Random) -> None:
    hops.mend()


def slow(hops: Hops, chance: random.Random) -> None:
    hops.slow(chance.choice((0.0, 0.05, 0.5)))


def repeat(hops: Hops, chance: random.Random) -> None:
    hops.repeat()


def silence(hops: Hops, chance: random.Random) -> None:
    hops.silence()


_OFTEN = (log_some,) * 8 + (work,) * 5 + (repeat, lose_messages) * 3 + (mend, lose_acknowledgements, log_more) * 2
_ONCE = (kill_rank, kill_relay, kill_sink, fail_to_send, change_credit, disk_refuses, cut, slow, silence, skip_numbers)
ACTIONS = _OFTEN + _ONCE
