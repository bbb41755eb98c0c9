"""Resolve `init(resume=)`: a run ID, or one of W&B's rules for one."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from chiplog.identity.identity import Identity
from chiplog.recording.resume.step_counter import STEPS, has_counted, is_known, label_to_resume
from chiplog.recording.resume.unfinished_runs import UNFINISHED, last_unfinished
from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.text import short_repr
from chiplog_schemas.paths import Paths

ALLOW, MUST, NEVER, AUTO = "allow", "must", "never", "auto"
_BY_ID = "id"  # resume= was itself a run ID
_REMEDY = "give the ID of the run, such as resume='gpt-1' (chiplog runs lists them)"


class Asked(NamedTuple):
    """The request. word: one of W&B's rules, `id` if resume= is a run ID, '' without resume=."""

    run_id: str | None
    word: str

    @property
    def goes_on(self) -> bool:
        """Whether an existing run is continued, with the generated label of a lone process."""
        return self.word not in ("", NEVER)


def requested_run(given: Mapping[str, Any], environ: Mapping[str, str], notes_found: list[Diagnostic]) -> Asked:
    """Return the run that run_id=, id=, resume= and CHIPLOG_RUN_ID request. given: arguments of `init`."""
    named, other, resume = given["run_id"], given["id"], given["resume"]
    if named and other and str(named) != str(other):
        what = f"id={short_repr(other)} and run_id={short_repr(named)} name two runs; the second is used"
        notes_found.append(Diagnostic("bad_argument", "id", f"{what}, so leave out one of them"))
    named = named or other
    word = AUTO if resume is True else str(resume).strip().lower() if resume else ""
    if word in ("", ALLOW, MUST, NEVER, AUTO):  # safeguard: resume-word-is-no-run
        run_id = named or environ.get("CHIPLOG_RUN_ID")
        if word == MUST and not run_id:
            message = "resume='must' needs the ID of the run; give run_id=, or CHIPLOG_RUN_ID. A new run begins"
            notes_found.append(Diagnostic("bad_argument", "resume", message))
        return Asked(run_id, word)
    if named and str(named) != str(resume):
        what = f"resume={short_repr(resume)} and run_id={short_repr(named)} name two runs; the second is used"
        notes_found.append(Diagnostic("bad_argument", "resume", f"{what}, so leave out one of them"))
    return Asked(named or resume, _BY_ID)


def go_on(
    identity: Identity, asked: Asked, label: str | None, key: str, where: Paths, *, is_spawned: bool
) -> tuple[Identity, str | None]:
    """Return the identity in the resumed run, and its label if that was given or is resumed too.

    key: for `last_unfinished`. Nodes may find different runs: the ranks agree through torch.distributed.
    """
    if identity.joined_existing_run:
        return identity, label
    run_id = asked.run_id
    if asked.word == AUTO and not run_id:
        run_id = last_unfinished(where.local / UNFINISHED, key, identity.launch)
        if identity.rank_from_launcher:
            again = identity.launch_cache_key or f"{identity.launch} {identity.run_id}"
            identity = replace(identity, needs_agreement=True, launch_cache_key=again)
        if run_id is not None:
            identity = replace(identity, run_id=run_id, run_id_is_final=True, proposed_run_id="")
    if asked.word in (MUST, NEVER) and run_id and not identity.demand:
        identity = replace(identity, demand=asked.word)
    if asked.goes_on and run_id and not label and not (identity.rank_from_launcher or is_spawned):
        label = label_to_resume(where.local / STEPS, identity.run_id)
        identity = replace(identity, label=label or identity.label)
    return identity, label


def passed_over(identity: Identity, asked: Asked, key: str, where: Paths) -> str | None:
    """Return the run that `auto` would have continued, if the ID of another one was given; on the primary."""
    if asked.word != AUTO or not asked.run_id or not identity.primary:
        return None
    found = last_unfinished(where.local / UNFINISHED, key, identity.launch)
    return None if found == asked.run_id else found


def announce_resumed(identity: Identity, asked: Asked, before: str, project: str | None) -> list[str]:
    """Return the line that names the run that `auto` has chosen, on the primary. before: its ID otherwise."""
    if asked.word != AUTO or asked.run_id or identity.run_id == before or not identity.primary:
        return []
    of_project = f" and project {project}" if project else " without a project"
    why = f"the last one of this working directory{of_project} on this node that did not finish"
    # safeguard: chosen-run-is-named
    return [f"resume='auto' continues run {identity.run_id}, {why}; give run_id= for another"]


def is_resumed(where: Paths, identity: Identity, asked: Asked) -> bool:
    """Return True if this process continues a run that this node knows. Another rank may have opened it just now."""
    if not asked.goes_on or identity.joined_existing_run:
        return False
    steps = where.local / STEPS
    is_here = is_known(steps, identity.run_id, identity.launch)
    return is_here or has_counted(steps, identity.run_id, identity.label)


def warn_unknown_run(where: Paths, identity: Identity, asked: Asked, notes_found: list[Diagnostic]) -> None:
    """Report a run ID in resume= that is unknown on this node: it may be a typo."""
    run_id = identity.run_id
    if asked.word != _BY_ID or is_known(where.local / STEPS, run_id, identity.launch):
        return
    what = f"no run {run_id!r} is known on this node: unless it ran elsewhere, a new one begins"
    if run_id == "latest":
        what = f"resume={run_id!r} is taken as the ID of a run; {_REMEDY}"
        notes_found.append(Diagnostic("resume_unknown", run_id, what))
    else:
        notes_found.append(Diagnostic("resume_unknown", run_id[:60], f"{what}; chiplog runs lists those there are"))


def unmet_demand(where: Paths, identity: Identity) -> str | None:
    """Return a warning if, as far as this node knows, `must` or `never` is not met. The collector decides."""
    if not identity.demand or identity.demand_launch:
        return None
    is_here = is_known(where.local / STEPS, identity.run_id, identity.launch)
    if is_here == (identity.demand == MUST):
        return None
    known = "was on this node before" if is_here else "is not known on this node"
    has_it = "has it" if is_here else "does not have it"
    other = f"it keeps this run as {identity.run_id}-2, or the next free number"
    return f"resume={identity.demand!r}, but run {identity.run_id} {known}: if the collector {has_it}, {other}"


def working_directory() -> str:
    """Return the working directory; '' if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""
