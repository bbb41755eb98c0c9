"""Requests for changes, pure: what a client asks and the state of the index become records for the log.

    delete      {runs: [run ID, …], force: bool, why: text, answer: bool}    force: also runs with labels that have not
                ended; answer: to a deletion of another collector
    restore     {producers: [16 bytes, …]}                     they may be recorded again
    edit        {run: run ID, fields: {entry of EDITABLE_FIELDS: value, nil clears it}, answer: bool}
                answer: to an edit at another collector
    save_view   {name: text, view: JSON text, nil removes it}
    trim_system {until: µs}                                    system samples before it are deleted
    roll_up     {first: µs, until: µs, every: µs}              those between become their means over intervals
    admit_blocks {version: number}                             blocks up to this version can be read

A request is carried out as a whole, or refused. The last three come from the index alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from chiplog_collector.index.apply.registry import plain_fields
from chiplog_collector.index.apply.state import Producer, Run, State
from chiplog_collector.index.apply.validation import json_of
from chiplog_collector.query.change_request import Elsewhere, Others
from chiplog_schemas.codec import CodecError, short_repr
from chiplog_schemas.model.change_record import (
    CHANGE_BYTES_MAX,
    EDITABLE_FIELDS,
    REQUEST_ID_BYTES,
    VIEW_CHARS_MAX,
    VIEW_NAME_CHARS_MAX,
    Action,
    Change,
    encode_change,
)
from chiplog_schemas.model.events import PRODUCER_BYTES, select_typed

_UUID_BYTES = PRODUCER_BYTES + 2  # in msgpack
_LIST_BYTES_MAX = CHANGE_BYTES_MAX - 4096  # of the lists in a deletion; the rest is for what is around them
_WHY_CHARS_MAX = 500


class RequestRefused(ValueError):  # noqa: N818 - it is an answer, not an error of ours
    """A request that cannot be carried out. The text is one line: the thing, its value, the remedy."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes that carry out a request, in order, and what to answer once the last is applied."""

    changes: list[Change]
    info: dict[str, Any] = field(default_factory=dict)


def plan_request(
    state: State,
    id: bytes,
    action: str,
    arguments: dict[str, Any],
    elsewhere: Others = lambda run_id: None,
) -> Plan:
    """Return the changes that carry out a request; the last one has its ID. Raises RequestRefused.

    elsewhere: returns a run of other collectors of the store; None if they have none of that ID.

    Nothing is left to do for a request that was carried out before: its client asks again after a restart of the index.
    """
    if id in state.managed:  # safeguard: change-carried-out-once
        return Plan([])
    match action:
        case Action.DELETE:
            return _plan_deletion(state, id, arguments, elsewhere)
        case Action.RESTORE:
            return _plan_restoration(state, id, arguments)
        case Action.EDIT:
            return _plan_edit(state, id, arguments, elsewhere)
        case Action.SAVE_VIEW:
            return _plan_view(id, arguments)
        case Action.TRIM_SYSTEM:
            return _plan_trim(id, arguments)
        case Action.ROLL_UP:
            return _plan_roll_up(id, arguments)
        case Action.ADMIT_BLOCKS:
            return _single(Change(id, Action.ADMIT_BLOCKS, {"version": arguments["version"]}), {})
    raise RequestRefused(f"action {short_repr(action)} is unknown to this collector; upgrade it")


def _plan_deletion(state: State, id: bytes, arguments: dict[str, Any], elsewhere: Others) -> Plan:
    names, why = arguments.get("runs"), arguments.get("why", "")
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise RequestRefused("a deletion names its runs in a list; give at least one run ID")
    if not isinstance(why, str):
        raise RequestRefused("the reason of a deletion is a text")
    # After the first of several parts a client asks again with its ID if the index has restarted.
    is_continued = _part_id(id, 0) in state.managed  # safeguard: large-deletion-continues
    # Of these the record is a request to their collectors, which the table `deletions` of the store passes on.
    others = _others_of(state, names, elsewhere)
    left = [name for name in names if name not in others and not (is_continued and name not in state.runs)]
    runs = {run.run: run for run in (_run_of(state, name) for name in left)}
    if arguments.get("force") is not True:
        found = [(run.run_id, sorted(running_labels(state, run))) for run in runs.values()]
        found += [(run.run_id, sorted(run.running)) for run in others.values()]
        _refuse_running(found)
    parts: list[tuple[list[str], list[bytes]]] = [([], [])]
    n_bytes = n_producers = n_labels = 0
    for run in runs.values():
        members = state.members.get(run.run, {})
        n_labels += len({member.label for member in members.values() if member.role == "rank"})
        parts[-1][0].append(run.run_id)
        n_bytes += len(run.run_id.encode()) + 3
        for uuid in _uuids_of(state, members.values()):
            n_producers += 1
            if n_bytes + _UUID_BYTES > _LIST_BYTES_MAX:
                parts.append(([run.run_id], []))
                n_bytes = len(run.run_id.encode()) + 3
            parts[-1][1].append(uuid)
            n_bytes += _UUID_BYTES
    for name in others:
        if n_bytes + len(name.encode()) > _LIST_BYTES_MAX:
            parts.append(([], []))
            n_bytes = 0
        parts[-1][0].append(name)
        n_bytes += len(name.encode()) + 3
    about: dict[str, Any] = {"why": why[:_WHY_CHARS_MAX]}
    if arguments.get("answer") is True:
        about["answer"] = True
    bodies = [{"producers": uuids, "runs": ids, **about} for ids, uuids in parts]
    first = len(state.managed) if is_continued else 0  # a number that no part has had
    changes = [Change(_part_id(id, number), Action.DELETE, body) for number, body in enumerate(bodies[:-1], first)]
    changes.append(Change(id, Action.DELETE, bodies[-1]))
    asked = sorted({host for run in others.values() for host in run.hosts})
    info = {"runs": len(runs) + len(others), "labels": n_labels, "producers": n_producers}
    return Plan(changes, {**info, "asked": asked} if asked else info)


def _others_of(state: State, names: list[str], elsewhere: Others) -> dict[str, Elsewhere]:
    """Return the runs of which only other collectors have something. Raises RequestRefused if they cannot be asked."""
    found: dict[str, Elsewhere] = {}
    for name in names:
        if name not in state.runs and (run := elsewhere(name)) is not None:
            if not run.can_ask:
                raise RequestRefused(_only_read(run, "delete"))
            found[name] = run
    return found


def _only_read(run: Elsewhere, verb: str) -> str:
    return f"run {run.run_id} can only be read here; {verb} it at the collector on {' or '.join(run.hosts)}"


def _refuse_running(runs: list[tuple[str, list[str]]]) -> None:
    """Raise RequestRefused if a run, given with its labels that are not over, is running."""
    for run_id, running in runs:
        if running:
            more = f" and {len(running) - 1} more" if len(running) > 1 else ""
            verb = "are" if len(running) > 1 else "is"
            # safeguard: running-run-kept
            raise RequestRefused(
                f"run {run_id} is running: {running[0]}{more} {verb} not over; end it first, or force it"
            )


def running_labels(state: State, run: Run) -> set[str]:
    """Return the labels of a run whose newest attempt has not ended."""
    newest: dict[str, Producer] = {}
    for member in state.members.get(run.run, {}).values():
        label = member.label or ""
        if member.role == "rank" and (label not in newest or member.attempt > newest[label].attempt):
            newest[label] = member
    return {label for label, member in newest.items() if member.state in (None, "running")}


def _run_of(state: State, name: str) -> Run:
    """Return the run of an ID, or the one that it is another name of."""
    run = state.runs.get(name)
    passed = set()
    while run is not None and run.alias_of is not None and not state.members.get(run.run) and run.run not in passed:
        passed.add(run.run)
        run = state.runs_by_number.get(run.alias_of)
    if run is None:
        raise RequestRefused(f"run {name!r:.200} is unknown; the view runs lists all")
    return run


def _uuids_of(state: State, members: Iterable[Producer]) -> list[bytes]:
    """Return the producers of a run and their consoles, in log order."""
    numbers = set()
    for member in members:
        numbers |= {member.producer, *state.consoles.get(member.producer, ())}
    return [state.producers_by_number[number].uuid for number in sorted(numbers)]


def _part_id(id: bytes, number: int) -> bytes:
    return blake2b(id + number.to_bytes(8, "big"), digest_size=REQUEST_ID_BYTES).digest()


def _plan_restoration(state: State, id: bytes, arguments: dict[str, Any]) -> Plan:
    uuids = arguments.get("producers")
    if not (isinstance(uuids, list) and all(isinstance(u, bytes) and len(u) == PRODUCER_BYTES for u in uuids)):
        raise RequestRefused(f"a restoration names its producers in a list, each by its {PRODUCER_BYTES} bytes")
    found = sorted(state.deleted.intersection(uuids))
    size = _LIST_BYTES_MAX // _UUID_BYTES
    parts = [found[at : at + size] for at in range(0, len(found), size)]
    changes = [
        Change(id if number == len(parts) - 1 else _part_id(id, number), Action.RESTORE, {"producers": part})
        for number, part in enumerate(parts)
    ]
    return Plan(changes, {"producers": len(found)})


def _plan_edit(state: State, id: bytes, arguments: dict[str, Any], elsewhere: Others) -> Plan:
    name, fields = arguments.get("run"), arguments.get("fields")
    if not isinstance(name, str) or not isinstance(fields, dict) or not fields:
        raise RequestRefused("an edit names a run and at least one field")
    other = elsewhere(name) if name not in state.runs else None
    if other is not None and not other.can_ask:
        raise RequestRefused(_only_read(other, "edit"))
    # Of a run of others the record is a request to their collectors, which the table `events` of the store passes on.
    run_id = _run_of(state, name).run_id if other is None else name
    typed = select_typed(fields, EDITABLE_FIELDS)
    for key, value in fields.items():
        if key not in EDITABLE_FIELDS:
            raise RequestRefused(f"field {key!r:.100} cannot be edited; give one of {', '.join(EDITABLE_FIELDS)}")
        if value is not None and key not in typed:
            raise RequestRefused(
                f"{key}={short_repr(value)} is not what this field holds: tags are a list, others text"
            )
    if not all(isinstance(tag, str) for tag in typed.get("tags", [])):
        raise RequestRefused("tags must be texts")
    plain, cut = plain_fields(typed)
    if cut:
        raise RequestRefused(f"{cut[0]} exceeds its limit; shorten it")
    fields = plain | {name: None for name in fields if name not in plain}
    body: dict[str, Any] = {"run": run_id, "fields": fields}
    if arguments.get("answer") is True:
        body["answer"] = True
    asked = {} if other is None else {"asked": list(other.hosts)}
    return _single(Change(id, Action.EDIT, body), {"run_id": run_id, **asked})


def _plan_view(id: bytes, arguments: dict[str, Any]) -> Plan:
    name, view = arguments.get("name"), arguments.get("view")
    if not (isinstance(name, str) and 0 < len(name) <= VIEW_NAME_CHARS_MAX):
        raise RequestRefused(f"name {short_repr(name)} of a view must have 1 to {VIEW_NAME_CHARS_MAX} characters")
    if view is not None:
        if not isinstance(view, str) or len(view) > VIEW_CHARS_MAX:
            raise RequestRefused(f"view {name!r} must be JSON of at most {VIEW_CHARS_MAX} characters")
        try:
            view = json_of(view)  # as DuckDB accepts it: one bad text would break the view for every reader
        except (ValueError, RecursionError) as error:
            raise RequestRefused(f"view {name!r} is not JSON: {error}") from error
    return _single(Change(id, Action.SAVE_VIEW, {"name": name, "view": view}), {})


def _plan_trim(id: bytes, arguments: dict[str, Any]) -> Plan:
    return _single(Change(id, Action.TRIM_SYSTEM, {"until": arguments["until"]}), {})


def _plan_roll_up(id: bytes, arguments: dict[str, Any]) -> Plan:
    body = {name: arguments[name] for name in ("first", "until", "every")}
    return _single(Change(id, Action.ROLL_UP, body), {})


def _single(change: Change, info: dict[str, Any]) -> Plan:
    try:
        n_bytes = len(encode_change(change))
    except CodecError as error:
        raise RequestRefused(str(error)) from error
    if n_bytes > CHANGE_BYTES_MAX:
        raise RequestRefused(f"a change of {n_bytes} bytes exceeds the limit of {CHANGE_BYTES_MAX}; shorten it")
    return Plan([change], info)
