"""Events: what fits the schema, what is kept for others, and that a peer's types are never trusted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiplog_schemas.codec import CodecError, pack
from chiplog_schemas.model.block_format import LAST_GROUP_KIND
from chiplog_schemas.model.events import (
    FIELDS,
    IDENTITY_FIELDS,
    MATRIX_KINDS,
    ROW_COLUMNS,
    STATE_FIELDS,
    Column,
    EventKind,
    ProducerIdentity,
    decode,
    encode,
    marked_entries,
    matches_schema,
    select_typed,
    with_known_fields,
)
from tests.schemas.make_vectors import EVENTS, TS


@pytest.mark.parametrize("kind", EventKind, ids=lambda kind: kind.name)
def test_every_kind_round_trips_and_fits(kind: EventKind) -> None:
    payload = encode(kind, TS, *EVENTS[kind])
    assert decode(payload) == [kind, TS, *EVENTS[kind]]
    assert matches_schema(with_known_fields(decode(payload)))


@pytest.mark.parametrize("kind", EventKind, ids=lambda kind: kind.name)
def test_an_event_with_a_field_more_or_less_or_of_another_type_does_not_fit(kind: EventKind) -> None:
    event = with_known_fields(decode(encode(kind, TS, *EVENTS[kind])))
    assert not matches_schema([*event, 1])
    assert not matches_schema(event[:-1])
    for index, (_, column) in enumerate(FIELDS[kind], 2):
        for wrong in (True, 1.5, 1 << 63, None) if column is Column.INT else ():
            assert not matches_schema([*event[:index], wrong, *event[index + 1 :]])
        for wrong in ("text", 1, None) if column in (Column.KEYS, Column.VALUES) else ():
            assert not matches_schema([*event[:index], wrong, *event[index + 1 :]])


def test_fields_of_a_newer_writer_are_left_out_and_those_that_an_older_one_lacks_have_defaults() -> None:
    full = [EventKind.ARTIFACT_FILE, TS, b"d", "path", 1, None, "", "too large"]
    assert with_known_fields(full) == with_known_fields([*full, "of the future"]) == full
    assert with_known_fields(full[:-1]) == [*full[:-1], ""]
    assert not matches_schema(with_known_fields(full[:-2]))  # another field is absent, which has no default
    assert with_known_fields([200, TS, 1]) == [200, TS, 1]
    for kind in EventKind:
        assert not kind.spec.defaults or kind > LAST_GROUP_KIND


def test_every_kind_has_fields_and_none_has_the_name_of_a_row_column() -> None:
    assert set(FIELDS) == set(EventKind)
    for kind, fields in FIELDS.items():
        names = [name for name, _ in fields]
        assert len(set(names)) == len(names)
        assert not set(names) & set(ROW_COLUMNS)
        assert (kind in MATRIX_KINDS) == any(column is Column.VALUES for _, column in fields)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_event_or_a_codec_error(data: bytes) -> None:
    try:
        event = decode(data)
    except CodecError:
        return
    assert isinstance(matches_schema(event), bool)


@pytest.mark.parametrize("value", [[], [1], [True, 1], [1, 1.5], [1, 1 << 63], {"kind": 1}, 7, None], ids=repr)
def test_what_has_no_kind_and_time_is_no_event(value: object) -> None:
    with pytest.raises(CodecError):
        decode(pack(value))


@given(
    st.dictionaries(
        st.sampled_from([*IDENTITY_FIELDS, *STATE_FIELDS, "new"]),
        st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.text(max_size=2), max_size=2),
    )
)
def test_a_map_keeps_only_what_is_known_and_of_the_right_type(body: dict[str, object]) -> None:
    for fields in (IDENTITY_FIELDS, STATE_FIELDS):
        kept = select_typed(body, fields)
        assert kept == {name: body[name] for name in kept}
        for name, kind in fields.items():
            right = type(body.get(name)) is kind
            assert (name in kept) == right


def test_an_identity_has_the_entries_that_are_known_in_the_order_of_their_declaration() -> None:
    identity = ProducerIdentity(rank=0, role="rank", primary=False, notes="", tags=[], gpu_claim={"local": 1})
    known = {"role": "rank", "tags": [], "notes": "", "primary": False, "rank": 0, "gpu_claim": {"local": 1}}
    assert pack(identity.to_map()) == pack(known)
    assert select_typed(known, IDENTITY_FIELDS) == known


def test_each_entry_of_an_identity_has_the_marks_of_its_readers() -> None:
    kept = [
        "run_id",
        "label",
        "rank",
        "pid",
        "started_at",
        "boot",
        "error_file",
        "uptime",
        "owner",
        "pid_namespace",
        "gpu_claim",
    ]
    kept += ["sample_interval_s"]
    assert list(marked_entries("agent")) == kept
    assert set(marked_entries("agent_only")) == {"error_file", "gpu_claim", "sample_interval_s"}
    assert marked_entries("run")["group"] == "run_group"


@pytest.mark.parametrize("body", [None, [], "x", 1], ids=repr)
def test_what_is_no_map_has_no_fields(body: object) -> None:
    assert select_typed(body, IDENTITY_FIELDS) == {}
