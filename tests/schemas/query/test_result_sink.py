"""The buffer of a result: bounded, and written once."""

from pathlib import Path

import pytest

from chiplog_schemas.query import result_sink
from chiplog_schemas.query.result_file import ResultSpace
from chiplog_schemas.query.result_sink import Failure, ResultSink


def test_parts_are_kept_in_order() -> None:
    sink = ResultSink()
    assert sink.writable()
    assert [sink.write(b"ab"), sink.write(memoryview(b"c"))] == [2, 1]
    assert bytes(sink.data) == b"abc"


def test_a_result_beyond_the_limit_is_refused_and_the_reason_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_sink, "RESULT_BYTES_MAX", 4)
    sink = ResultSink()
    sink.write(b"1234")
    with pytest.raises(OverflowError, match="limit of 4 bytes"):
        sink.write(b"5")
    assert sink.failure is not None
    assert sink.failure.kind == "too_large" and "limit of 4 bytes" in sink.failure.message
    assert bytes(sink.data) == b"1234"


def test_a_result_that_may_be_read_in_parts_continues_in_a_file(tmp_path: Path) -> None:
    space = ResultSpace(tmp_path)
    sink = ResultSink(space, memory_bytes=4)
    for part in (b"12", b"34", b"56", b"7"):
        sink.write(part)
        assert sink.n_bytes == len(bytes(sink.read_stream(0, 100)))
    assert sink.file is not None and not sink.data
    assert bytes(sink.read_stream(3, 2)) == b"45"
    assert space.n_bytes == 7
    sink.close_file()
    assert space.n_bytes == 0


def test_a_small_result_that_may_be_read_in_parts_stays_in_memory(tmp_path: Path) -> None:
    sink = ResultSink(ResultSpace(tmp_path), memory_bytes=4)
    sink.write(b"1234")
    assert sink.file is None and bytes(sink.read_stream(1, 2)) == b"23"
    sink.close_file()


def test_a_result_without_room_on_disk_is_refused_with_the_reason(tmp_path: Path) -> None:
    space = ResultSpace(tmp_path, bytes_max=6)
    reading = ResultSink(space, 0)
    reading.write(b"1234")
    for part, kind in ((b"123", "busy"), (b"1234567", "too_large")):
        sink = ResultSink(space, 0)
        with pytest.raises(OSError, match="limit of 6 bytes on disk"):
            sink.write(part)
        assert sink.failure is not None and sink.failure.kind == kind
        sink.close_file()
    reading.close_file()
    gone = ResultSink(ResultSpace(tmp_path / "gone"), 0)
    with pytest.raises(OSError):
        gone.write(b"1")
    assert gone.failure == Failure(
        "internal", f"a large result cannot be written to {tmp_path}/gone: No such file or directory"
    )


def test_there_is_no_way_back() -> None:
    with pytest.raises(OSError, match="from its beginning"):
        ResultSink().seek(0)
