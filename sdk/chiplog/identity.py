"""Who this process is in a distributed training, read from its launcher's variables. Pure: no IO, no clock.

What a launcher shares is turned into a `launch`, the same for all its processes and restarts and different for every
other launch, and the run ID follows from the launch: ranks agree without talking. Where a launcher's ID alone is not
unique (torchrun's `--rdzv-id`), and its ranks have no parent in common, `needs_agreement` asks for a word through
torch.distributed's store later on.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
PARENT_RUN = "CHIPLOG_PARENT_RUN"  # "pid:run_id/label/rank": set by init() for the processes that this one starts


@dataclass(frozen=True, slots=True)
class Facts:
    """What the operating system says of this process."""

    host: str
    pid: int
    parent: str  # parent's PID, its start time and the boot's ID: the same for siblings, unique over restarts
    now_s: float
    random: str  # a few random characters


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


@dataclass(frozen=True, slots=True)
class _Launcher:
    name: str
    rank: str
    local_rank: str
    world_size: str
    restart: str = ""


# In this order: the innermost launcher is asked first (torchrun inside of a Slurm job).
_LAUNCHERS = (
    _Launcher("torchelastic", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"),
    _Launcher("slurm", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_RESTART_COUNT"),
    _Launcher("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    _Launcher("pmi", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
)


def parent_run(pid: int, run_id: str, identity: Identity) -> str:
    """Return what PARENT_RUN is to say. Neither a run ID nor a label has a slash."""
    return f"{pid}:{run_id}/{identity.label}/{'' if identity.rank is None else identity.rank}"


def identify(environ: Mapping[str, str], facts: Facts, given_label: str | None = None) -> Identity:
    """Work out the identity from variables, and the label that `init` was given.

    A child of a rank sees the variables of its parent's launcher. It joins the run, but is not that rank.
    """
    launcher = next((entry for entry in _LAUNCHERS if _number(environ, entry.rank) is not None), None)
    parent_pid, _, parent = environ.get(PARENT_RUN, "").partition(":")
    parent_id, parent_label, parent_rank = [*parent.split("/"), "", ""][:3]
    joins = bool(parent_id) and parent_pid != str(facts.pid)
    given = given_label or environ.get("CHIPLOG_LABEL")
    if joins and given and given == parent_label:
        given = _childs(given, facts)
    if launcher is None:
        # No launcher: a run of one's own, or the run of the process that started this one.
        launch = _launch_of_one(facts)
        run_id = environ.get("CHIPLOG_RUN_ID") or (parent_id if joins else new_run_id(facts.now_s, facts.random))
        label = given or f"{facts.host}-{facts.random}"
        # Also with a given run ID: rank and label are torch.distributed's to tell.
        return Identity(run_id, label, launch, primary=not joins, needs_agreement=True)
    rank = _number(environ, launcher.rank)
    world_size = _number(environ, launcher.world_size)
    launch, is_unique = _launch(environ, facts, launcher, world_size)
    run_id = environ.get("CHIPLOG_RUN_ID") or (parent_id if joins else _run_id_of(launch, facts))
    own = f"rank{rank}"
    if joins and (parent_rank == str(rank) or parent_label == own or parent_label.startswith(f"{own}.")):
        return Identity(run_id, given or _childs(own, facts), launch, world_size=world_size, primary=False)
    return Identity(
        run_id,
        given or own,
        launch,
        _number(environ, launcher.restart) or 0,
        rank,
        _number(environ, launcher.local_rank),
        world_size,
        primary=rank == 0,
        needs_agreement=not is_unique and not environ.get("CHIPLOG_RUN_ID"),
    )


def with_rank(identity: Identity, rank: int, world_size: int, run_id: str, *, label_given: bool) -> Identity:
    """Complete an identity by what torch.distributed said later."""
    label = identity.label if label_given or identity.rank is not None else f"rank{rank}"
    return replace(
        identity,
        run_id=run_id,
        label=label,
        rank=rank if identity.rank is None else identity.rank,
        world_size=world_size,
        primary=(rank == 0) if identity.rank is None else identity.primary,
        needs_agreement=False,
    )


def new_run_id(started_s: float, word: str) -> str:
    """Return a run ID that sorts by time and can be read out: 20261121-0115-k3f9ab."""
    return f"{datetime.fromtimestamp(started_s, UTC):%Y%m%d-%H%M}-{word}"


def _childs(label: str, facts: Facts) -> str:
    return f"{label}.{facts.pid}"


def _launch_of_one(facts: Facts) -> str:
    return f"process:{facts.host}:{facts.pid}:{facts.random}"


def _launch(environ: Mapping[str, str], facts: Facts, launcher: _Launcher, world_size: int | None) -> tuple[str, bool]:
    """Return the launch and whether it is the same for all ranks and unique among launches."""
    if launcher.name == "slurm":
        job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
        started = environ.get("SLURM_JOB_START_TIME", "")
        if not step:  # not under srun but in the job's own shell, where one training may follow another
            return f"slurm:{job}::{started}:{facts.parent}", bool(job)
        return f"slurm:{job}:{step}:{started}", bool(job)
    elastic_id = environ.get("TORCHELASTIC_RUN_ID", "")
    if _UUID.fullmatch(elastic_id):
        return f"torchelastic:{elastic_id}", True  # made by torchrun for this very launch
    if not elastic_id and world_size == 1 and not environ.get("LOCAL_WORLD_SIZE"):
        # Exported by hand, perhaps in a shell that starts one training after the other: nobody else belongs to it.
        return _launch_of_one(facts), True
    local_world_size = _number(environ, "LOCAL_WORLD_SIZE") or _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
    # Without a launcher's ID, trainings that one shell starts side by side differ in their port.
    siblings = f"{launcher.name}:{elastic_id or environ.get('MASTER_PORT', '')}:{facts.parent}"
    # One parent for all ranks: it names the launch, restarts included. Several: only ranks under the same one agree.
    return siblings, world_size is not None and world_size == local_world_size


def _run_id_of(launch: str, facts: Facts) -> str:
    if launch == _launch_of_one(facts):
        return new_run_id(facts.now_s, facts.random)
    # No time in it: nodes' clocks differ, and one may be set between the starts of two ranks, or before a restart.
    word = base64.b32encode(hashlib.sha256(launch.encode()).digest()).decode()[:8].lower()
    return f"{launch.split(':')[0]}-{word}"


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdigit() and len(text) < 10 else None
