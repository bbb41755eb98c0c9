"""The run of an ancestor, as it names it to the processes that it starts: two variables, and whether they still apply.

Ranks join that run, and processes that only read do so where it is recorded.
"""

import json
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote

from chiplog_schemas.process.procfs import DEAD, START, STATE, boot_id, read_proc_stat, start_ticks

# "pid:run_id/label/rank/settled/world/start/session/demand/launch/kind/places", for the processes that this one starts.
# World and start identify the process even if its PID is reused. Older versions lack them, the session, demand and
# launch (quoted), the kind, or the places: see encode_places(). init() sets PARENT_RUN while its run is open, and
# `chiplog run` for its command.
PARENT_RUN = "CHIPLOG_PARENT_RUN"
# The same from setup(): the identity that its process would have, without a label, because children choose theirs.
SETUP = "CHIPLOG_SETUP"
LAUNCHER = "launcher"  # the kind of a parent that trains nothing itself: `chiplog run`
# What decides where and whether a process records, as variables. The collector has no argument in `init`.
_PLACES = ("CHIPLOG_DIR", "CHIPLOG_AGENT", "CHIPLOG_MODE", "CHIPLOG_PROJECT")
_UNKNOWN = "0"  # start time of a process, if it cannot be read
_PID_DIGITS_MAX = 9  # the kernel's have at most seven; os.kill() rejects ten
_TICKS_DIGITS_MAX = 20  # of 64 bits


class InheritedRun(NamedTuple):
    """The fields of PARENT_RUN or SETUP, as text; '' for a missing field."""

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
    kind: str
    places: str


def decode_inherited(value: str) -> InheritedRun:
    """Decode a value of `encode_parent_run`, of an older version too, and accept any other text."""
    pid, _, rest = value.partition(":")
    parts = [pid, *rest.split("/")]
    return InheritedRun(*[*parts, *[""] * len(InheritedRun._fields)][: len(InheritedRun._fields)])


def encode_places(environ: Mapping[str, str], chosen: Mapping[str, str | None]) -> str:
    """Return the settings that children inherit, and the variables from which a child's may differ.

    chosen: by variable, what this process uses.
    """
    before = {name: environ[name] for name in _PLACES if name in environ}
    used = {name: value for name, value in chosen.items() if value}
    return quote(json.dumps([used, before], separators=(",", ":")), safe="")


def with_inherited_places(environ: Mapping[str, str], pid: int, stale: Collection[str]) -> Mapping[str, str]:
    """Return the variables with what an ancestor uses, except for those that were changed since.

    pid: this process. stale: see `stale_variables`.
    """
    for name in (PARENT_RUN, SETUP):
        left = decode_inherited(environ.get(name, ""))
        if not left.places or left.pid == str(pid) or name in stale:
            continue
        try:
            used, before = json.loads(unquote(left.places))
            unchanged = [place for place in _PLACES if environ.get(place) == before.get(place)]
            inherited = {place: str(used[place]) for place in unchanged if place in used}
        except (ValueError, TypeError, AttributeError):
            continue  # not ours
        return {**environ, **inherited}  # safeguard: places-travel-to-children
    return environ


def process_fingerprint() -> str:
    """Return this process's session, and what distinguishes it from earlier and later processes of its PID."""
    return f"{pid_namespace_id()}/{start_ticks(os.getpid())}/{os.getsid(0)}"


@dataclass(frozen=True, slots=True)
class _Owner:
    """The process that wrote a record for its children."""

    pid: int
    start: str
    session: str  # '' if the record has none


def is_stale_parent(record: str) -> bool:
    """Return True if PARENT_RUN is from a process that has exited and did not start this one, e.g. in a terminal."""
    owner = _local_owner(record)
    return owner is not None and _has_exited(owner) and not _is_child_of(owner)


def pid_was_reused(record: str) -> bool:
    """Return True if the PID in a record belongs to another process by now.

    Only then is SETUP stale: a launcher may exit before its workers call init().
    """
    owner = _local_owner(record)
    return owner is not None and str(start_ticks(owner.pid)) not in (owner.start, _UNKNOWN)


def _local_owner(record: str) -> _Owner | None:
    """Return the process that wrote a record, if its PID is valid here: same host, same boot, same PID namespace."""
    left = decode_inherited(record)
    has_start = _is_number(left.start, _TICKS_DIGITS_MAX) and left.start != _UNKNOWN
    if not has_start or not _is_number(left.pid, _PID_DIGITS_MAX) or not left.world or left.world != pid_namespace_id():
        return None
    return _Owner(int(left.pid), left.start, left.session)


def _is_number(text: str, digits_max: int) -> bool:
    return text.isdecimal() and len(text) <= digits_max


def _has_exited(owner: _Owner) -> bool:
    """Return True if that process has exited, reaped by its parent or not. False if that is unknown."""
    fields = read_proc_stat(owner.pid)
    if not fields:
        return not _exists(owner.pid)
    return fields[STATE] in DEAD or fields[START] != owner.start


def _is_child_of(owner: _Owner) -> bool:
    """Return True if a process that has exited, or a child of it, started this one. This one may call init() late.

    True in the same session: a shell or timeout(1) may be between the two, and each terminal has its own session. In
    another session, true for an orphan, whose parent is the system's init, which is not younger than the owner: tini
    starts a training in its own tick, and what the training starts after its init() is ticks younger. Or if
    multiprocessing names the owner as the parent.
    """
    if owner.pid == os.getpid():
        return False  # this process has the owner's PID now
    if owner.session == str(os.getsid(0)) or start_ticks(os.getppid()) <= int(owner.start):
        return True
    module = sys.modules.get("multiprocessing.process")
    parent = module.parent_process() if module is not None else None
    return parent is not None and parent.pid == owner.pid


def stale_variables(environ: Mapping[str, str]) -> frozenset[str]:
    """Return which of PARENT_RUN and SETUP no longer apply to this process."""
    records = ((PARENT_RUN, is_stale_parent), (SETUP, pid_was_reused))
    return frozenset(name for name, is_stale in records if is_stale(environ.get(name, "")))


def pid_namespace_id() -> str:
    """Return the scope of this process's PID: the boot and the PID namespace; '' if unknown."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    boot = boot_id()
    return "" if boot == "unknown" else f"{boot}.{''.join(filter(str.isdecimal, namespace))}"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True
