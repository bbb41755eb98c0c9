"""The ways to track other than one run of many processes: one run for each process, and rank 0 alone. Pure."""

import itertools
from dataclasses import replace

from chiplog.identity import Facts, Identity

RANK0 = "rank0"  # the mode in which rank 0 alone is recorded


def own_run(identity: Identity, group: str, name: str | None, facts: Facts) -> tuple[Identity, str | None]:
    """Give a process a run of its own, in a group; return its identity and the run's name.

    The run ID is that which the processes would share, with the label behind it: a rank that its launcher starts anew
    comes back to its own run. A child of a process that has a run stays in that.
    """
    if identity.joined:
        return identity, name
    is_shared = identity.fallback or not identity.launch.startswith("process:")
    first = f"{identity.run_id}-{identity.label}" if is_shared else identity.run_id
    numbered = (first if n == 1 else f"{first}-{n}" for n in itertools.count(1))
    run_id = next(candidate for candidate in numbered if candidate not in facts.opened)
    own = replace(identity, run_id=run_id, primary=True, settled=True, fallback=False, offer="", launch_run="")
    return own, name or (f"{group}-{identity.label}" if is_shared else None)


def is_rank0(identity: Identity) -> bool:
    """Tell whether this process is rank 0, as far as is known now; without ranks, the one that nobody started."""
    if identity.joined:
        return False
    return identity.primary if identity.rank is None else identity.rank == 0
