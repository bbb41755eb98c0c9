from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chiplog.journal.appender import NO_MEMORY, Appender, PythonAppender
from chiplog.safety.process_number import process_number
from chiplog_schemas.storage.record import Kind, encode, scan_records
from tests.support.safeguard import proves

KINDS = [PythonAppender] if Appender is PythonAppender else [PythonAppender, Appender]


def layout_of(memory: Any, limit: int) -> Any:
    return SimpleNamespace(
        memory=memory, limit=limit, segment=SimpleNamespace(memory=memory, end=0, next_seq=0, first_seq=0)
    )


@pytest.fixture(params=KINDS, ids=lambda kind: "python" if kind is PythonAppender else "c")
def appender(request: pytest.FixtureRequest) -> Any:
    class Recording(request.param):  # type: ignore[misc]  # either base
        def __init__(self) -> None:
            self._process = process_number()
            self.refused: list[tuple[bytes, bool]] = []

        def _append_in_python(self, payload: bytes, urgent: bool) -> None:
            self.refused.append((payload, urgent))

    return Recording()


def test_records_follow_each_other_and_their_seqs_count(appender: Any) -> None:
    memory = bytearray(4096)
    appender._tail = (100, 7, layout_of(memory, 4096))
    for payload in (b"", b"one", bytes(range(256))):
        appender.append(payload)
    found = list(scan_records(memory, 100))
    assert [(record.number, bytes(record.payload)) for record in found] == [
        (7, b""),
        (8, b"one"),
        (9, bytes(range(256))),
    ]
    assert appender._tail[:2] == (found[-1].end, 10)
    assert bytes(memory[100 : found[0].end]) == encode(Kind.EVENT, 7, b"")


def test_a_record_that_does_not_fit_is_left_to_python_and_nothing_is_written(appender: Any) -> None:
    memory = bytearray(4096)
    appender._tail = (0, 0, layout_of(memory, 24 + 10))
    appender.append(b"x" * 11, urgent=True)
    assert appender.refused == [(b"x" * 11, True)]
    assert not any(memory)
    appender.append(b"x" * 10)
    assert len(appender.refused) == 1
    assert appender._tail[:2] == (34, 1)


def test_another_process_writes_nothing_and_leaves_the_record_to_python(appender: Any) -> None:
    memory = bytearray(4096)
    layout = layout_of(memory, 4096)
    appender._tail = (0, 0, layout)
    appender._process -= 1
    appender.append(b"x")
    assert appender.refused == [(b"x", False)]
    assert not appender._publish(appender._tail, (1, 1, layout), b"y", memory, 0, NO_MEMORY, 0)
    assert not any(memory)
    assert appender._tail == (0, 0, layout)


def test_a_tail_is_replaced_with_what_is_written_or_not_at_all(appender: Any) -> None:
    memory, page = bytearray(4096), bytearray(64)
    old, new = layout_of(memory, 4096), layout_of(memory, 2000)
    new.segment = old.segment
    appender._tail = (10, 3, old)
    tail = appender._tail
    assert appender._publish(tail, (20, 5, new), b"records", memory, 10, page, 8)
    assert bytes(memory[10:17]) == b"records"
    assert page[8:16] == (5).to_bytes(8, "little")
    assert appender._tail == (20, 5, new)
    assert (old.segment.end, old.segment.next_seq) == (10, 3)
    before = bytes(memory), bytes(page)
    assert not appender._publish(tail, (30, 6, old), b"overtaken", memory, 20, page, 8)
    assert (bytes(memory), bytes(page), appender._tail) == (*before, (20, 5, new))


@proves(
    "overtaken-append-restarts",
    "an append that was overtaken after it read the tail begins again",
    condition=True,
)
@pytest.mark.parametrize("appender", [PythonAppender], indirect=True, ids=["python"])  # C runs no Python code here
def test_an_append_that_others_overtake_follows_them(appender: Any) -> None:
    """A signal handler, a finaliser or another thread appends after the tail was read: here, as the limit is read."""
    memory, others = bytearray(4096), [b"second", b"first"]

    class OvertakenLayout(SimpleNamespace):
        @property
        def limit(self) -> int:
            if others:
                appender.append(others.pop())
            return len(memory)

    segment = SimpleNamespace(memory=memory, end=0, next_seq=0, first_seq=0)
    appender._tail = (0, 0, OvertakenLayout(memory=memory, segment=segment))
    appender.append(b"overtaken")
    found = [(record.number, bytes(record.payload)) for record in scan_records(memory)]
    assert found == [(0, b"second"), (1, b"first"), (2, b"overtaken")]
    assert appender._tail[1] == 3


def test_an_overtaken_caller_whose_segment_is_unmapped_by_now_tries_again(appender: Any) -> None:
    left, current, unmapped = layout_of(bytearray(64), 64), layout_of(bytearray(64), 64), layout_of(None, 64)
    appender._tail = (10, 3, left)
    stale = appender._tail
    appender._tail = (20, 4, current)
    assert not appender._publish(stale, (30, 4, unmapped), b"records", None, 10, NO_MEMORY, 0)
    assert appender._tail == (20, 4, current)


def test_a_segment_that_is_left_keeps_its_end_and_its_memory_is_released(appender: Any, tmp_path: Path) -> None:
    first, second = layout_of(bytearray(100), 100), layout_of(bytearray(200), 200)
    appender._tail = (90, 4, first)
    assert appender._publish(appender._tail, (30, 5, second), b"new", second.memory, 27, NO_MEMORY, 0)
    assert (first.segment.end, first.segment.next_seq) == (90, 4)
    assert second.segment.first_seq == 4
    assert bytes(second.memory[27:30]) == b"new"
    first.memory.extend(b"x")  # BufferError if it were still in use
