"""The samples that hostile inputs start from: the golden vectors, and the results of these tests' builders."""

import random
from functools import cache
from pathlib import Path

from chiplog_schemas.model.events import EventKind
from chiplog_schemas.model.events import encode as encode_event
from chiplog_schemas.storage.record import Kind
from tests.schemas.make_vectors import EVENTS, FILES, MESSAGES, QUESTIONS, RECORD_PAYLOADS, TS

VECTORS = Path(__file__).resolve().parents[2] / "schemas" / "vectors" / "v1"


@cache
def vector(name: str) -> bytes:
    """Return a golden vector."""
    return (VECTORS / f"{name}.bin").read_bytes()


@cache
def events() -> tuple[bytes, ...]:
    """Return an event of each kind."""
    return tuple(encode_event(EventKind(kind), TS, *fields) for kind, fields in EVENTS.items())


@cache
def heads(family: str) -> tuple[bytes, ...]:
    """Return the first frames of all messages of a protocol: `wire`, `file_wire` or `questions`."""
    messages = {"wire": MESSAGES, "file_wire": FILES, "questions": QUESTIONS}[family]
    return tuple(bytes(frames[0]) for frames in messages.values())


def block() -> bytes:
    """Return the golden block."""
    return RECORD_PAYLOADS[Kind.BLOCK]


def chance(chooser: random.Random, share: float) -> bool:
    """Return True with probability `share`."""
    return chooser.random() < share
