"""Changes to what was recorded, pure: apply MANAGE records to a State. What people change is a row of `events`."""

from typing import Any

from chiplog_collector.index.apply.apply_context import ApplyContext
from chiplog_collector.index.apply.registry import RUN_COLUMNS, plain_fields
from chiplog_collector.index.apply.validation import json_of, text_of, uuid_of
from chiplog_schemas.codec import short_repr
from chiplog_schemas.model.change_record import (
    EDITABLE_FIELDS,
    NOTE_CHARS_MAX,
    NOTES,
    VIEW_CHARS_MAX,
    VIEW_NAME_CHARS_MAX,
    Action,
    Change,
)
from chiplog_schemas.model.events import select_typed

# By action: the kind of its row in `events`. Those that the index asks for have none.
CHANGE_EVENTS = {
    Action.DELETE: "run_deleted",
    Action.RESTORE: "run_restored",
    Action.EDIT: "run_edited",
    Action.SAVE_VIEW: "view_saved",
}
_TIME_LIMIT_US = 1 << 61  # no column can hold a later time
_BLOCK_VERSION_MAX = (1 << 16) - 1  # two bytes of a block
_RUNS_NAMED_MAX = 5  # in a message


class Changes:
    """Applies changes to a State."""

    def __init__(self, context: ApplyContext) -> None:
        self._context = context
        self._state = context.state

    def apply(self, change: Change, number: int) -> None:
        """Apply one change. Raises ValueError or TypeError for an invalid one; then nothing has changed.

        number: of its record.
        """
        if change.action is Action.NOTE:
            self._note(change, number)
            return
        match change.action:
            case Action.DELETE:
                applied = self._delete(change.body, number)
            case Action.RESTORE:
                applied = self._restore(change.body)
            case Action.EDIT:
                applied = self._edit(change.body)
            case Action.SAVE_VIEW:
                applied = self._save_view(change.body)
            case Action.TRIM_SYSTEM:
                applied = self._trim_system(change.body, number)
            case Action.ROLL_UP:
                applied = self._roll_up(change.body)
            case Action.ADMIT_BLOCKS:
                applied = self._admit_blocks(change.body)
        self._state.managed.add(change.id)
        message, body = applied
        row = (number, change.id, change.action.value, body.get("until", 0), body.get("every", 0))
        self._context.batch.add("changes", row)
        is_repeated = change.action is Action.EDIT and change.body.get("answer") is True  # its collector has the row
        if (kind := CHANGE_EVENTS.get(change.action)) is not None and not is_repeated:  # safeguard: edit-has-one-row
            body = {"request": change.id.hex(), **body}
            self._context.emit_event(None, number, self._context.received_us, kind, "info", message, body)

    def _note(self, change: Change, number: int) -> None:
        """Add a row of `events` about the collector itself, unless a receiver that was restarted wrote it again."""
        kind, text = text_of(change.body.get("kind")), text_of(change.body.get("text"))
        if kind not in NOTES:
            raise ValueError(f"note {short_repr(kind)} is unknown; upgrade the collector")
        if change.id in self._state.managed:  # safeguard: outage-noted-once
            return
        self._state.managed.add(change.id)
        self._context.batch.add("changes", (number, change.id, change.action.value, 0, 0))
        received_us = self._context.received_us
        self._context.emit_event(None, number, received_us, kind, NOTES[kind], text[:NOTE_CHARS_MAX], {})

    def _delete(self, body: dict[str, Any], number: int) -> tuple[str, dict[str, Any]]:
        uuids, runs, why = _uuids(body), _run_ids(body), text_of(body.get("why", ""))
        known = [self._state.producers[uuid] for uuid in uuids if uuid in self._state.producers]
        # Also those that are unknown here, as in a rebuild from a log without them: they may still deliver.
        for uuid in uuids:
            if uuid not in self._state.producers and uuid not in self._state.deleted:
                known.append(self._context.producer(uuid))
        self._context.delete(known)
        for run_id in runs:
            # safeguard: answer-is-no-request
            self._context.note_deletion(b"", run_id, is_request=body.get("answer") is not True)
            if (left := self._state.runs.get(run_id)) is not None:  # others have come since: its row counts again
                self._context.batch.runs.add(left.run)  # safeguard: run-with-others-stays
        self._state.last_deletion = number
        reason = f" ({why})" if why else ""
        return f"deleted {_named(runs)}{reason}", {"runs": runs, "producers": len(uuids), "why": why}

    def _restore(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        uuids, runs = _uuids(body), _run_ids(body)
        for uuid in self._state.deleted.intersection(uuids):
            self._state.deleted.discard(uuid)
            self._context.batch.restored.add(uuid)
        return f"{_named(runs)} may be recorded again", {"runs": runs, "producers": len(uuids)}

    def _edit(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        run_id, fields = text_of(body.get("run")), body.get("fields")
        if not isinstance(fields, dict) or not fields:
            raise ValueError("an edit has no fields")
        cleared = [name for name in EDITABLE_FIELDS if name in fields and fields[name] is None]
        values, _ = plain_fields(select_typed(fields, EDITABLE_FIELDS))
        if unknown := set(fields) - set(values) - set(cleared):
            raise ValueError(f"field {short_repr(sorted(unknown, key=str)[0])} cannot be edited")
        run = self._state.runs.get(run_id)
        if run is not None:  # else other collectors have it, or it was deleted since, or its records were
            for name in [*values, *cleared]:
                column = RUN_COLUMNS[name]
                setattr(run, column, values.get(name, [] if column == "tags" else None))
                if column not in run.edited:
                    run.edited.append(column)
            self._context.batch.runs.add(run.run)
        names = ", ".join(name for name in EDITABLE_FIELDS if name in fields)
        return f"edited {names} of run {run_id}", {"run_id": run_id, "fields": values | dict.fromkeys(cleared)}

    def _save_view(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        name, view = text_of(body.get("name")), body.get("view")
        if not 0 < len(name) <= VIEW_NAME_CHARS_MAX:
            raise ValueError(f"a view's name has 1 to {VIEW_NAME_CHARS_MAX} characters")
        if view is not None and len(text_of(view)) > VIEW_CHARS_MAX:
            raise ValueError(f"a view has at most {VIEW_CHARS_MAX} characters")
        view = None if view is None else json_of(view)
        self._context.batch.saved_views[name] = (view, self._context.received_us)
        return f"{'removed' if view is None else 'saved'} view {name}", {"name": name}

    def _trim_system(self, body: dict[str, Any], number: int) -> tuple[str, dict[str, Any]]:
        until = _time_of(body, "until")
        self._state.trimmed = (number, until)
        self._context.batch.thinnings.append((0, until, 0))
        self._context.note_deletion(b"", "", until)
        return "deleted old system samples", {"until": until}

    def _roll_up(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        first, until, every = (_time_of(body, name) for name in ("first", "until", "every"))
        if not every:
            raise ValueError("samples are rolled up over intervals of at least 1 µs")
        self._state.rolled_until[every] = until
        self._context.batch.thinnings.append((first, until, every))
        return "rolled up system samples", {"until": until, "every": every}

    def _admit_blocks(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        version = body.get("version")
        if type(version) is not int or not 0 < version <= _BLOCK_VERSION_MAX:
            raise TypeError("version of a change is one of blocks")
        self._state.block_version = version
        return "admitted blocks", {"until": version}


def _time_of(body: dict[str, Any], name: str) -> int:
    time_us = body.get(name)
    if type(time_us) is not int or not 0 <= time_us < _TIME_LIMIT_US:
        raise TypeError(f"{name} of a change is a time in µs")
    return time_us


def _uuids(body: dict[str, Any]) -> list[bytes]:
    producers = body.get("producers")
    if not isinstance(producers, list):
        raise TypeError("a change names its producers in a list")
    return list(map(uuid_of, producers))


def _run_ids(body: dict[str, Any]) -> list[str]:
    runs = body.get("runs", [])
    if not isinstance(runs, list):
        raise TypeError("a change names its runs in a list")
    return list(map(text_of, runs))


def _named(runs: list[str]) -> str:
    more = f" and {len(runs) - _RUNS_NAMED_MAX:,} more" if len(runs) > _RUNS_NAMED_MAX else ""
    return f"run {runs[0]}" if len(runs) == 1 else f"runs {', '.join(runs[:_RUNS_NAMED_MAX])}{more}"
