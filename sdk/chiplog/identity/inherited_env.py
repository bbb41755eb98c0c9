"""Name this process's open run to its children, in a variable that is restored when the run ends.

The variable also has where and whether this process records, however that was chosen: a relative CHIPLOG_DIR means
another directory in a child that has another working directory, and a child does not see the arguments of `init`.
"""

import json
import os
from collections.abc import Mapping, MutableMapping
from urllib.parse import quote, unquote

from chiplog.identity.identity import PARENT_RUN, SETUP, Identity, ProcessFacts, decode_inherited, encode_parent_run
from chiplog.identity.process_info import process_fingerprint

_previous_value: str | None = None  # the variable's value before: a run of an ancestor, which outlives this one
_told: dict[int, str] = {}  # the value for each open run of this process, by owner, in the order of opening


# What decides where and whether a process records, as variables. The collector has no argument in `init`.
_PLACES = ("CHIPLOG_DIR", "CHIPLOG_AGENT", "CHIPLOG_MODE", "CHIPLOG_PROJECT")


def encode_places(environ: Mapping[str, str], chosen: Mapping[str, str | None]) -> str:
    """Return the settings that children inherit, and the variables from which a child's may differ.

    chosen: by variable, what this process uses.
    """
    before = {name: environ[name] for name in _PLACES if name in environ}
    used = {name: value for name, value in chosen.items() if value}
    return quote(json.dumps([used, before], separators=(",", ":")), safe="")


def with_inherited_places(environ: Mapping[str, str], facts: ProcessFacts) -> Mapping[str, str]:
    """Return the variables with what an ancestor uses, except for those that were changed since."""
    for name in (PARENT_RUN, SETUP):
        left = decode_inherited(environ.get(name, ""))
        if not left.places or left.pid == str(facts.pid) or name in facts.stale_variables:
            continue
        try:
            used, before = json.loads(unquote(left.places))
            unchanged = [place for place in _PLACES if environ.get(place) == before.get(place)]
            inherited = {place: str(used[place]) for place in unchanged if place in used}
        except (ValueError, TypeError, AttributeError):
            continue  # not ours
        return {**environ, **inherited}  # safeguard: places-travel-to-children
    return environ


def export_run(
    environ: MutableMapping[str, str], owner: object, run_id: str, identity: Identity, places: str = ""
) -> None:
    """Name the run to all processes that this one starts from now on. owner: the caller of `restore_environ`."""
    global _previous_value
    if not _is_own(environ):
        _previous_value = environ.get(PARENT_RUN)
        _told.clear()  # in a forked child these are its parent's
    _told[id(owner)] = environ[PARENT_RUN] = encode_parent_run(
        os.getpid(), run_id, identity, process_fingerprint(), places=places
    )


def restore_environ(environ: MutableMapping[str, str], owner: object) -> None:
    """Name the latest run that is still open, or restore the variable's previous value."""
    global _previous_value
    _told.pop(id(owner), None)
    if not _is_own(environ):
        return
    if told := list(_told.values()):  # a copy: a signal handler may open or finish a run here
        environ[PARENT_RUN] = told[-1]
    elif _previous_value is None:
        del environ[PARENT_RUN]
    else:
        environ[PARENT_RUN], _previous_value = _previous_value, None


def _is_own(environ: MutableMapping[str, str]) -> bool:
    return environ.get(PARENT_RUN, "").startswith(f"{os.getpid()}:")
