"""The buffer of a result: bounded, and written once."""

import pytest

from chiplog_schemas.query import result_sink
from chiplog_schemas.query.result_sink import ResultSink


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
    assert "limit of 4 bytes" in sink.too_large
    assert bytes(sink.data) == b"1234"


def test_there_is_no_way_back() -> None:
    with pytest.raises(OSError, match="from its beginning"):
        ResultSink().seek(0)
