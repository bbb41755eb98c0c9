"""The payload of a MANAGE record: what was written is read again, and nothing else passes for it."""

import pytest

from chiplog_schemas.codec import pack
from chiplog_schemas.model.change_record import EDITABLE_FIELDS, Action, Change, decode_change, encode_change

pytestmark = pytest.mark.pure
ID = b"8 bytes!"


@pytest.mark.parametrize("action", Action)
def test_a_change_is_read_as_it_was_written(action: Action) -> None:
    change = Change(ID, action, {"producers": [bytes(16)], "runs": ["r"]})
    assert decode_change(encode_change(change)) == change


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    assert decode_change(pack([ID, "edit", {}, "more"])) == Change(ID, Action.EDIT, {})


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"\xc1", "msgpack"),
        (pack({}), "an array of ID, action and body"),
        (pack([ID, "edit"]), "an array of ID, action and body"),
        (pack([b"short", "edit", {}]), "an ID of 8 bytes"),
        (pack([ID, "edit", []]), "a map"),
        (pack([ID, "explode", {}]), "action 'explode' is unknown"),
        (pack([ID, ["list"], {}]), "is unknown"),
    ],
)
def test_anything_else_is_refused_with_one_line(payload: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        decode_change(payload)


def test_a_run_is_described_by_these_fields() -> None:
    assert set(EDITABLE_FIELDS) == {"project", "name", "group", "job_type", "tags", "notes"}
