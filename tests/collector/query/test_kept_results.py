"""Results that clients read in parts: whose they are, how many, and how long."""

import os
from pathlib import Path

import pytest

from chiplog_collector.query import kept_results
from chiplog_collector.query.kept_results import KeptResults
from chiplog_schemas.limits import RESULT_IDLE_S
from chiplog_schemas.query.query_messages import QueryMessage, QueryMessageKind, parse
from chiplog_schemas.query.result_file import ResultFile, ResultSpace
from chiplog_schemas.security.zap import PeerConnection
from tests.support.safeguard import proves

KEY, OTHER = (b"peer", b"12345678"), (b"other", b"12345678")


@pytest.fixture
def space(tmp_path: Path) -> ResultSpace:
    return ResultSpace(tmp_path)


def written(space: ResultSpace, data: bytes = b"0123456789") -> ResultFile:
    file = space.create()
    file.write(data)
    return file


def read(kept: KeptResults, key: tuple[bytes, bytes], offset: int, now: float = 0.0) -> QueryMessage:
    return parse(kept.read_part(key, offset, 4, now))


def test_a_result_is_read_in_parts_by_its_connection_only(space: ResultSpace) -> None:
    kept = KeptResults()
    first = parse(kept.keep(KEY, written(space), 5, None, 0.0))
    assert (first.kind, first.id, first.n_bytes, first.n_rows) == (QueryMessageKind.PART_OF_RESULT, KEY[1], 10, 5)
    assert (bytes(first.payload), KEY in kept, OTHER in kept) == (b"0123456789", True, False)
    parts = [read(kept, KEY, offset) for offset in (0, 4, 8, 12, 4)]
    assert [bytes(part.payload) for part in parts] == [b"0123", b"4567", b"89", b"", b"4567"]
    assert {(part.n_bytes, part.n_rows) for part in parts} == {(10, 5)}
    assert read(kept, OTHER, 0).error_kind == "expired"
    kept.drop(OTHER)
    assert len(kept) == 1
    kept.drop(KEY)
    answer = read(kept, KEY, 0)
    assert answer.error_kind == "expired" and answer.message.endswith("ask again")
    assert space.n_bytes == 0


@proves("kept-results-bounded", "only so many results are kept at a time", condition=False)
def test_only_so_many_results_are_kept(space: ResultSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_results, "RESULTS_KEPT_MAX", 2)
    kept = KeptResults()
    answers = [parse(kept.keep((b"peer", b"%08d" % n), written(space), 5, None, 0.0)) for n in range(3)]
    assert [answer.error_kind for answer in answers] == ["", "", "busy"]
    assert (len(kept), space.n_bytes) == (2, 20)
    kept.close()
    assert (len(kept), space.n_bytes) == (0, 0)


@proves("idle-result-dropped", "a result that no client reads is dropped", condition=False)
def test_a_result_is_dropped_when_it_is_idle_or_its_connection_is_closed(space: ResultSpace) -> None:
    kept = KeptResults()
    ours, theirs = os.pipe()
    about = os.fstat(ours)
    kept.keep(KEY, written(space), 5, PeerConnection(ours, (about.st_dev, about.st_ino)), 0.0)
    kept.keep(OTHER, written(space), 5, None, 0.0)
    read(kept, KEY, 0, RESULT_IDLE_S)
    kept.drop_idle(RESULT_IDLE_S)
    assert len(kept) == 2
    kept.drop_idle(RESULT_IDLE_S + 1)
    assert (KEY in kept, OTHER in kept) == (True, False)
    os.close(ours)
    kept.drop_idle(RESULT_IDLE_S + 1)
    assert len(kept) == 0
    os.close(theirs)


def test_a_result_that_cannot_be_read_is_an_error(space: ResultSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise OSError("input/output error")

    kept = KeptResults()
    kept.keep(KEY, written(space), 5, None, 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(ResultFile, "read", refuse)
        assert read(kept, KEY, 0).error_kind == "internal"
    kept.close()
