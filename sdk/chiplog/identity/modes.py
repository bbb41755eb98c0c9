"""Modes of tracking: online, offline or disabled; and one run per process, or rank 0 only. Pure."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from chiplog.identity.identity import Identity, ProcessFacts
from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.text import short_repr

RANK0 = "rank0"  # the mode that records rank 0 only
MODES = ("online", "offline", "disabled")
_ALIASES = {"dryrun": "offline", "run": "online", "shared": "online"}  # W&B's names


FINISH_PREVIOUS, RETURN_PREVIOUS, CREATE_NEW = "finish_previous", "return_previous", "create_new"
_REINIT = {"true": FINISH_PREVIOUS, "false": RETURN_PREVIOUS, "default": "", "none": ""}


def reinit_of(given: Any) -> tuple[str, Diagnostic | None]:
    """Return what `init(reinit=)` does with open runs, '' for the default, and a diagnostic of a bad value."""
    word = str(given).strip().lower()
    word = _REINIT.get(word, word)
    if word in ("", FINISH_PREVIOUS, RETURN_PREVIOUS, CREATE_NEW):
        return word, None
    known = ", ".join((FINISH_PREVIOUS, RETURN_PREVIOUS, CREATE_NEW))
    message = f"reinit {short_repr(given)} is unknown, {FINISH_PREVIOUS} is used; give one of {known}, True or False"
    return "", Diagnostic("bad_argument", "reinit", message)


def beside(identity: Identity, opened: Iterable[tuple[str, str]], *, primary_given: bool) -> Identity:
    """Return the identity of a run that its process opens beside others, with a label that none of them has.

    opened: run ID and label of each open run. A run of the same ID has a primary already.
    """
    taken = set(opened)
    if (identity.run_id, identity.label) not in taken:
        return identity
    numbered = (f"{identity.label}.{n}" for n in itertools.count(2))
    label = next(label for label in numbered if (identity.run_id, label) not in taken)
    return replace(identity, label=label, primary=identity.primary and primary_given)


def mode_of(given: Any, variable: str, identity: Identity) -> tuple[str, Diagnostic | None]:
    """Return one of MODES, and a diagnostic if the given word is unknown.

    An unknown word means offline: sent data cannot be recalled, but `chiplog sync` can send data later.
    variable: CHIPLOG_MODE, which decides if `given` is None or `rank0`.
    """
    wanted = _mode(variable) or "online"
    mode = _mode(given) or wanted
    if mode == RANK0:
        if not is_rank0(identity):
            return "disabled", None
        mode = "online" if wanted == RANK0 else wanted
    if mode in MODES:
        return mode, None
    asked = variable if _mode(given) in ("", RANK0) else given
    message = (
        f"mode {short_repr(asked)} is unknown, so this run is offline: chiplog sync delivers it; "
        f"give one of {', '.join((*MODES, RANK0))}"
    )
    return "offline", Diagnostic("bad_argument", "mode", message, "error")  # safeguard: unknown-mode-is-offline


def _mode(word: Any) -> str:
    """Return a mode in its normalized form; '' for none."""
    text = str(word).strip().lower() if word else ""  # safeguard: mode-without-case
    return _ALIASES.get(text, text)


def with_own_run(
    identity: Identity, group: str | None, name: str | None, facts: ProcessFacts
) -> tuple[Identity, str | None]:
    """Give a process its own run; return its identity and the run's name.

    The run ID is the ID that the processes would share, followed by the label: a rank that its launcher restarts
    returns to its own run. A child of a process that has a run stays in that run.
    """
    if identity.joined_existing_run:
        return identity, name
    is_shared = identity.is_fallback_primary or not identity.launch.startswith("process:")
    first = f"{identity.run_id}-{identity.label}" if is_shared else identity.run_id
    numbered = (first if n == 1 else f"{first}-{n}" for n in itertools.count(1))
    run_id = next(candidate for candidate in numbered if candidate not in facts.used_run_ids)
    own = replace(
        identity,
        run_id=run_id,
        primary=True,
        run_id_is_final=True,
        is_fallback_primary=False,
        proposed_run_id="",
        launch_cache_key="",
    )
    return own, name or (f"{group}-{identity.label}" if is_shared and group else None)


def announces_split(identity: Identity) -> bool:
    """Return True if this process, before it gets its own run, is the first of a launch: one of all reports it."""
    is_alone = identity.launch.startswith("process:") or identity.world_size == 1
    return identity.primary and not (is_alone or identity.joined_existing_run or identity.is_fallback_primary)


def is_rank0(identity: Identity) -> bool:
    """Return True if this process is rank 0, as far as it knows now; without ranks, if no other process started it."""
    if identity.joined_existing_run:
        return False
    return identity.primary if identity.rank is None else identity.rank == 0
