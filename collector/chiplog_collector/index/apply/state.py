"""The state of the index between transactions: dimensions, the ledger of seqs, primaries.

Other modules load and save it.
"""

from dataclasses import dataclass, field

from chiplog_schemas.model.intervals import Intervals


@dataclass(slots=True)
class Run:
    """One row of base.runs."""

    run: int
    run_id: str
    project: str | None = None
    name: str | None = None
    run_group: str | None = None
    job_type: str | None = None
    tags: list[str] = field(default_factory=list)
    notes: str | None = None
    primary_label: str | None = None
    primary_launch: str | None = None
    primary_restart: int = 0
    alias_of: int | None = None  # of a provisional run ID: the run that its ranks agreed on
    told: list[str] = field(default_factory=list)  # label checks that were reported, see label_checks.py
    alias_nodes: list[str] = field(default_factory=list)  # nodes whose producers this alias redirects; []: all
    edited: list[str] = field(default_factory=list)  # columns that a person has set: identities leave them


@dataclass(slots=True)
class Producer:
    """One row of base.producers. Times in µs since the epoch, UTC."""

    producer: int
    uuid: bytes
    role: str | None = None
    run: int | None = None
    label: str | None = None
    attempt: int = 0
    is_primary: bool = False
    job_type: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    node: str | None = None
    pid: int | None = None
    gpus: list[str] = field(default_factory=list)
    launch: str | None = None
    launch_order: int = 0  # position among the launches of this label in this run, from 0
    restart: int = 0
    state: str | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    reason: str | None = None
    sets_run: bool | None = None
    started_at: int | None = None
    ended_at: int | None = None
    produced: int | None = None
    # The node names of the first restricted sender that delivered for it. They bind it until its node is known.
    nodes: list[str] = field(default_factory=list)
    owner: int | None = None  # of a console: the producer whose lines it sends, if both prove to be on one node
    fallback: bool = False  # claims to be primary only if no other rank does
    sender: bytes | None = None  # the agent whose records delivered its events last
    boot: str | None = None
    late_us: int = 0  # it may have ended up to this much before ended_at
    is_presumed: bool = False  # its end was inferred from its agent's silence
    clock_us: int | None = None  # least (received - made) of a block with its events: its node's clock offset + a delay
    uptime_us: int | None = None  # from its machine's boot to its start
    hostname: str | None = None  # as it reports itself, like rank_pid: inside its container
    rank_pid: int | None = None
    agent_node: str | None = None  # of the agent that delivers it; keys are checked against it; None: not reported
    start_ticks: int | None = None  # of its process, since boot; None: no agent saw it alive
    is_remote: bool = False  # it runs on another machine than its agent
    parent: str | None = None  # label of the process with an open run that started this one's launcher
    is_coauthor: bool = False  # may write config and files like the primary: its parent, or an earlier primary
    are_gpus_resolved: bool = False  # by its agent: the producer's own report no longer counts
    cause: str | None = None  # EndCause of a bad end that was reported

    @property
    def key_node(self) -> str | None:
        """The node that a key must cover to deliver for this producer."""
        return self.node if self.agent_node is None else self.agent_node


@dataclass(slots=True)
class Identified:
    """One row of base.identified: the names of a producer, those of its owner if it is a console."""

    producer: int
    run: int | None
    run_id: str | None
    label: str | None
    attempt: int
    rank: int | None
    node: str | None
    is_primary: bool
    is_coauthor: bool
    owner: int
    role: str | None


class State:
    """All dimensions in memory. Integers are assigned in log order, so that a rebuild assigns the same ones."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.runs_by_number: dict[int, Run] = {}
        self.producers: dict[bytes, Producer] = {}
        self.producers_by_number: dict[int, Producer] = {}
        self.names: dict[str, int] = {}
        self.have: dict[int, Intervals] = {}
        self.lost: dict[int, list[tuple[int, int, str]]] = {}
        self.by_label: dict[tuple[int, str], list[Producer]] = {}
        self.members: dict[int, dict[int, Producer]] = {}  # by run, then by producer
        self.by_sender: dict[bytes, set[int]] = {}  # the producers whose events each agent delivered last
        self.consoles: dict[int, set[int]] = {}  # by owner: the producers of its console lines
        # By names of a key: (producer, sender) of the refusals that have a row in `events`.
        self.refused: dict[tuple[str, ...], set[tuple[bytes, bytes]]] = {}
        # The run of each launch that required `must` or `never` of a run ID, by run ID and launch.
        self.demands: dict[tuple[str, str], int] = {}
        # By sender, then by number of a record: the names of its key at that time, and how many of its events were
        # refused.
        self.kept: dict[bytes, dict[int, tuple[tuple[str, ...], int]]] = {}
        # By project and name of an artifact: the number of each version by its digest. Numbers are not given again.
        self.artifacts: dict[tuple[str, str], dict[str, int]] = {}
        self.last_run = 0  # the highest number given out, also to runs that were deleted, and …
        self.last_producer = 0  # … to producers
        self.deleted: set[bytes] = set()  # UUIDs of deleted producers: what still arrives of them is ignored
        self.last_deletion = -1  # number of the newest record that deletes producers
        # Number of the newest record that deletes system samples, and the time before which it does, in µs.
        self.trimmed = (-1, 0)
        self.rolled_until: dict[int, int] = {}  # by interval: samples before this time are rolled up; both in µs
        self.managed: set[bytes] = set()  # IDs of the requests that were applied
        self.block_version = 1  # the highest that is applied in its place: what was admitted
        self.parked: dict[int, int] = {}  # by number of a record: the version of its block, which waits to be admitted
        self.damaged = False  # whether records were ever lost on the way, so that missing events may never arrive

    def add_run(self, run: Run) -> Run:
        """Register a run."""
        self.runs[run.run_id] = run
        self.runs_by_number[run.run] = run
        self.last_run = max(self.last_run, run.run)
        return run

    def remove_run(self, run: Run) -> None:
        """Forget a run without members."""
        del self.runs[run.run_id]
        del self.runs_by_number[run.run]
        self.members.pop(run.run, None)

    def add_producer(self, producer: Producer) -> Producer:
        """Register a producer."""
        self.producers[producer.uuid] = producer
        self.producers_by_number[producer.producer] = producer
        self.last_producer = max(self.last_producer, producer.producer)
        self.have.setdefault(producer.producer, Intervals())
        if producer.run is not None and producer.label is not None:
            self.by_label.setdefault((producer.run, producer.label), []).append(producer)
            self.members.setdefault(producer.run, {})[producer.producer] = producer
        if producer.sender is not None:
            self.by_sender.setdefault(producer.sender, set()).add(producer.producer)
        if producer.owner is not None:
            self.consoles.setdefault(producer.owner, set()).add(producer.producer)
        return producer

    def remove_producer(self, producer: Producer) -> None:
        """Forget a producer. Its run stays, also without members."""
        number = producer.producer
        del self.producers[producer.uuid]
        del self.producers_by_number[number]
        self.have.pop(number, None)
        self.lost.pop(number, None)
        if producer.run is not None and producer.label is not None:
            peers = self.by_label[(producer.run, producer.label)]
            peers.remove(producer)
            if not peers:
                del self.by_label[(producer.run, producer.label)]
            del self.members[producer.run][number]
        if producer.sender is not None:
            self.by_sender[producer.sender].discard(number)
        if producer.owner is not None:
            self.consoles[producer.owner].discard(number)

    def set_owner(self, console: Producer, owner: Producer) -> None:
        """Note whose lines a console sends."""
        if console.owner is not None:
            self.consoles[console.owner].discard(console.producer)
        console.owner = owner.producer
        self.consoles.setdefault(owner.producer, set()).add(console.producer)

    def identified(self, producer: Producer) -> Identified:
        """Return the names of a producer. rollups.sql does the same."""
        owner = self.producers_by_number.get(producer.owner or 0) if producer.role == "console" else None
        is_of_own_node = owner is not None and owner.key_node == producer.key_node  # safeguard: console-of-own-node
        if owner is None or owner.role != "rank" or owner.key_node is None or not is_of_own_node:
            owner = producer
        run = self.runs_by_number.get(owner.run or 0)
        return Identified(
            *(
                producer.producer,
                owner.run,
                None if run is None else run.run_id,
                owner.label,
                owner.attempt,
                owner.rank,
            ),
            *(producer.node, producer.is_primary, producer.is_coauthor, owner.producer, producer.role),
        )

    def set_sender(self, producer: Producer, sender: bytes) -> None:
        """Note that another agent delivers a producer's events."""
        if producer.sender is not None:
            self.by_sender[producer.sender].discard(producer.producer)
        producer.sender = sender
        self.by_sender.setdefault(sender, set()).add(producer.producer)
