"""The whole delivery path in one thread, with a virtual clock, network and disk; every chance comes from one seed.

Real: the delivery machines and their `Link`, the agent's daemon turn by turn (messages, blocks, adoption, spool, flush,
gaps), its `Core` and `Spool`, the segment log and its readers, the collector's receiver, `Intake`, and the index's
`Applier` on what a `LogReader` finds. Simulated: sockets, files and clocks (virtual.py), the rank's journal (records in
a list, with the journal's rules about drops), the locks of dead ranks, and DuckDB: a position and a table of rows.
Bounds are made small, so that each is reached.
"""

import contextlib
import random
import struct
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import zmq

from chiplog_agent import daemon as agent_daemon
from chiplog_agent.pipeline import collector_supervisor, spool
from chiplog_agent.ranks.orphan_journals import OrphanJournal, OrphanJournalCollector
from chiplog_collector.index.apply.applier import Applier
from chiplog_collector.index.apply.state import State
from chiplog_collector.receiver import daemon as receiver_daemon
from chiplog_schemas.codec import pack, unpack
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.events import EventKind, decode, encode
from chiplog_schemas.model.intervals import Intervals
from chiplog_schemas.protocol.sender import SenderProtocol
from chiplog_schemas.storage import log_reader, segment_format, segment_log
from chiplog_schemas.storage.record import HEADER_BYTES, CorruptRange, Kind, Record, scan_records, unpack_header
from chiplog_schemas.storage.record import encode as frame
from chiplog_schemas.transport import dealer
from chiplog_schemas.transport.dealer import LogSlice
from tests.support.blocks import block_to_rows
from tests.support.simulation.virtual import Clock, Dealer, Disk, DiskPath, File, Killed, Monitor, Network, Router

CREDIT = 1_500
BATCH = 400
SPOOL_BYTES = 1_500
JOURNAL_RECORDS = 12
DRAINED_WITHIN_S = 90.0  # of virtual time after the last fault: two silences, two longest pauses, and the work
_KEYS = pack(["loss"])


class Poller:
    """What a loop waits on: the one socket of a receiving end."""

    def register(self, socket: Any, flags: int = 0) -> None:
        if not isinstance(socket, int):
            self.socket = socket

    def poll(self, wait_ms: int) -> Any:
        return self.socket.poll(wait_ms)


_ZMQ = SimpleNamespace(
    Context=lambda: None,
    Poller=Poller,
    DONTWAIT=zmq.DONTWAIT,
    POLLIN=zmq.POLLIN,
    Again=zmq.Again,
    ZMQError=zmq.ZMQError,
)
# Saved files use another path; tests/schemas/protocol/test_file_delivery.py simulates faults for them.
NO_FILES = SimpleNamespace(
    step=lambda now: ([], []), committed=list, fileno=lambda: -1, close=lambda: None, malformed=0
)


class ViolationError(AssertionError):
    """A promise that does not hold."""


def value_of(seq: int) -> float:
    return seq * 1.5 + 0.25


def ranges_of(block: bytes) -> list[tuple[bytes, list[tuple[int, int]]]]:
    """Read the seqs of each producer from a block's header."""
    producers = unpack(block[8 : 8 + int.from_bytes(block[:4], "little")])[1]
    return [(producer, list(zip(flat[::2], flat[1::2], strict=True))) for producer, flat in producers]


class Journal:
    """A rank's journal. It outlives its process; only a power failure removes something from it."""

    def __init__(self, world: "World", producer: bytes, node: "Node") -> None:
        self.world, self.producer, self.node = world, producer, node
        self.records: deque[tuple[int, bytes]] = deque()
        self.next_seq = self.acked = self.produced = self.cursor = 0
        self.acked_before = [0]  # possible values of the head page after a power failure
        self.finished = False
        self.holder: Rank | None = None
        self.logged: set[int] = set()  # seqs of metrics whose log() kept them
        self._drop_first = -1

    def append(self, kind: EventKind, *fields: Any, urgent: bool = False) -> None:
        now_us = self.world.clock.now_us()
        room = JOURNAL_RECORDS + (3 if urgent else 0) - len(self.records)
        if room < 1 + (self._drop_first >= 0):
            if self._drop_first < 0:
                self._drop_first = self.next_seq
            self.next_seq += 1
            self.produced = self.next_seq
            return
        if self._drop_first >= 0:
            self._keep(encode(EventKind.LOST, now_us, b"", self._drop_first, self.next_seq - 1, "journal full"))
            self._drop_first = -1
        if kind == EventKind.METRICS:
            self.logged.add(self.next_seq)
            fields = (self.next_seq, _KEYS, struct.pack("<d", value_of(self.next_seq)))
        self._keep(encode(kind, now_us, *fields))

    def _keep(self, payload: bytes) -> None:
        self.records.append((self.next_seq, frame(Kind.EVENT, self.next_seq, payload)))
        self.next_seq += 1

    # -- the Source of the link --

    @property
    def first_number(self) -> int:
        return max(self.acked, self.records[0][0] if self.records else self.acked)

    def seek(self, number: int) -> None:
        self.cursor = max(number, self.first_number)

    def read(self, max_bytes: int) -> LogSlice | None:
        parts: list[bytes] = []
        first, size = self.cursor, 0
        for seq, record in self.records:
            if seq >= self.cursor:
                if parts and size + len(record) > max_bytes:
                    break
                parts.append(record)
                size += len(record)
                self.cursor = seq + 1
        return LogSlice(first, self.cursor - 1, b"".join(parts)) if parts else None

    def acknowledged(self, next_number: int) -> None:
        if next_number <= self.acked:
            return
        self.world.check_acknowledged(self, next_number)
        self.acked = next_number
        self.acked_before.append(next_number)
        while self.records and self.records[0][0] < next_number:
            self.records.popleft()


class DeadJournal:
    """What the agent sees of a journal whose process is gone."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.directory = journal.producer.hex()
        self.head = SimpleNamespace(
            acked=journal.acked,
            produced=journal.produced,
            finished=journal.finished,
            left=False,
            identity={},
            promised=0,
        )

    def records(self, first: int) -> Iterator[Record | CorruptRange]:
        return iter([item for seq, data in self._journal.records if seq >= first for item in scan_records(data)])

    def remove(self) -> None:
        self._journal.world.check_acknowledged(self._journal, self._journal.next_seq, removed=True)
        self._journal.node.journals.pop(self._journal.producer, None)


# Processes are virtual too: their locks show that they ended, but not how.
UNSEEN_ENDS = SimpleNamespace(
    watched=frozenset(),
    poll=lambda now_us: False,
    on_hello=lambda producer, pid=0: None,
    pid_of=lambda producer: 0,
    may_be_dismissed=lambda *more: False,
    forget=lambda producer: None,
    end_by_exec=lambda *more: None,
    resolve=lambda producer, identity, now_us, **said: (now_us, {"state": "crashed", "reason": "vanished"}),
)


class VirtualAdoption(OrphanJournalCollector):
    """The collector of orphans with the node's journals in place of a directory."""

    def scan(self, synced: dict[bytes, int], connected: Container[bytes] = ()) -> list[bytes]:
        node: Node = self._journals  # type: ignore[assignment]
        held = {adopted.producer for adopted in (*self._waiting, *self._unreadable)} | set(self._adopted)
        self.known = set(node.journals)
        found = []
        self.alive = 0
        for producer, journal in node.journals.items():
            if producer in held:
                continue
            if journal.holder is not None:
                self.alive += 1
                continue
            dead: Any = DeadJournal(journal)
            first = max(synced.get(producer, 0), journal.acked)
            lock: Any = SimpleNamespace(release=lambda: None)
            self._adopted[producer] = OrphanJournal(producer, dead, lock, dead.records(first), first)
            found.append(producer)
        return found


class VirtualLink(dealer.DeliveryClient):
    """The link with a virtual socket, and the seed's nonces."""

    def __init__(self, context: Any, address: str, sender: bytes, info: dict[str, Any], source: Any, **more: Any):
        super().__init__(context or object(), address, sender, info, source)  # None would be a plain socket
        world = World.now_running
        self.world = world
        self.protocol = SenderProtocol(sender, info, lambda: world.bytes(8), lambda: 0.5 + world.chance.random() / 2)
        self.granted, self.of_session = 0, 0

    def _new_socket(self) -> Any:
        dealer = self.world.network.connect(self.address, self.protocol.info["node"])
        self._monitor = Monitor(dealer)  # type: ignore[assignment]
        return dealer

    def poll(self, now: float) -> None:
        super().poll(now)
        machine = self.protocol
        if machine.sessions != self.of_session:
            self.of_session, self.granted = machine.sessions, 0
        self.granted = max(self.granted, machine.credit)
        newest = machine._in_flight[-1][1] if machine._in_flight else 0
        if machine.in_flight_bytes - newest > self.granted:  # one record may exceed it
            raise ViolationError(f"{machine.in_flight_bytes} bytes are on their way with a credit of {self.granted}")


class VirtualSpool(spool.Spool):
    """The spool, watched: which events lie under which number."""

    def __init__(self, directory: Any, new_id: bytes, **more: Any) -> None:
        super().__init__(directory, new_id, **more)
        World.now_running.owners[self.id] = directory

    def _renumber_from(self, number: int) -> None:
        world, before = World.now_running, self._raised
        super()._renumber_from(number)
        world.raised[self.id] = self._raised
        declared = world.to_be_declared.get(self.id, set())
        for own in range(self._log.next_number - 1, self._first - 1, -1):
            block = world.numbers.get((self.id, own + before))
            if block is not None:
                world.blocks[block] = (self.id, own + self._raised)
                world.numbers[self.id, own + self._raised] = block
            if own + before in declared:
                declared.remove(own + before)
                declared.add(own + self._raised)

    def append(self, block: bytes) -> None:
        world, number = World.now_running, self._log.next_number + self._raised
        world.blocks[bytes(block)] = (self.id, number)
        world.numbers[self.id, number] = bytes(block)
        super().append(block)

    def acknowledged(self, next_number: int) -> None:
        world = World.now_running
        for number in range(self._acked + self._raised, min(next_number, self._log.next_number + self._raised)):
            block = world.numbers.get((self.id, number))
            damaged = number in world.to_be_declared.get(self.id, ())
            if block is not None and block not in world.in_log and not damaged:
                raise ViolationError(f"spool record {number} was acknowledged and is not on the collector's disk")
        super().acknowledged(next_number)


class SoleOwnership:
    """The ownership of a log that no other machine sees."""

    def __init__(self, places: Any, **given: Any) -> None:
        pass

    def renew(self) -> str:
        return ""

    def confirm(self) -> None:
        pass

    def release(self) -> None:
        pass


class Synced:
    """The small file with the synced position of a log. After a power failure it may only be lower."""

    def __init__(self, path: str, *, writable: bool) -> None:
        self._cells = World.now_running.ends
        self._path = str(path)
        self.exists_on_disk = True
        self.is_valid = self._path in self._cells

    def set(self, number: int) -> None:
        self._cells[self._path] = number

    def sync(self) -> None:
        World.now_running.ends_at_least[self._path] = self._cells[self._path]

    def get(self) -> int:
        self.is_valid = True  # a new file holds 0
        return self._cells.get(self._path, 0)

    def close(self) -> None: ...


class Door:
    """A bound ROUTER without keys."""

    def __init__(self, context: Any, addresses: list[str], *more: Any) -> None:
        self.socket = World.now_running.network.routers[addresses[0]] = Router()

    @property
    def has_message(self) -> bool:
        return self.socket.poll() > 0

    def receive(self, now: float) -> Any:
        routing, *frames = self.socket.recv_multipart()
        return SimpleNamespace(routing=routing, frames=frames, client=SimpleNamespace(permit=None), peer_pid=None)

    def reply(self, reply: Any, now: float) -> None:
        self.socket.send_multipart([reply.routing, *reply.frames])

    def throttle_listeners(self, now: float) -> None: ...

    def close(self, linger_ms: int) -> None:
        self.socket.close()


class Rank:
    """A training process: a journal and a link."""

    def __init__(self, world: "World", node: "Node") -> None:
        self.journal = Journal(world, world.bytes(16), node)
        self.journal.holder = self
        self.world, self.node = world, node
        node.journals[self.journal.producer] = self.journal
        world.journals.append(self.journal)
        identity = {"role": "rank", "run_id": "r", "label": f"l{len(world.journals)}"}
        self.journal.append(EventKind.IDENTITY, identity)
        info = {"node": node.name, "pid": 1}
        self.link = VirtualLink(None, node.address, self.journal.producer, info, self.journal)

    def finish(self) -> None:
        self.journal.append(EventKind.STATE, {"state": "finished", "exit_code": 0}, urgent=True)
        self.journal.finished, self.journal.produced = True, self.journal.next_seq
        self.link.poll(self.world.clock.now)
        self.link.close()
        self.die()
        if self.journal.acked >= self.journal.next_seq:
            self.node.journals.pop(self.journal.producer, None)

    def die(self) -> None:
        self.world.network_closes(self.link)
        self.journal.holder = None
        self.node.rank = None


class Node:
    """A machine with a rank and an agent."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.address = f"agent-{name}"
        self.journals: dict[bytes, Journal] = {}
        self.rank: Rank | None = None
        self.agent: agent_daemon.AgentDaemon | None = None
        self.spool_path = DiskPath(f"/{name}/spool")

    def start_agent(self) -> None:
        places = SimpleNamespace(
            former=(),
            may_be_shared=False,
            agent=DiskPath(f"/{self.name}"),
            journals=self,
            agent_address=self.address,
            collector_address="collector",
            outbox=None,
            agent_link=None,
            owners=None,
        )
        settings = agent_daemon.AgentSettings(places, self.name, stats=False, spool_bytes_max=SPOOL_BYTES)  # type: ignore[arg-type]
        settings.credit_bytes = CREDIT
        try:
            self.agent = agent_daemon.AgentDaemon(settings, None)  # type: ignore[arg-type]
        except (OSError, Killed):
            return  # the caller that starts agents tries again
        self.agent._check_files = lambda *more: None  # type: ignore[method-assign]

    def kill_agent(self) -> None:
        if self.agent is not None:
            self.world.network_closes(self.agent._delivery)
            self.agent = None
            self.world.network.routers.pop(self.address, None)

    def turn(self) -> None:
        agent, now = self.agent, self.world.clock.now
        if self.rank is not None:
            self.rank.link.poll(now)
        if agent is None:
            return
        self.world.network.deliver(self.address)
        try:  # the body of AgentDaemon.run's loop
            agent._take_messages(now)
            agent._poll_journals(now)
            agent._flush(now)
            agent._delivery.poll(now)
            self.world.n_full += agent._spool.is_full
            agent._act(agent._receiver.set_credit(0 if agent._spool.is_full else CREDIT), now)
        except Killed:
            self.world.note(f"{self.name}: agent killed in its sync")
            self.kill_agent()


class Index:
    """The index process: real applier, and a table in place of DuckDB. `committed` outlives it."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.applier = Applier(State())
        for item, number in world.committed:  # what loading the state from DuckDB gives
            self.applier.apply(item, number)
        self.applier.flush()
        self.reader = log_reader.LogReader(world.log_path, world.position)
        self.read_number = world.position
        self.taken: list[tuple[Any, int]] = []

    def step(self) -> None:
        world = self.world
        for item in self.reader.read(world.ends.get("/c/synced", 0), 4_000):
            number = item.number if isinstance(item, Record) else self.read_number
            self.applier.apply(item, number)
            self.taken.append((item, number))
            self.read_number = number + 1 if isinstance(item, Record) else number
            if self.applier.is_between_receipts:
                self.commit()

    def commit(self) -> None:
        world, state = self.world, self.applier.state
        batch = self.applier.flush()
        world.committed += self.taken
        self.taken = []
        world.position = self.read_number
        world.quarantined += len(batch.rows.get("quarantine", ()))
        for matrices in batch.metrics.values():
            for matrix in matrices:
                rows = zip(matrix.producer.tolist(), matrix.seq.tolist(), matrix.values[:, 0].tolist(), strict=True)
                for producer, seq, value in rows:
                    world.rows[state.producers_by_number[producer].uuid, seq] += 1
                    if value != value_of(seq):
                        raise ViolationError(f"event {seq} came as {value}")


class World:
    """Machines, processes, and what must hold. `run(seed)` lives through one schedule."""

    now_running: "World"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.clock = Clock()
        self.network = Network(self.clock, self.chance)
        self.disk = Disk(self.chance, self._on_safe)
        self.trace: deque[str] = deque(maxlen=40)
        self.counts: Counter[str] = Counter()
        self.journals: list[Journal] = []
        self.blocks: dict[bytes, tuple[bytes, int]] = {}  # block -> (spool, number)
        self.numbers: dict[tuple[bytes, int], bytes] = {}
        self.in_spool: dict[bytes, Intervals] = {}  # of each producer, what a spool's disk has or had
        self.in_log: set[bytes] = set()  # blocks that the collector's disk has or had
        self.excused: dict[bytes, set[int]] = {}  # destroyed with a disk, and unknown
        self.to_be_declared: dict[bytes, set[int]] = {}  # spool -> numbers that the collector had and forgot
        self.owners: dict[bytes, str] = {}  # spool -> its directory
        self.raised: dict[bytes, int] = {}  # spool -> what it adds to its numbers
        self.log_path = DiskPath("/c/log")
        self.collector: receiver_daemon.ReceiverDaemon | None = None
        self.index: Index | None = None
        self.ends: dict[str, int] = {}  # path -> content of the small file there
        self.ends_at_least: dict[str, int] = {}  # and what of it has reached the disk
        self.committed: list[tuple[Any, int]] = []
        self.position = 0
        self.rows: Counter[tuple[bytes, int]] = Counter()
        self.quarantined = 0
        self.n_full = 0  # turns in which a spool was full and its agent gave no credit
        self.backup: dict[str, bytes] | None = None
        self.nodes = [Node(self, f"n{count}") for count in range(self.chance.randint(1, 2))]

    def bytes(self, size: int) -> bytes:
        return self.chance.getrandbits(8 * size).to_bytes(size, "big")

    def note(self, what: str) -> None:
        self.trace.append(f"{self.clock.now:8.3f} {what}")

    # -- who watches --

    def _on_safe(self, path: str, fresh: bytes) -> None:
        """See what just became safe."""
        offset = segment_format.SEGMENT_HEADER_BYTES if fresh.startswith(segment_format.SEGMENT_MAGIC) else 0
        while offset < len(fresh):
            length, kind = unpack_header(fresh, offset)[2:4]
            end = offset + HEADER_BYTES + length
            if kind == Kind.BLOCK:
                block = fresh[offset + HEADER_BYTES : end]
                if path.startswith("/c/"):
                    self.in_log.add(block)
                elif path.startswith("/n"):
                    for producer, ranges in ranges_of(block):
                        have = self.in_spool.setdefault(producer, Intervals())
                        for first, last in ranges:
                            have.add(first, last)
            offset = end

    def check_acknowledged(self, journal: Journal, next_seq: int, *, removed: bool = False) -> None:
        have = self.in_spool.setdefault(journal.producer, Intervals())
        for seq, _ in journal.records:
            if seq < next_seq and seq not in have:
                what = "removed" if removed else "acknowledged"
                raise ViolationError(f"event {seq} of {journal.producer.hex()[:6]} was {what} before it was synced")

    def excuse(self, blocks: Iterable[bytes]) -> None:
        """The content of these blocks, and the losses that they declared, are unknown from now on."""
        for block in blocks:
            declared = [
                (about or producer, [(first, last)])
                for producer, _, payload in block_to_rows(decode_block(block))
                if (event := decode(payload))[0] == EventKind.LOST
                for about, first, last in [event[2:5]]
            ]
            for producer, ranges in ranges_of(block) + declared:
                for first, last in ranges:
                    self.excused.setdefault(producer, set()).update(range(first, last + 1))

    def damage(self, node: "Node", block: bytes, number: int) -> None:
        """A record of a spool cannot be read any more: it must be declared, unless the collector has it."""
        self.excuse([block])
        if block not in self.in_log:
            for sender, path in self.owners.items():
                told = number + self.raised.get(sender, 0)
                if path == node.spool_path and self.numbers.get((sender, told)) == block:
                    self.to_be_declared.setdefault(sender, set()).add(told)

    def roll_back(self, backup: dict[str, bytes]) -> None:
        """Replace the collector's log by an old copy. The small files still have its previous end.

        If a power failure has set them back, and the log is rolled back too, nothing shows the previous end.
        """
        for path in (f"{self.log_path}/end", "/c/synced"):
            self.ends_at_least[path] = self.ends[path] = max(self.ends.get(path, 0), self.position)
        files = self.disk.directories.get(self.log_path, {})
        old = {name: File() for name in backup}
        for name, file in old.items():
            file.data, file.safe, file.named = bytearray(backup[name]), backup[name], True
        self.disk.directories[self.log_path] = old
        forgotten = _blocks_in(files) - _blocks_in(old)
        self.excuse(forgotten)
        for block in forgotten:
            sender, number = self.blocks[block]
            self.to_be_declared.setdefault(sender, set()).add(number)

    def lose_power(self, machine: str) -> None:
        """No process runs on this machine any more; what is left on its disk?"""
        self.disk.full.discard(machine)
        self.disk.kill_at.pop(machine, None)
        self.disk.lose_power(machine)
        for path, number in self.ends.items():
            if path.startswith(f"/{machine}/") and self.chance.random() < 0.5:
                self.ends[path] = self.chance.randint(min(self.ends_at_least.get(path, 0), number), number)

    # -- processes --

    def network_closes(self, closing: dealer.DeliveryClient) -> None:
        """A process died: what it sent may arrive, or not."""
        dealer: Dealer | None = closing.socket  # type: ignore[assignment]
        if dealer is not None:
            if self.chance.random() < 0.5:
                dealer.leaving.clear()
            dealer.close()

    def start_collector(self) -> None:
        places = SimpleNamespace(
            collector=DiskPath("/c"), run=DiskPath("/c/run"), store=DiskPath("/c/store"), files=None
        )
        try:
            self.collector = receiver_daemon.ReceiverDaemon(
                receiver_daemon.ReceiverSettings(places, ["collector"], credit_bytes=CREDIT), with_index=False
            )  # type: ignore[arg-type]
        except (OSError, Killed):
            self.network.routers.pop("collector", None)
        else:
            self.collector._check_files = lambda *more: None  # type: ignore[method-assign]

    def kill_collector(self) -> None:
        self.collector = None
        self.network.routers.pop("collector", None)

    def turn(self, dt: float) -> None:
        self.clock.now += dt
        for node in self.nodes:
            node.turn()
        if self.collector is not None:
            self.network.deliver("collector")
            try:
                self.collector.turn()
            except Killed:
                self.note("collector killed in its sync")
                self.kill_collector()
        if self.index is not None:
            self.index.step()

    # -- a schedule --

    def run(self) -> None:
        """Live through one schedule and check it. What is raised has the last actions as its note."""
        try:
            with patched(self):
                self._run()
        except BaseException as error:
            error.add_note("\n".join(self.trace))
            raise

    def _run(self) -> None:
        self.start_collector()
        self.index = Index(self)
        for node in self.nodes:
            node.start_agent()
            node.rank = Rank(self, node)
        for _ in range(self.chance.randint(10, 30)):
            action = self.chance.choice(ACTIONS)
            self.note(action.__name__)
            self.counts[action.__name__] += 1
            action(self)
            self.turn(self.chance.choice((0.0, 0.01, 0.03, 0.06, 0.1, 0.6)))
        self.heal()
        self.drain()
        self.check()

    def heal(self) -> None:
        self.note("heal")
        self.network.cuts.clear()
        self.network.delay_s = 0.0
        self.disk.full.clear()
        self.disk.kill_at.clear()
        for node in self.nodes:
            if node.rank is not None:
                node.rank.die() if self.chance.random() < 0.3 else node.rank.finish()
            if node.agent is None:
                node.start_agent()
        if self.collector is None:
            self.start_collector()
        if self.index is None:
            self.index = Index(self)

    def drain(self) -> None:
        end = self.clock.now + DRAINED_WITHIN_S
        dt = 0.06
        while not self.is_drained:
            if self.clock.now > end:
                raise ViolationError(f"not drained {DRAINED_WITHIN_S:g} s after the last fault: {self.what_waits()}")
            self.turn(dt)
            dt = min(dt * 1.1, 0.6)
        self.turn(0.1)

    @property
    def is_drained(self) -> bool:
        if any(node.journals or not node.agent or not node.agent._spool.is_drained for node in self.nodes):
            return False
        for node in self.nodes:
            core = node.agent._batcher  # type: ignore[union-attr]
            if core._since is not None or core._builder.n_events:
                return False
            if not self._is_known(node.agent._delivery.protocol):  # type: ignore[union-attr]
                return False  # it has yet to ask what this collector has
        return (
            self.collector is not None
            and self.collector._since is None
            and self.position == self.ends.get("/c/synced", 0)
        )

    def _is_known(self, machine: SenderProtocol) -> bool:
        return self.collector is not None and machine._session in self.collector._receiver._senders

    def what_waits(self) -> str:
        nodes = [(len(n.journals), n.agent and n.agent._spool.is_drained) for n in self.nodes]
        end = self.ends.get("/c/synced", 0)
        return f"journals and drained spools {nodes}, index {self.position} of {end}"

    # -- what must hold in the end --

    def check(self) -> None:
        assert self.index is not None
        state = self.index.applier.state
        for journal in self.journals:
            known = state.producers.get(journal.producer)
            have = state.have[known.producer] if known else Intervals()
            lost: Counter[int] = Counter()
            for first, last, _ in state.lost.get(known.producer, ()) if known else ():
                lost.update(range(first, last + 1))
            excused = self.excused.get(journal.producer, set())
            name = journal.producer.hex()[:6]
            for seq in range(journal.next_seq):
                count, n_lost, n_rows = int(seq in have), lost[seq], self.rows[journal.producer, seq]
                if n_rows > 1 or n_lost > 1 or count + n_lost > 1:
                    raise ViolationError(f"event {seq} of {name} is there {n_rows} times and lost {n_lost} times")
                if seq in journal.logged and n_rows != count:
                    raise ViolationError(f"event {seq} of {name}: the ledger says {count}, the table has {n_rows}")
                if count + n_lost == 0 and seq not in excused:
                    raise ViolationError(f"event {seq} of {name} is neither stored nor declared lost")
        if self.quarantined:
            raise ViolationError(f"{self.quarantined} records were quarantined, and none was damaged")
        gaps = self.declared_gaps()
        applied = {bytes(item.payload) for item, _ in self.committed if isinstance(item, Record)}
        spools = {node.agent._spool.id for node in self.nodes if node.agent is not None}
        for sender, forgotten in self.to_be_declared.items():
            if sender not in spools:
                continue  # that spool was lost, or was empty and restarted: there is no sender left
            numbers = {number for number in forgotten if self.numbers[sender, number] not in applied}
            silent = {number for number in numbers if number not in gaps.get(sender, Intervals())}
            if silent:
                raise ViolationError(f"spool records {sorted(silent)} were acknowledged, forgotten, and not declared")
        for node in self.nodes:
            assert node.agent is not None
            held = len(node.agent._batcher.peers), len(node.agent._receiver.senders), len(node.agent._synced)
            if max(held) > len(self.journals):
                raise ViolationError(f"an agent remembers {held} of {len(self.journals)} producers")

    def declared_gaps(self) -> dict[bytes, Intervals]:
        gaps: dict[bytes, Intervals] = {}
        for item, _ in self.committed:
            if isinstance(item, Record) and item.kind == Kind.GAP:
                sender, first, last, _ = unpack(item.payload)
                gaps.setdefault(sender, Intervals()).add(first, last)
        return gaps


@contextlib.contextmanager
def patched(world: World) -> Iterator[None]:
    """Put the virtual machine under the real modules while a schedule runs."""
    World.now_running = world
    DiskPath.disk = world.disk

    def read_head(path: Any, mode: str) -> Any:
        return contextlib.nullcontext(SimpleNamespace(read=lambda size: bytes(world.disk.file(path).data[:size])))

    def sync_names(directory: Any) -> None:
        world.disk.fsync(world.disk.open(directory, Disk.O_DIRECTORY))

    system = SimpleNamespace(urandom=world.bytes, getpid=lambda: 1)
    nothing = lambda *more, **named: None  # noqa: E731
    now_us, clock = world.clock.now_us, world.clock
    small_log = lambda directory, owner: segment_log.SegmentLog(directory, owner, segment_bytes=2_000)  # noqa: E731
    shared = {"os": system, "zmq": _ZMQ, "ensure_private_dir": nothing, "now_us": now_us, "time": clock, "_log": _Quiet}
    shared |= {"RouterSocket": Door, "open_authenticator": nothing, "CREDIT_BYTES": CREDIT}
    shared["Offload"] = InPlace
    names: dict[Any, dict[str, Any]] = {
        segment_format: {"os": world.disk, "open": read_head},
        log_reader: {"os": world.disk},
        segment_log: {"os": world.disk, "ensure_private_dir": nothing, "now_us": now_us}
        | {
            "open_watermark": lambda path, **more: Synced(path, writable=True),
            "sync_directory": sync_names,
            "fsync_parents": nothing,
        },
        spool: {"KIB": 8, "_RECENT_BYTES_MAX": CREDIT, "sync_directory": sync_names}
        | {"open_watermark": lambda path: Synced(path, writable=True)},
        dealer: {
            "time": clock,
            "BATCH_BYTES_MAX": BATCH,
            "RECORD_BYTES_MAX": BATCH,
            "parse_handshake_failure": nothing,
        },
        agent_daemon: shared
        | {"FileUploader": lambda *more, **named: NO_FILES}
        | {
            "Spool": VirtualSpool,
            "DeliveryClient": VirtualLink,
            "OrphanJournalCollector": VirtualAdoption,
        }
        | {"ExitCauseResolver": lambda journals: UNSEEN_ENDS, "remove_stale_staging": nothing, "remove_old": nothing},
        collector_supervisor: {"write_link_status": nothing, "remove_link_status": nothing},
        receiver_daemon: shared
        | {"FileTransfers": lambda *more, **named: NO_FILES, "check_root": nothing}
        | {"Watermark": Synced, "SegmentLog": small_log, "take_daemon_lock": nothing, "GATHER_BYTES": 3_000}
        | {"LogOwnership": SoleOwnership},
    }
    missing = object()
    before = {(module, name): module.__dict__.get(name, missing) for module, own in names.items() for name in own}
    unknown = [(module.__name__, name) for (module, name), value in before.items() if value is missing]
    assert all(name in ("open", "time") for _, name in unknown), f"nothing there has these names: {unknown}"
    for module, own in names.items():
        module.__dict__.update(own)
    try:
        yield
    finally:
        for (module, name), value in before.items():
            if value is missing:
                del module.__dict__[name]
            else:
                module.__dict__[name] = value


def _blocks_in(files: dict[str, File]) -> set[bytes]:
    return {
        bytes(item.payload)
        for file in files.values()
        for item in scan_records(bytes(file.data[segment_format.SEGMENT_HEADER_BYTES :]), sealed=False)
        if isinstance(item, Record) and item.kind == Kind.BLOCK
    }


class InPlace:
    """An `Offload` without a thread. It beats before each call: a disk may be slow at any time."""

    def __init__(self, name: str, beat: Callable[[], object]) -> None:
        self._beat = beat

    def run(self, call: Callable[[], object]) -> None:
        self._beat()
        call()

    def close(self) -> None:
        pass


class _Quiet:
    info = warning = error = exception = staticmethod(lambda *more: None)


from tests.support.simulation.chaos import ACTIONS  # noqa: E402  the actions need the world's classes
