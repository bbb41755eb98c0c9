"""Where the bytes of a result come from: each source returns them once, in order, and frees what held them."""

from collections import deque
from pathlib import Path

import pytest

from chiplog_client import result_source
from chiplog_client.result_source import FileResult, MemoryResult, RemoteResult, ResultSource
from chiplog_client.results.result import QueryError
from chiplog_schemas.limits import RESULT_PART_BYTES
from chiplog_schemas.query.query_messages import QueryMessage, QueryMessageKind
from chiplog_schemas.query.result_file import ResultSpace
from tests.support.safeguard import proves

ID = b"12345678"
DATA = bytes(range(256)) * (10 * RESULT_PART_BYTES // 256) + b"end"


class Connection:
    """The part of a connection that a source uses; it answers from DATA."""

    def __init__(self, busy: set[int] | None = None) -> None:
        self.requested: list[int] = []
        self.n_waiting_max = 0
        self.calls: list[str] = []
        self._busy = busy or set()
        self._waiting: deque[int] = deque()

    def request_part(self, id: bytes, offset: int) -> None:
        assert id == ID
        self.requested.append(offset)
        self._waiting.append(offset)
        self.n_waiting_max = max(self.n_waiting_max, len(self._waiting))

    def receive_part(self, id: bytes, lives: object, cancelled: object) -> QueryMessage | None:
        offset = self._waiting.popleft()
        if offset in self._busy:
            self._busy.remove(offset)
            return None
        return part_at(offset)

    def cancel(self, id: bytes) -> None:
        self.calls.append("cancel")

    def close(self) -> None:
        self.calls.append("close")


def part_at(offset: int) -> QueryMessage:
    payload = DATA[offset : offset + RESULT_PART_BYTES]
    kind = QueryMessageKind.PART_OF_RESULT
    return QueryMessage(kind, ID, n_bytes=len(DATA), n_rows=7, offset=offset, payload=payload)


def all_of(source: ResultSource) -> bytes:
    return b"".join(bytes(part) for part in iter(source.read, b""))


def test_a_small_result_is_one_part() -> None:
    source = MemoryResult(b"abc", 2)
    assert (source.n_bytes, source.n_rows, source.read(), source.read()) == (3, 2, b"abc", b"")
    source.close()


def test_a_result_in_a_file_is_read_in_parts(tmp_path: Path) -> None:
    space = ResultSpace(tmp_path)
    file = space.create()
    file.write(DATA)
    source = FileResult(file, 7)
    assert (source.n_bytes, source.n_rows) == (len(DATA), 7)
    assert len(source.read()) == RESULT_PART_BYTES
    assert all_of(source) == DATA[RESULT_PART_BYTES:]
    source.close()
    assert space.n_bytes == 0


@proves("result-dropped-when-closed", "a collector drops a result at once when its reader is done")
@pytest.mark.parametrize("busy", [set(), {RESULT_PART_BYTES, 3 * RESULT_PART_BYTES}])
def test_a_remote_result_is_requested_ahead_and_dropped_at_its_end(busy: set[int]) -> None:
    connection = Connection(set(busy))
    source = RemoteResult(connection, part_at(0), lambda: True)  # type: ignore[arg-type]
    assert all_of(source) == DATA
    assert connection.n_waiting_max == result_source.PARTS_AHEAD
    assert sorted(set(connection.requested)) == list(range(RESULT_PART_BYTES, len(DATA), RESULT_PART_BYTES))
    assert len(connection.requested) == 10 + len(busy)
    source.close()
    source.close()
    assert connection.calls == ["cancel", "close"]
    assert source.read() == b""


def test_another_part_than_was_requested_is_an_error() -> None:
    connection = Connection()
    connection.receive_part = lambda *_: part_at(5)  # type: ignore[method-assign]
    source = RemoteResult(connection, part_at(0), lambda: True)  # type: ignore[arg-type]
    source.read()
    with pytest.raises(QueryError, match="another part of the result"):
        source.read()
