"""Changes to what was recorded: the payload of a MANAGE record, a msgpack array [id, action, body].

`id` is that of the request, 8 bytes; one that the collector made itself has a random one. A change names its cut-off:
a deletion lists the producers that it deletes, so that later ones of the same run stay, also in a rebuild from a log
without the deleted records.

    delete      {producers: [16 bytes, …], runs: [run ID, …], why: text, answer: bool}   to another collector's deletion
    restore     {producers: [16 bytes, …], runs: [run ID, …]}   they no longer count as deleted
    edit        {run: run ID, fields: {entry of EDITABLE_FIELDS: value, nil clears it}, answer: bool}   likewise
    save_view   {name: text, view: JSON text, nil removes it}
    trim_system {until: µs}   system samples before it are deleted, and …
    roll_up     {first: µs, until: µs, every: µs}   … those between become their means over intervals of this length

    note        {kind: one of NOTES, text}   what a collector notes of itself; no client asks for it
    admit_blocks {version: number}   blocks up to this version are applied: later ones in their place, earlier ones here

`trim_system` and `roll_up` concern the samples of records up to the next receipt; what comes later stays.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from chiplog_schemas.codec import CodecError, pack, short_repr, unpack
from chiplog_schemas.model.events import IDENTITY_FIELDS, marked_entries

REQUEST_ID_BYTES = 8
CHANGE_BYTES_MAX = 64 << 10  # of one record: the kernel passes it from the index to the receiver in one piece
VIEW_NAME_CHARS_MAX = 128
VIEW_CHARS_MAX = 32 << 10  # of a saved view
# The entries of an identity that describe a run, with their types.
EDITABLE_FIELDS = {name: IDENTITY_FIELDS[name] for name in marked_entries("run")}


class Action(StrEnum):
    """What a change does."""

    DELETE = "delete"
    RESTORE = "restore"
    EDIT = "edit"
    SAVE_VIEW = "save_view"
    TRIM_SYSTEM = "trim_system"
    ROLL_UP = "roll_up"
    NOTE = "note"
    ADMIT_BLOCKS = "admit_blocks"


# Kinds of rows in `events`, with their levels.
NOTES = {"store_away": "warning", "store_back": "info", "log_end_lost": "error"}
NOTE_CHARS_MAX = 500
INDEX_ACTIONS = (Action.TRIM_SYSTEM, Action.ROLL_UP, Action.ADMIT_BLOCKS)  # the index asks for them; no client does


@dataclass(frozen=True, slots=True)
class Change:
    """A decoded change."""

    id: bytes
    action: Action
    body: dict[str, Any]


def encode_change(change: Change) -> bytes:
    """Return the payload of a record."""
    return pack([change.id, change.action.value, change.body])


def decode_change(payload: bytes | memoryview) -> Change:
    """Decode the payload of a record. Raises ValueError if it is no change, or one of an unknown action."""
    try:
        fields = unpack(payload)
    except CodecError as error:
        raise ValueError(str(error)) from error
    if not (isinstance(fields, list) and len(fields) >= 3):
        raise ValueError("a change is an array of ID, action and body")
    id, action, body = fields[:3]
    if not (isinstance(id, bytes) and len(id) == REQUEST_ID_BYTES and isinstance(body, dict)):
        raise ValueError(f"a change has an ID of {REQUEST_ID_BYTES} bytes and a map")
    if action not in list(Action):
        raise ValueError(f"action {short_repr(action)} is unknown; upgrade the collector")
    return Change(id, Action(action), body)
