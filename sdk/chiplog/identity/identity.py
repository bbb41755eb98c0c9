"""Resolve this process's identity in a distributed training from its launcher's variables. Pure: no IO, no clock.

A `launch` is built from what a launcher's processes share: it is the same for all its processes and restarts, and
different for every other launch. The run ID follows from the launch, so ranks agree without communication. If a
launcher's ID is not unique (torchrun's `--rdzv-id`), and its ranks have no common parent, `needs_agreement` requests an
agreement through torch.distributed's store later. Until then ranks with the same parent share the run ID.
"""

import base64
import hashlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import quote, unquote

from chiplog_schemas.limits import NAME_CHARS_MAX
from chiplog_schemas.process.inherited_run import LAUNCHER, PARENT_RUN, SETUP, InheritedRun, decode_inherited

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class SpawnPosition:
    """The position of a process among those that one call of torch.multiprocessing's spawn() started."""

    call: str  # identifies the call: the same for all its processes, different for every other call
    index: int  # from 0; the rank, if there is one node


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What the operating system reports about this process."""

    host: str
    pid: int
    parent: str  # parent's PID, its start time and the boot's ID: the same for siblings, unique over restarts
    now_s: float
    random: str  # a few random characters
    spawned: SpawnPosition | None = None
    used_run_ids: frozenset[str] = frozenset()  # runs without a given ID that this process opened and finished
    process_fingerprint: str = ""  # "world/start/session" of this process, see PARENT_RUN
    stale_variables: frozenset[str] = frozenset()  # which of PARENT_RUN and SETUP no longer apply to this process


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of one process in its training. None means unknown."""

    run_id: str
    label: str
    launch: str
    restart: int = 0
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    primary: bool = True
    needs_agreement: bool = False  # run ID, and perhaps label and rank, are provisional
    run_id_is_final: bool = False  # the run ID is not: it was given, or a process that knows it passed it on
    joined_existing_run: bool = False  # another process opened the run, and is its primary or knows it
    is_fallback_primary: bool = False  # is primary only because no better one is known
    rank_from_launcher: bool = False  # rank and world size come from the launcher
    previous_run_id: str | None = None  # the provisional run ID, once another was agreed on
    proposed_run_id: str = (
        ""  # proposed instead of the run ID, if another training may have the same run ID at another time
    )
    launch_cache_key: str = ""  # of a launch that may restart ranks: under this key its node caches the agreed run ID
    parent: str = ""  # label of the process, not a rank, whose open run includes this process or its launcher
    demand: str = ""  # `must` or `never`: whether the run must exist already; the collector decides
    demand_launch: str = ""  # the launch of the ancestor that made the demand; '': its own


@dataclass(frozen=True, slots=True)
class _Launcher:
    name: str
    rank: str
    local_rank: str
    world_size: str
    restart: str = ""


# In order of precedence: the innermost launcher first (torchrun or mpirun inside a Slurm job).
_LAUNCHERS = (
    _Launcher("torchelastic", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"),
    _Launcher("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    _Launcher("pmi", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    _Launcher("slurm", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_RESTART_COUNT"),
)


@dataclass(frozen=True, slots=True)
class _ParentRun:
    """What an ancestor of this process left in the environment."""

    run_id: str
    label: str  # '' if it only prepared the run
    rank: str
    settled: bool
    is_open: bool  # opened by init(), not only prepared by setup()
    demand: str = ""
    launch: str = ""
    is_launcher: bool = False

    @property
    def joins_us(self) -> bool:
        """Whether it is in the run as a part of the training, or is a rank that will join it."""
        return (self.is_open or bool(self.label)) and not self.is_launcher

    def is_rank(self, rank: int | None) -> bool:
        """Return True if it is this rank or a child of it. Then the launcher's variables describe the parent."""
        own = f"rank{rank}"
        return self.rank == str(rank) or self.label == own or self.label.startswith(f"{own}.")


def encode_parent_run(
    pid: int, run_id: str, identity: Identity, stamp: str = "", kind: str = "", places: str = ""
) -> str:
    """Build the value of PARENT_RUN. Neither a run ID nor a label has a slash. kind: '' or LAUNCHER. places: quoted."""
    rank = "" if identity.rank is None else str(identity.rank)
    record = f"{pid}:{run_id}/{identity.label}/{rank}/{_SETTLED if _is_settled(identity) else ''}/{stamp}"
    launch = quote(identity.demand_launch or identity.launch, safe="") if identity.demand and not kind else ""
    more = ["" if kind else identity.demand, launch, kind, places]
    while more and not more[-1]:
        more.pop()
    if not more:
        return record
    missing = len(InheritedRun._fields) - len(_AFTER_STAMP) - 1 - record.count("/")
    return "/".join((record + "/" * max(missing - 1, 0), *more))


_AFTER_STAMP = ("demand", "launch", "kind", "places")


def encode_setup(environ: Mapping[str, str], facts: ProcessFacts, places: str = "") -> str:
    """Build the value of SETUP: the run that children share if this process starts them before or without init()."""
    before = "" if SETUP in facts.stale_variables else environ.get(SETUP, "")
    if before and not before.startswith(f"{facts.pid}:"):
        return before  # set by an ancestor: spawned children import the script, and call setup() again
    identity = resolve_identity({name: value for name, value in environ.items() if name != SETUP}, facts)
    if identity.rank is None and not identity.joined_existing_run:
        identity = replace(identity, label="")
    return encode_parent_run(
        facts.pid, identity.run_id.replace("/", "_"), identity, facts.process_fingerprint, places=places
    )


def resolve_identity(
    environ: Mapping[str, str], facts: ProcessFacts, given_label: str | None = None, given_run: str | None = None
) -> Identity:
    """Resolve the identity from variables and from the label and run ID given to `init`.

    A child of a rank inherits the variables of its parent's launcher. It joins the run, but is not that rank.
    """
    launcher = _launcher_of(environ)
    own_run = given_run or environ.get("CHIPLOG_RUN_ID")
    parent = _parent_of(environ, PARENT_RUN, facts) or _parent_of(environ, SETUP, facts)
    joins = parent is not None and own_run in (None, "", parent.run_id)
    given = given_label or environ.get("CHIPLOG_LABEL")
    identity = _identify(environ, facts, given, own_run, launcher, parent, joins)
    if joins and parent is not None and parent.demand:
        # safeguard: child-follows-parents-demand
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
        # A rank's child with its own run: the launcher's variables describe the parent.
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
    return Identity(  # safeguard: ranks-name-their-parent
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
        # No launcher restarts these. But the next training of their shell or of another container has the same ID.
        parent=parent.label if parent is not None and joins and parent.is_open and not parent.rank else "",
        proposed_run_id=f"{run_id}-{facts.random}" if is_made_up and not is_unique and not again else "",
        launch_cache_key=f"{again} {run_id}" if is_made_up and again else "",
    )


def _without_launcher(
    environ: Mapping[str, str], facts: ProcessFacts, label: str | None, own_run: str | None, parent: _ParentRun | None
) -> Identity:
    """Build the identity without a launcher: a new run, one that an ancestor opened or prepared, or an mp.spawn()'s.

    torch.distributed supplies rank, label and perhaps the run ID later.
    """
    spawned = facts.spawned
    launch = f"spawn:{spawned.call}" if spawned is not None else _process_launch(facts)
    prepared = decode_inherited(environ.get(SETUP, ""))
    is_first = spawned is None or spawned.index == 0
    joined = parent is not None and parent.joins_us
    under = parent.label if parent is not None and parent.is_launcher else ""
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
        parent=under,
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
    """Complete an identity with what torch.distributed reports later. name: the worker's, if RPC gave one."""
    run_id = identity.run_id if identity.run_id_is_final else run_id
    # A run ID that other trainings may have too is not a previous ID of this run.
    formerly = identity.run_id if run_id != identity.run_id and not identity.proposed_run_id else None
    known = replace(identity, run_id=run_id, previous_run_id=formerly, needs_agreement=False)
    if identity.rank_from_launcher:
        return replace(known, world_size=world_size) if name is None else known
    label = identity.label if label_given else name or f"rank{rank}"
    known = replace(known, label=label, rank=rank, world_size=world_size)
    if primary_given or identity.joined_existing_run:
        return known
    return replace(known, primary=rank == 0, is_fallback_primary=False)


def for_forked_child(identity: Identity, pid: int, unreceived: int | None = None) -> Identity:
    """Return the identity of a forked child: in the same run, with its own label, and never the primary.

    unheard: the PID of a parent that is a forked child itself and has emitted nothing. Its label is not in use.
    """
    own = f".{pid}"
    label = identity.label if unreceived is None else identity.label.removesuffix(f".{unreceived}")
    label = f"{label[: NAME_CHARS_MAX - len(own)]}{own}"
    return replace(identity, label=label, primary=False, rank=None, local_rank=None)


def initial_run_id(identity: Identity) -> str:
    """Return the run ID that follows from variables and parents, before a cached or agreed one replaces it."""
    return identity.launch_cache_key.rpartition(" ")[2] or identity.run_id


def new_run_id(started_s: float, word: str) -> str:
    """Return a run ID that sorts by time and is easy to read out loud: 20261121-0115-k3f9ab."""
    return f"{datetime.fromtimestamp(started_s, UTC):%Y%m%d-%H%M}-{word}"


_SETTLED = "settled"


def _is_settled(identity: Identity) -> bool:
    return identity.run_id_is_final or not identity.needs_agreement


def _parent_of(environ: Mapping[str, str], name: str, facts: ProcessFacts) -> _ParentRun | None:
    left = decode_inherited(environ.get(name, ""))
    if not left.run_id or left.pid == str(facts.pid) or name in facts.stale_variables:
        return None
    settled = left.settled == _SETTLED
    is_open = name == PARENT_RUN
    return _ParentRun(
        left.run_id,
        left.label,
        left.rank,
        settled,
        is_open,
        left.demand,
        unquote(left.launch),
        is_launcher=is_open and left.kind == LAUNCHER,
    )


def _joined_run(parent: _ParentRun, facts: ProcessFacts) -> str:
    """Return the run to join: an open one any number of times; of a prepared one each init() gets the next number."""
    return parent.run_id if parent.joins_us else _next_free_run_id(parent.run_id, facts)


def _next_free_run_id(run_id: str, facts: ProcessFacts) -> str:
    """Return the ID of the next run. The second run of each rank gets the same ID, without communication."""
    numbered = (run_id if n == 1 else f"{run_id}-{n}" for n in itertools.count(1))
    return next(name for name in numbered if name not in facts.used_run_ids)


def _generated_label(facts: ProcessFacts) -> str:
    return f"{facts.host}-{facts.random}"


def _child_label(label: str, facts: ProcessFacts) -> str:
    return f"{label}.{facts.pid}"


def _process_launch(facts: ProcessFacts) -> str:
    return f"process:{facts.host}:{facts.pid}:{facts.random}"


def _launcher_of(environ: Mapping[str, str]) -> _Launcher | None:
    """Return the launcher that started this process as a rank; None if it is not a rank."""
    known = [entry for entry in _LAUNCHERS if _number(environ, entry.rank) is not None]
    if known and known[-1].name == "slurm":
        inner, slurm = known[0], known[-1]
        if _is_slurm_shell(environ):
            known.pop()
        elif inner.name in ("openmpi", "pmi"):
            # srun with PMI sets each rank twice, and its step identifies the launch. mpirun starts one process per node
            # with srun, whose variables its ranks inherit: those have other numbers.
            sizes = (_number(environ, inner.world_size), _number(environ, slurm.world_size))
            is_same_rank = _number(environ, inner.rank) == _number(environ, slurm.rank)
            if is_same_rank and sizes[0] in (None, sizes[1]):
                return slurm
    return known[0] if known else None


def is_rank_of_launcher(environ: Mapping[str, str]) -> bool:
    """Return True if a launcher started this process, or a process above it, as a rank."""
    return _launcher_of(environ) is not None


def _is_slurm_shell(environ: Mapping[str, str]) -> bool:
    """Return True if Slurm's variables belong to a shell, in which one training may follow another.

    The batch script has no step, salloc's shell has one with a number beyond all others, and `srun --pty bash` has an
    ordinary step. A step of several tasks that is started in that shell inherits the pty's port.
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
        # After a requeue it has another start time, and perhaps other nodes, some of which have its run ID cached.
        is_moved = bool(_number(environ, launcher.restart)) and (_number(environ, "SLURM_NNODES") or 1) > 1
        return f"slurm:{job}:{step}:{started}", bool(job) and not is_moved
    if launcher.name != "torchelastic":
        return _mpi_launch(environ, facts, launcher, world_size)
    elastic_id = environ.get("TORCHELASTIC_RUN_ID", "")
    if _UUID.fullmatch(elastic_id):
        return f"torchelastic:{elastic_id}", True  # torchrun generated it for this launch
    if not elastic_id and world_size == 1 and not environ.get("LOCAL_WORLD_SIZE"):
        # Exported by hand, perhaps in a shell that starts one training after another: no other process belongs to it.
        return _process_launch(facts), True
    # Without a launcher's ID, trainings that one shell runs side by side differ in their port.
    name = launcher.name if elastic_id else "env"
    siblings = f"{name}:{elastic_id or environ.get('MASTER_PORT', '')}:{facts.parent}"
    # One parent of all ranks identifies the launch, restarts included. With several, only siblings agree.
    return siblings, world_size is not None and world_size == _number(environ, "LOCAL_WORLD_SIZE")


def _mpi_launch(
    environ: Mapping[str, str], facts: ProcessFacts, launcher: _Launcher, world_size: int | None
) -> tuple[str, bool]:
    """Return the launch of an mpirun and whether it is the same for all ranks and unique among launches."""
    job = ":".join(environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_JOB_START_TIME"))
    # Open MPI's name of the launch, the same on all nodes. It is unique in a job, but made of a host and a PID, so it
    # repeats in time. Other launchers inherit the name of an outer srun.
    namespace = environ.get("PMIX_NAMESPACE", "") if launcher.name == "openmpi" else ""
    if namespace and environ.get("SLURM_JOB_ID"):
        return f"{launcher.name}:{job}:{namespace}", True
    local = "OMPI_COMM_WORLD_LOCAL_SIZE" if launcher.name == "openmpi" else "MPI_LOCALNRANKS"
    is_one_node = world_size is not None and world_size == _number(environ, local)
    if namespace and not is_one_node:
        return f"{launcher.name}:{job}:{namespace}", False
    return f"{launcher.name}:{job}:{environ.get('MASTER_PORT', '')}:{facts.parent}", is_one_node


def _restart_key(environ: Mapping[str, str], launcher: _Launcher, launch: str) -> str:
    """Return a key that survives a restart of these ranks; '' if there is no restart, or if the launcher's ID does."""
    if launcher.name == "slurm" and environ.get("SLURM_JOB_ID") and environ.get("SLURM_STEP_ID"):
        names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID")
        return ":".join(("slurm", *(environ.get(name, "") for name in names)))
    elastic_id = environ.get("TORCHELASTIC_RUN_ID", "") if launcher.name == "torchelastic" else ""
    return launch if elastic_id and not _UUID.fullmatch(elastic_id) else ""


def _run_id_of(launch: str, facts: ProcessFacts) -> str:
    if launch == _process_launch(facts):
        return new_run_id(facts.now_s, facts.random)
    # Without a time: nodes' clocks differ, and may be set between the starts of two ranks or before a restart.
    word = base64.b32encode(hashlib.sha256(launch.encode()).digest()).decode()[:8].lower()
    return f"{launch.split(':')[0]}-{word}"  # safeguard: run-id-from-launch


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdigit() and len(text) < 10 else None
