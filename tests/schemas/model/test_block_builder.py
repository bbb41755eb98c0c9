"""Blocks are built: rows become columns and the same rows again, bit for bit."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiplog_schemas.codec import pack, unpack
from chiplog_schemas.limits import KEY_BYTES_MAX, KEYS_MAX
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.block_format import OPAQUE
from chiplog_schemas.model.events import FIELDS, Column, EventKind, encode
from tests.schemas.make_vectors import BLOCK_ROWS, PRODUCER_A, PRODUCER_B, TS, block
from tests.support.blocks import block_to_rows

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
text = st.text(max_size=8, alphabet=st.characters(exclude_categories=("Cs",))) | st.just("half \udcff")
plain = st.recursive(
    st.none() | st.booleans() | int64 | st.floats() | text | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from([["loss"], ["loss", "lr"], ["größe \udcff"], [str(index) for index in range(20)]])


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """A payload of any known kind; the bits of its matrix are random, NaN with payload bits included."""
    kind = draw(st.sampled_from(EventKind))
    names = draw(keys)
    fields: list[Any] = []
    for _, column in FIELDS[kind]:
        if column is Column.INT:
            fields.append(draw(int64))
        elif column is Column.KEYS:
            fields.append(pack(names))
        elif column is Column.VALUES:
            fields.append(draw(st.binary(min_size=8 * len(names), max_size=8 * len(names))))
        else:
            fields.append(draw(plain))
    return encode(kind, draw(int64), *fields)


garbage = st.binary(max_size=40)
unknown = st.tuples(st.integers(14, 1 << 40), int64, plain).map(lambda event: pack(list(event)))
misfits = st.tuples(st.sampled_from(EventKind), int64, plain, plain).map(
    lambda event: pack([int(event[0]), *event[1:]])
)
payloads = events() | events() | events() | unknown | misfits | garbage.filter(lambda data: not _is_event(data))


def _is_event(data: bytes) -> bool:
    # Garbage that happens to be msgpack may have a longer form: equal then, but not the same bytes.
    try:
        unpack(data)
    except ValueError:
        return False
    return True


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.sampled_from([PRODUCER_A, PRODUCER_B, bytes(16)]), st.integers(0, 40), payloads),
        min_size=1,
        max_size=25,
    )
)
def test_rows_become_a_block_and_the_same_rows_again(rows: list[tuple[bytes, int, bytes]]) -> None:
    # Invariant: each (producer, seq) once, the first that came; its payload bit for bit; the ranges are those seqs.
    builder = BlockBuilder()
    first: dict[tuple[bytes, int], bytes] = {}
    for producer, seq, payload in rows:
        first.setdefault((producer, seq), payload)
        builder.add(producer, seq, payload)
    assert builder.n_events == len(first)
    decoded = decode_block(builder.build(TS))
    assert block_to_rows(decoded) == sorted((*key, payload) for key, payload in first.items())
    named = {(uuid, seq) for uuid, ranges in decoded.producers for a, b in ranges for seq in range(a, b + 1)}
    assert named == set(first)
    assert (builder.n_events, builder.n_bytes) == (0, 0)


def test_an_event_that_cannot_be_taken_apart_is_kept_verbatim() -> None:
    (group,) = [group for group in decode_block(block()).groups if group.kind == OPAQUE]
    assert group.columns["payload"] == [BLOCK_ROWS[5][2], BLOCK_ROWS[6][2]]


def test_the_builder_tells_what_it_took() -> None:
    builder = BlockBuilder()
    payload = encode(EventKind.TEXT, TS, 1, "key", "value")
    assert builder.add(PRODUCER_A, 0, payload) == [EventKind.TEXT, TS, 1, "key", "value"]
    assert builder.add(PRODUCER_A, 0, payload) is None
    assert builder.add(PRODUCER_A, 1, b"\xc1") is None
    assert builder.n_events == 2


@pytest.mark.parametrize("n_keys", [1, 10, 1_000])
def test_the_builder_knows_about_how_large_its_block_will_be(n_keys: int) -> None:
    # Adversaries of an estimate: keys of their own for each event, no payload at all, a seq in two.
    builder = BlockBuilder()
    for index in range(3_000 // n_keys):
        names = pack([f"{index}/{number}" for number in range(n_keys)])
        builder.add(PRODUCER_A, 2 * index, encode(EventKind.METRICS, TS, 1, names, bytes(8 * n_keys)))
        builder.add(PRODUCER_B, 2 * index, b"")
        builder.add(PRODUCER_B, 2 * index + 1, encode(EventKind.CONSOLE, 0, 1, 1, ""))
    estimate = builder.n_bytes
    size = len(builder.build(TS))
    assert size <= estimate + 1_000
    assert estimate < 2 * size + 1_000


@pytest.mark.parametrize(
    ("names", "values"),
    [
        ([], b""),
        (["a", "a"], bytes(16)),
        (["a"], bytes(16)),
        (["a"], bytes(7)),
        (["x" * (KEY_BYTES_MAX + 1)], bytes(8)),
        ([7], bytes(8)),
        ([str(index) for index in range(KEYS_MAX + 1)], bytes(8 * (KEYS_MAX + 1))),
    ],
    ids=["none", "repeated", "too many values", "odd", "long", "no text", "too many"],
)
def test_a_matrix_whose_keys_do_not_fit_is_kept_verbatim(names: list[Any], values: bytes) -> None:
    payload = encode(EventKind.METRICS, TS, 1, pack(names), values)
    builder = BlockBuilder()
    builder.add(PRODUCER_A, 0, payload)
    decoded = decode_block(builder.build(TS))
    assert [group.kind for group in decoded.groups] == [OPAQUE]
    assert block_to_rows(decoded) == [(PRODUCER_A, 0, payload)]
