"""Who this process is in a distributed training, read from its launcher's variables. Pure: no IO, no clock.

What a launcher shares is turned into a `launch`, the same for all its processes and restarts and different for every
other launch, and the run ID follows from the launch: ranks agree without talking. Where a launcher's ID alone is not
unique (torchrun's `--rdzv-id`), and its ranks have no parent in common, `needs_agreement` asks for a word through
torch.distributed's store later on. Until then the run ID is that of ranks with the same parent.
"""

import base64
import hashlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote, unquote

from chiplog_schemas.limits import NAME_CHARS_MAX

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# "pid:run_id/label/rank/settled/world/start/session/demand/launch", for the processes that this one starts. World and
# start, behind which stands no other process with that PID, then the session, and then demand and launch (quoted) came
# later. Set by init() while its run is open, …
PARENT_RUN = "CHIPLOG_PARENT_RUN"
SETUP = "CHIPLOG_SETUP"  # … and by setup(): who its process would be. Without a label: that is for the children to say


@dataclass(frozen=True, slots=True)
class SpawnPosition:
    """Where a process stands among those that one call of torch.multiprocessing's spawn() started."""

    call: str  # names that call: the same for all that it starts, and different for every other call
    index: int  # from 0; the rank, where there is one node


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What the operating system says of this process."""

    host: str
    pid: int
    parent: str  # parent's PID, its start time and the boot's ID: the same for siblings, unique over restarts
    now_s: float
    random: str  # a few random characters
    spawned: SpawnPosition | None = None
    used_run_ids: frozenset[str] = frozenset()  # runs that this process opened and finished, of those that nobody named
    process_fingerprint: str = ""  # "world/start/session" of this process: see PARENT_RUN
    stale_variables: frozenset[str] = frozenset()  # of PARENT_RUN and SETUP, what says nothing of this process any more


@dataclass(frozen=True, slots=True)
class Identity:
    """Where one process stands in its training. None means that nobody told."""

    run_id: str
    label: str
    launch: str
    restart: int = 0
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    primary: bool = True
    needs_agreement: bool = False  # run ID, and perhaps label and rank, are provisional
    run_id_is_final: bool = False  # the run ID is not: it was given, or is that of a process that knows it for certain
    joined_existing_run: bool = False  # another process opened the run, and is or knows its primary
    is_fallback_primary: bool = False  # claims to be primary only because nobody knows a better one
    rank_from_launcher: bool = False  # rank and world size are the launcher's word
    previous_run_id: str | None = None  # the provisional run ID, once another was agreed on
    proposed_run_id: str = (
        ""  # what to propose in place of the run ID, where trainings of another time may have the same
    )
    launch_cache_key: str = (
        ""  # of a launch that may start ranks again: under this its node remembers what was agreed on
    )
    parent: str = ""  # label of a process with an open run, no rank itself, that started the launcher of this rank
    demand: str = ""  # `must` or `never`: what the run ID has to be; the collector decides
    demand_launch: str = ""  # the launch of the process further up whose demand it is; '': its own


@dataclass(frozen=True, slots=True)
class _Launcher:
    name: str
    rank: str
    local_rank: str
    world_size: str
    restart: str = ""


# In this order: the innermost launcher is asked first (torchrun, or mpirun, inside of a Slurm job).
_LAUNCHERS = (
    _Launcher("torchelastic", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"),
    _Launcher("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    _Launcher("pmi", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    _Launcher("slurm", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_RESTART_COUNT"),
)


@dataclass(frozen=True, slots=True)
class _ParentRun:
    """What the process that started this one, or one further up, left in the environment."""

    run_id: str
    label: str  # '' if it only prepared the run
    rank: str
    settled: bool
    is_open: bool  # by init(), not only prepared by setup()
    demand: str = ""
    launch: str = ""

    @property
    def joins_us(self) -> bool:
        """Whether it is in the run itself, or is a rank that will be."""
        return self.is_open or bool(self.label)

    def is_rank(self, rank: int | None) -> bool:
        """Tell whether it is this rank itself, or a child of it: then the launcher's variables are not about us."""
        own = f"rank{rank}"
        return self.rank == str(rank) or self.label == own or self.label.startswith(f"{own}.")


def encode_parent_run(pid: int, run_id: str, identity: Identity, stamp: str = "") -> str:
    """Return what PARENT_RUN is to say. Neither a run ID nor a label has a slash."""
    rank = "" if identity.rank is None else str(identity.rank)
    said = f"{pid}:{run_id}/{identity.label}/{rank}/{_SETTLED if _is_settled(identity) else ''}/{stamp}"
    if not identity.demand:
        return said
    return f"{said}/{identity.demand}/{quote(identity.demand_launch or identity.launch, safe='')}"


class InheritedRun(NamedTuple):
    """What stands in PARENT_RUN or SETUP, as texts; '' for what is not there."""

    pid: str
    run_id: str
    label: str
    rank: str
    settled: str
    world: str
    start: str
    session: str
    demand: str
    launch: str


def decode_inherited(said: str) -> InheritedRun:
    """Take apart what `parent_run` put together; also what an older version left, or anybody else."""
    pid, _, rest = said.partition(":")
    parts = [pid, *rest.split("/")]
    return InheritedRun(*[*parts, *[""] * len(InheritedRun._fields)][: len(InheritedRun._fields)])


def encode_setup(environ: Mapping[str, str], facts: ProcessFacts) -> str:
    """Return what SETUP is to say: the run that children share which this process starts before, or without, init()."""
    before = "" if SETUP in facts.stale_variables else environ.get(SETUP, "")
    if before and not before.startswith(f"{facts.pid}:"):
        return before  # of a process further up: a script that spawned children import calls setup() once more
    identity = resolve_identity({name: value for name, value in environ.items() if name != SETUP}, facts)
    if identity.rank is None and not identity.joined_existing_run:
        identity = replace(identity, label="")
    return encode_parent_run(facts.pid, identity.run_id.replace("/", "_"), identity, facts.process_fingerprint)


def resolve_identity(
    environ: Mapping[str, str], facts: ProcessFacts, given_label: str | None = None, given_run: str | None = None
) -> Identity:
    """Work out the identity from variables, and the label and run ID that `init` was given.

    A child of a rank sees the variables of its parent's launcher. It joins the run, but is not that rank.
    """
    launcher = _launcher_of(environ)
    own_run = given_run or environ.get("CHIPLOG_RUN_ID")
    parent = _parent_of(environ, PARENT_RUN, facts) or _parent_of(environ, SETUP, facts)
    joins = parent is not None and own_run in (None, "", parent.run_id)
    given = given_label or environ.get("CHIPLOG_LABEL")
    identity = _identify(environ, facts, given, own_run, launcher, parent, joins)
    if joins and parent is not None and parent.demand:
        return replace(identity, demand=parent.demand, demand_launch=parent.launch)
    return identity


def _identify(
    environ: Mapping[str, str],
    facts: ProcessFacts,
    given: str | None,
    own_run: str | None,
    launcher: _Launcher | None,
    parent: "_ParentRun | None",
    joins: bool,
) -> Identity:
    if joins and given and parent is not None and given == parent.label:
        given = _child_label(given, facts)
    if launcher is None:
        return _without_launcher(environ, facts, given, own_run, parent if joins else None)
    rank = _number(environ, launcher.rank)
    if parent is not None and parent.is_rank(rank) and not joins:
        # A rank's child with a run of its own: the launcher's variables are the parent's.
        return Identity(str(own_run), given or _generated_label(facts), _process_launch(facts), run_id_is_final=True)
    world_size = _number(environ, launcher.world_size)
    launch, is_unique = _launch(environ, facts, launcher, world_size)
    run_id = own_run or (
        _joined_run(parent, facts) if parent and joins else _next_free_run_id(_run_id_of(launch, facts), facts)
    )
    settled = bool(own_run) or (joins and parent is not None and parent.settled)
    is_made_up = not own_run and not joins
    again = _restart_key(environ, launcher, launch) + run_id.removeprefix(_run_id_of(launch, facts))
    own = f"rank{rank}"
    if parent is not None and parent.is_rank(rank):
        label = given or _child_label(own, facts)
        return Identity(
            run_id,
            label,
            launch,
            world_size=world_size,
            primary=False,
            run_id_is_final=settled,
            joined_existing_run=True,
            rank_from_launcher=True,
        )
    return Identity(
        run_id,
        given or own,
        launch,
        _number(environ, launcher.restart) or 0,
        rank,
        _number(environ, launcher.local_rank),
        world_size,
        primary=rank == 0,
        needs_agreement=not is_unique and not own_run,
        run_id_is_final=settled,
        rank_from_launcher=True,
        # Nobody starts these again. But the next training of their shell, or of another container, has the same.
        parent=parent.label if parent is not None and joins and parent.is_open and not parent.rank else "",
        proposed_run_id=f"{run_id}-{facts.random}" if is_made_up and not is_unique and not again else "",
        launch_cache_key=f"{again} {run_id}" if is_made_up and again else "",
    )


def _without_launcher(
    environ: Mapping[str, str], facts: ProcessFacts, label: str | None, own_run: str | None, parent: _ParentRun | None
) -> Identity:
    """Take a run of one's own, or one that a process further up opened or prepared, or that of an mp.spawn().

    Rank, label and perhaps the run ID are torch.distributed's to tell, later.
    """
    spawned = facts.spawned
    launch = f"spawn:{spawned.call}" if spawned is not None else _process_launch(facts)
    prepared = decode_inherited(environ.get(SETUP, ""))
    is_first = spawned is None or spawned.index == 0
    joined = parent is not None and parent.joins_us
    if own_run:
        run_id = own_run
    elif parent is not None:
        run_id = _joined_run(parent, facts)
    elif prepared.pid == str(facts.pid) and prepared.run_id and SETUP not in facts.stale_variables:
        run_id = _next_free_run_id(prepared.run_id, facts)
    elif spawned is not None:
        run_id = _next_free_run_id(_run_id_of(launch, facts), facts)
    else:
        run_id = new_run_id(facts.now_s, facts.random)
    return Identity(
        run_id,
        label or _generated_label(facts),
        launch,
        primary=is_first and not joined,
        needs_agreement=True,
        run_id_is_final=bool(own_run) or (parent is not None and parent.settled),
        joined_existing_run=joined,
        is_fallback_primary=parent is not None and not joined and spawned is None,
    )


def with_group(
    identity: Identity,
    rank: int,
    world_size: int,
    run_id: str,
    name: str | None = None,
    *,
    label_given: bool = False,
    primary_given: bool = False,
) -> Identity:
    """Complete an identity by what torch.distributed said later. name: the worker's, where RPC told it."""
    run_id = identity.run_id if identity.run_id_is_final else run_id
    # What others may be called too is no name of this run.
    formerly = identity.run_id if run_id != identity.run_id and not identity.proposed_run_id else None
    known = replace(identity, run_id=run_id, previous_run_id=formerly, needs_agreement=False)
    if identity.rank_from_launcher:
        return replace(known, world_size=world_size) if name is None else known
    label = identity.label if label_given else name or f"rank{rank}"
    known = replace(known, label=label, rank=rank, world_size=world_size)
    if primary_given or identity.joined_existing_run:
        return known
    return replace(known, primary=rank == 0, is_fallback_primary=False)


def for_forked_child(identity: Identity, pid: int, unheard: int | None = None) -> Identity:
    """Return the identity of a forked child: in the same run, under a label of its own, and never its primary.

    unheard: the PID of a parent that is such a child itself and has said nothing yet. Its label is nobody's.
    """
    own = f".{pid}"
    label = identity.label if unheard is None else identity.label.removesuffix(f".{unheard}")
    label = f"{label[: NAME_CHARS_MAX - len(own)]}{own}"
    return replace(identity, label=label, primary=False, rank=None, local_rank=None)


def initial_run_id(identity: Identity) -> str:
    """Return the run ID that followed from variables and parents, before anything was remembered or agreed on."""
    return identity.launch_cache_key.rpartition(" ")[2] or identity.run_id


def new_run_id(started_s: float, word: str) -> str:
    """Return a run ID that sorts by time and can be read out: 20261121-0115-k3f9ab."""
    return f"{datetime.fromtimestamp(started_s, UTC):%Y%m%d-%H%M}-{word}"


_SETTLED = "settled"


def _is_settled(identity: Identity) -> bool:
    return identity.run_id_is_final or not identity.needs_agreement


def _parent_of(environ: Mapping[str, str], name: str, facts: ProcessFacts) -> _ParentRun | None:
    left = decode_inherited(environ.get(name, ""))
    if not left.run_id or left.pid == str(facts.pid) or name in facts.stale_variables:
        return None
    settled = left.settled == _SETTLED
    return _ParentRun(
        left.run_id, left.label, left.rank, settled, name == PARENT_RUN, left.demand, unquote(left.launch)
    )


def _joined_run(parent: _ParentRun, facts: ProcessFacts) -> str:
    """Return the run: an open one is joined as often as one likes, of a prepared one each init() is the next."""
    return parent.run_id if parent.joins_us else _next_free_run_id(parent.run_id, facts)


def _next_free_run_id(run_id: str, facts: ProcessFacts) -> str:
    """Each init() after a finish() is another run: the second of each rank is the second of all, without talking."""
    numbered = (run_id if n == 1 else f"{run_id}-{n}" for n in itertools.count(1))
    return next(name for name in numbered if name not in facts.used_run_ids)


def _generated_label(facts: ProcessFacts) -> str:
    return f"{facts.host}-{facts.random}"


def _child_label(label: str, facts: ProcessFacts) -> str:
    return f"{label}.{facts.pid}"


def _process_launch(facts: ProcessFacts) -> str:
    return f"process:{facts.host}:{facts.pid}:{facts.random}"


def _launcher_of(environ: Mapping[str, str]) -> _Launcher | None:
    """Return who started this process as a rank; None where nobody did."""
    known = [entry for entry in _LAUNCHERS if _number(environ, entry.rank) is not None]
    if known and known[-1].name == "slurm":
        inner, slurm = known[0], known[-1]
        if _is_slurm_shell(environ):
            known.pop()
        elif inner.name in ("openmpi", "pmi"):
            # srun with PMI tells each rank twice, and its step names the launch. mpirun starts one process a node by
            # srun, whose variables its ranks inherit: these have other numbers.
            sizes = (_number(environ, inner.world_size), _number(environ, slurm.world_size))
            is_same_rank = _number(environ, inner.rank) == _number(environ, slurm.rank)
            if is_same_rank and sizes[0] in (None, sizes[1]):
                return slurm
    return known[0] if known else None


def _is_slurm_shell(environ: Mapping[str, str]) -> bool:
    """Tell whether Slurm's variables are those of a shell, in which one training may follow another.

    The batch script has no step, salloc's shell one with a number beyond all others, and `srun --pty bash` a step like
    any other. A step of several tasks that is started in there inherits the pty's port.
    """
    is_step = _number(environ, "SLURM_STEP_ID") is not None
    return not is_step or bool(environ.get("SLURM_PTY_PORT") and _number(environ, "SLURM_NTASKS") in (None, 1))


def _launch(
    environ: Mapping[str, str], facts: ProcessFacts, launcher: _Launcher, world_size: int | None
) -> tuple[str, bool]:
    """Return the launch and whether it is the same for all ranks and unique among launches."""
    if launcher.name == "slurm":
        job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
        started = environ.get("SLURM_JOB_START_TIME", "")
        # Requeued it has another start, perhaps other nodes, of which some remember what it was called.
        is_moved = bool(_number(environ, launcher.restart)) and (_number(environ, "SLURM_NNODES") or 1) > 1
        return f"slurm:{job}:{step}:{started}", bool(job) and not is_moved
    if launcher.name != "torchelastic":
        return _mpi_launch(environ, facts, launcher, world_size)
    elastic_id = environ.get("TORCHELASTIC_RUN_ID", "")
    if _UUID.fullmatch(elastic_id):
        return f"torchelastic:{elastic_id}", True  # made by torchrun for this very launch
    if not elastic_id and world_size == 1 and not environ.get("LOCAL_WORLD_SIZE"):
        # Exported by hand, perhaps in a shell that starts one training after the other: nobody else belongs to it.
        return _process_launch(facts), True
    # Without a launcher's ID, trainings that one shell starts side by side differ in their port.
    name = launcher.name if elastic_id else "env"
    siblings = f"{name}:{elastic_id or environ.get('MASTER_PORT', '')}:{facts.parent}"
    # One parent for all ranks: it names the launch, restarts included. Several: only ranks under the same one agree.
    return siblings, world_size is not None and world_size == _number(environ, "LOCAL_WORLD_SIZE")


def _mpi_launch(
    environ: Mapping[str, str], facts: ProcessFacts, launcher: _Launcher, world_size: int | None
) -> tuple[str, bool]:
    """Return the launch of an mpirun and whether it is the same for all ranks and unique among launches."""
    job = ":".join(environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_JOB_START_TIME"))
    # Open MPI's name for it, the same on all nodes. Unique among those of a job, but made of a host and a PID: in time
    # it comes again. Others leave that of an srun further up as it is.
    namespace = environ.get("PMIX_NAMESPACE", "") if launcher.name == "openmpi" else ""
    if namespace and environ.get("SLURM_JOB_ID"):
        return f"{launcher.name}:{job}:{namespace}", True
    local = "OMPI_COMM_WORLD_LOCAL_SIZE" if launcher.name == "openmpi" else "MPI_LOCALNRANKS"
    is_one_node = world_size is not None and world_size == _number(environ, local)
    if namespace and not is_one_node:
        return f"{launcher.name}:{job}:{namespace}", False
    return f"{launcher.name}:{job}:{environ.get('MASTER_PORT', '')}:{facts.parent}", is_one_node


def _restart_key(environ: Mapping[str, str], launcher: _Launcher, launch: str) -> str:
    """Return what is the same when the launcher starts these ranks again; '' where it never does, or the ID says it."""
    if launcher.name == "slurm" and environ.get("SLURM_JOB_ID") and environ.get("SLURM_STEP_ID"):
        names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID")
        return ":".join(("slurm", *(environ.get(name, "") for name in names)))
    elastic_id = environ.get("TORCHELASTIC_RUN_ID", "") if launcher.name == "torchelastic" else ""
    return launch if elastic_id and not _UUID.fullmatch(elastic_id) else ""


def _run_id_of(launch: str, facts: ProcessFacts) -> str:
    if launch == _process_launch(facts):
        return new_run_id(facts.now_s, facts.random)
    # No time in it: nodes' clocks differ, and one may be set between the starts of two ranks, or before a restart.
    word = base64.b32encode(hashlib.sha256(launch.encode()).digest()).decode()[:8].lower()
    return f"{launch.split(':')[0]}-{word}"


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdigit() and len(text) < 10 else None
