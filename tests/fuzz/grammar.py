"""Build hostile values and bytes: valid samples, changed where a decoder may be wrong. A function of the seed alone.

Values are changed as trees, so that most of a message stays valid. What no msgpack writer produces (lengths without
bytes, extension types, broken UTF-8, depth) is inserted as raw tokens afterwards.
"""

import random
import struct
from collections.abc import Sequence
from typing import Any, TypeVar
from zlib import crc32

from chiplog_schemas.codec import CodecError, pack
from chiplog_schemas.storage.record import HEADER_BYTES, MAGIC, pack_back, pack_front

T = TypeVar("T")

# Fragments of bytes that no value produces.
TOKENS: tuple[bytes, ...] = (
    b"\x91" * 100 + b"\xc0",
    b"\x91" * 511 + b"\xc0",
    b"\x91" * 600 + b"\xc0",
    b"\x81\x00" * 700 + b"\xc0",
    b"\x92\xc0" * 2000,
    b"\xdd\xff\xff\xff\xff",  # an array of 4 Gi entries
    b"\xdd\x00\x00\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xdb\x7f\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\xc1",  # never used
    b"\xd4\x01\x00",  # extension types: of one byte, …
    b"\xd6\xff\x00\x00\x00\x01",  # … a timestamp, …
    b"\xd8\x05" + bytes(16),
    b"\xc7\x00\x2a",  # … of none
    b"\xa2\xc3\x28",  # no UTF-8
    b"\xa3\xed\xa0\x80",  # half a character
    b"\xa4\xf4\x90\x80\x80",  # beyond Unicode
    b"\x82\x01\x01\x01\x02",  # a key twice
    b"\x82\xa5label\x01\xa5label\xa1x",
    b"\x81\x90\x00",  # a list as key
    b"\x81\x80\x00",
    b"\x82\xcb\x7f\xf8\x00\x00\x00\x00\x00\x01\x00\xcb\x7f\xf8\x00\x00\x00\x00\x00\x02\x00",  # NaN as key, twice
    b"\x81\xc0\xc0",
    b"\x81\xc4\x01a\x01",
    b"\xca\x7f\xc0\x00\x01",  # NaN of 32 bits with a payload
    b"\xca\x3d\xcc\xcc\xcd",
    b"\xcb\xff\xf8\x00\x00\x00\x00\x00\x2a",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\xd3\x00\x00\x00\x00\x00\x00\x00\x01",  # not the shortest form
    b"\xdd\x00\x00\x00\x00",
    b"\xdb\x00\x00\x00\x00",
)
_MARK = b"\xffhere:"
_MARKED = tuple(_MARK + struct.pack("<H", index) for index in range(len(TOKENS)))

INTEGERS: tuple[int, ...] = (
    *(0, 1, -1, 2, 7, 8, 9, 127, 128, 200, 255, 256, 65_535, 65_536, 1 << 22, (1 << 22) + 1, (1 << 31) - 1, 1 << 31),
    *((1 << 32) - 1, 1 << 32, 1 << 61, (1 << 62) - 1, 1 << 62, (1 << 63) - 2, (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
    *(-2, -128, -(1 << 31), -(1 << 31) - 1, -(1 << 61), -(1 << 62), -(1 << 63)),
)
ATOMS: tuple[Any, ...] = (
    *(None, True, False, 0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"), 5e-324, 1e308),
    *("", "x", "rank0", "grüße \udcff", "\udc80", "\0", "a\nb", "\u202e", "x" * 129, "k" * 513, '{"a":1}', "1e999"),
    *('"\\ud800"', "NaN", "[" * 300, "finished", "crashed", "⚓", "'; DROP TABLE runs; --"),
    *(b"", b"x", bytes(7), bytes(8), bytes(15), bytes(16), bytes(17), b"\xff" * 16, bytes(800), pack(["a", "a"])),
    *(
        (),
        ((),),
        (0,),
        (0, 0),
        (1, 0),
        (5, 4, 3),
        (None,),
        ("a", "a"),
        (b"x" * 16, (0, 0)),
        ("",),
        (1, 2, 3, 4, 5, 6, 7),
    ),
    *_MARKED,
)


def pick(chooser: random.Random, among: Sequence[T]) -> T:
    """Return one of some; `choice` in a third of its time."""
    return among[int(chooser.random() * len(among))]


def integer(chooser: random.Random) -> int:
    """Return an integer at or near a bound."""
    return pick(chooser, INTEGERS) + int(chooser.random() * 3) - 1


def atom(chooser: random.Random, old: Any = None) -> Any:
    """Return another value, often of the same type."""
    act = chooser.random()
    if act < 0.35:
        if type(old) is int:
            return integer(chooser) if act < 0.25 else old + (1 if act < 0.3 else -1)
        if type(old) is bytes:
            return old[: int(chooser.random() * (len(old) + 1))] if act < 0.2 else old + b"\0" * (1 if act < 0.3 else 8)
        if type(old) is str:
            return old + "\udc80" if act < 0.2 else old[1:]
        if type(old) is list:
            return old + old if act < 0.2 else old[1:]
    return pick(chooser, ATOMS) if act < 0.85 else integer(chooser)


def mutate_value(chooser: random.Random, value: Any) -> Any:
    """Change one place of a decoded tree, in the tree, and return it."""
    place: Any = None
    key: Any = None
    node = value
    while isinstance(node, list | dict) and node and (place is None or chooser.random() < 0.8):
        place = node
        key = int(chooser.random() * len(node)) if isinstance(node, list) else pick(chooser, list(node))
        node = place[key]
    if place is None:
        return atom(chooser, node)
    act = chooser.random()
    if act < 0.65:
        place[key] = atom(chooser, node)
    elif isinstance(place, dict):
        if act < 0.8:
            del place[key]
        else:
            place[pick(chooser, ("extra", 7, "", b"x", "\udcff"))] = atom(chooser, node)
    elif act < 0.73:
        del place[key]
    elif act < 0.8:
        place.insert(key, node)
    elif act < 0.9:
        place.append(atom(chooser, node))
    else:
        other = int(chooser.random() * len(place))
        place[key], place[other] = place[other], place[key]
    return value


def pack_hostile(value: Any) -> bytes:
    """Pack a tree, and put the raw tokens where they are meant. What msgpack cannot hold becomes nil."""
    try:
        data = pack(value)
    except CodecError:
        return b"\xc0"
    if _MARK in data:
        for mark, token in zip(_MARKED, TOKENS, strict=True):
            data = data.replace(bytes((0xC4, len(mark))) + mark, token)
    return data


def mutate_bytes(chooser: random.Random, data: bytes, tokens: Sequence[bytes] = TOKENS) -> bytes:
    """Change bytes without knowing what they mean."""
    changed = bytearray(data)
    for _ in range(1 + int(chooser.random() * 3)):
        act = chooser.random()
        at = int(chooser.random() * (len(changed) + 1))
        if act < 0.35 and changed:
            changed[at % len(changed)] ^= 1 << int(chooser.random() * 8)
        elif act < 0.5:
            token = pick(chooser, tokens)
            changed[at : at + len(token)] = token
        elif act < 0.6:
            changed[at:at] = pick(chooser, tokens)
        elif act < 0.7:
            del changed[at:]
        elif act < 0.8:
            del changed[at : at + 1 + int(chooser.random() * 9)]
        elif act < 0.9:
            number = integer(chooser) & 0xFFFFFFFFFFFFFFFF
            changed[at : at + 8] = struct.pack("<Q" if act < 0.85 else ">Q", number)[: len(changed) - at]
        else:
            start = int(chooser.random() * (len(changed) + 1))
            changed[at:at] = changed[start : start + int(chooser.random() * 64)]
    return bytes(changed)


def frame(
    kind: int, number: int, payload: bytes, version: int = 1, *, length: int | None = None, crc: int | None = None
) -> bytes:
    """Return a record with the given faults: the checksum is correct unless it is given."""
    back = pack_back(
        (len(payload) if length is None else length) & 0xFFFFFFFF,
        kind & 0xFF,
        version & 0xFF,
        0,
        number & 0xFFFFFFFFFFFFFFFF,
    )
    return pack_front(MAGIC, crc32(back, crc32(payload)) if crc is None else crc) + back + payload


def hostile_record(chooser: random.Random, kind: int, number: int, payload: bytes) -> bytes:
    """Return a record with one thing wrong around its payload, or nothing."""
    act = chooser.random()
    if act < 0.3:
        return frame(kind, number, payload)
    if act < 0.4:
        return frame(kind, integer(chooser), payload)
    if act < 0.5:
        return frame(integer(chooser), number, payload, integer(chooser))
    if act < 0.6:
        return frame(kind, number, payload, length=integer(chooser))
    if act < 0.7:
        return frame(kind, number, payload, crc=integer(chooser) & 0xFFFFFFFF)
    if act < 0.8:
        return bytes(int(chooser.random() * 40)) + frame(kind, number, payload)[int(chooser.random() * HEADER_BYTES) :]
    if act < 0.9:
        return mutate_bytes(chooser, frame(kind, number, payload), (b"CLR1", b"\0" * 24, b"CLR1" * 6))
    inner = frame(kind, number + int(chooser.random() * 5), payload)
    return frame(kind, number, inner) + inner
