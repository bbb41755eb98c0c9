"""Heartbeats: one object for each log, written when a piece was published and once a minute, read by one listing."""

import re
from pathlib import Path
from typing import Any

import obstore
import pytest

from chiplog_collector.store.delta_store import DeltaStore, StoreError
from chiplog_collector.store.heartbeat import BEAT_S, Beats
from chiplog_collector.store.outbox import Outbox, Piece
from tests.support.store_files import LOG

OTHER = "ef" * 16


class Clock:
    """A clock that stands."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def store_of(directory: Path, log: str = LOG) -> DeltaStore:
    return DeltaStore(f"file://{directory}/a lake", log)


def put(outbox: Outbox, until: int) -> Piece:
    def write(directory: Path) -> Piece:
        (directory / "metrics.parquet").write_bytes(b"rows")
        return Piece(LOG, until - 1, until, "2026-11-28", {"metrics": 1})

    return outbox.add(write)


def test_it_says_how_far_a_log_is_and_what_waits(tmp_path: Path) -> None:
    store, outbox = store_of(tmp_path), Outbox(tmp_path / "outbox")
    beats = Beats(store, outbox, keeps_files=True, former=["ab"])
    beats.beat(-1)
    [beat] = store.heartbeats()
    assert beat.log == LOG
    assert beat.content["former"] == ["ab"]
    assert {name: beat.content[name] for name in ("number", "published_at", "waiting", "lag_s", "keeps_files")} == {
        "number": -1,
        "published_at": None,
        "waiting": 0,
        "lag_s": 0.0,
        "keeps_files": True,
    }
    assert beat.content["idle_at"] == beat.content["at"], "the store has all that was cut up to then"
    put(outbox, 5)
    put(outbox, 6)
    outbox.remove(outbox.piece(5))
    beats.note_published()
    beats.beat(5)
    [beat] = store.heartbeats()
    assert (beat.content["number"], beat.content["waiting"]) == (5, 1)
    assert beat.content["waiting_bytes"] > 0
    assert beat.content["idle_at"] is None
    assert beat.content["published_at"] is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", beat.content["at"])


def test_one_is_written_after_each_piece_and_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    monkeypatch.setattr(DeltaStore, "put_heartbeat", lambda _, content: written.append(content["number"]))
    clock = Clock()
    beats = Beats(store_of(tmp_path), Outbox(tmp_path / "outbox"), keeps_files=False, clock=clock)
    for _ in range(3):
        beats.beat(1)
    clock.now += BEAT_S - 1
    beats.beat(2)
    assert written == [1]
    clock.now += 1
    beats.beat(3)
    beats.beat(4)
    beats.note_published()
    beats.beat(5)
    assert written == [1, 3, 5]


def test_one_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "a lake").write_bytes(b"a file")
    beats = Beats(store_of(tmp_path), Outbox(tmp_path / "outbox"), keeps_files=False)
    for _ in range(2):
        with pytest.raises(StoreError):
            beats.beat(1)
    (tmp_path / "a lake").unlink()
    beats.beat(2)
    assert [beat.content["number"] for beat in store_of(tmp_path).heartbeats()] == [2]


def test_those_of_all_logs_are_listed_and_only_new_ones_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = store_of(tmp_path), store_of(tmp_path, OTHER)
    assert mine.heartbeats() == []
    mine.put_heartbeat({"number": 1})
    other.put_heartbeat({"number": 2})
    before = mine.heartbeats()
    assert [(beat.log, beat.content) for beat in before] == [(LOG, {"number": 1}), (OTHER, {"number": 2})]
    other.put_heartbeat({"number": 33})
    read: list[str] = []
    get = obstore.get

    def counted(objects: Any, path: str) -> Any:
        read.append(path)
        return get(objects, path)

    monkeypatch.setattr(obstore, "get", counted)
    found = mine.heartbeats(before)
    assert found[0] is before[0]
    assert found[1].content == {"number": 33}
    assert found[1].written_at >= before[1].written_at
    assert read == [f"heartbeats/{OTHER}"]


@pytest.mark.parametrize("data", [b"", b"[1]", b"\xff{", b"{"])
def test_one_that_cannot_be_read_says_nothing(tmp_path: Path, data: bytes) -> None:
    store = store_of(tmp_path)
    store.put_heartbeat({"number": 1})
    (tmp_path / "a lake" / "heartbeats" / LOG).write_bytes(data)
    assert [(beat.log, beat.content) for beat in store.heartbeats()] == [(LOG, {})]
