"""The outbox: pieces that are complete or absent, and how far a log is published."""

import os
from pathlib import Path

import pytest

from chiplog_collector.store.deletion_requests import DeletionRequest, DeletionRequests
from chiplog_collector.store.outbox import Outbox, Piece, Published
from tests.support.safeguard import proves

LOG = "ab" * 16


def piece(until: int, after: int = -1) -> Piece:
    return Piece(LOG, after, until, "2026-11-28", {"metrics": 3})


def put(outbox: Outbox, until: int, after: int = -1, content: bytes = b"rows") -> Piece:
    def write(directory: Path) -> Piece:
        (directory / "metrics.parquet").write_bytes(content)
        return piece(until, after)

    return outbox.add(write)


def test_pieces_are_listed_by_the_record_that_ends_them_and_read_back(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "store")
    assert (outbox.ends(), outbox.size_bytes(), outbox.published()) == ([], 0, None)
    for until, after in ((99, 9), (9, -1), (100, 99)):
        put(outbox, until, after)
    assert outbox.ends() == [9, 99, 100]
    assert outbox.piece(99) == piece(99, 9)
    assert outbox.file(outbox.piece(99), "metrics").read_bytes() == b"rows"
    assert outbox.size_bytes() > 12
    outbox.remove(outbox.piece(9))
    assert outbox.ends() == [99, 100]


@proves("piece-complete-or-absent", "a piece has its name only once all of its files are written and synced")
def test_a_piece_that_was_not_finished_is_absent_and_leaves_no_file_in_the_next(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "store")

    def fails(directory: Path) -> Piece:
        (directory / "console.parquet").write_bytes(b"half")
        assert outbox.ends() == []
        raise OSError("killed here")

    with pytest.raises(OSError, match="killed here"):
        outbox.add(fails)
    assert outbox.ends() == []
    put(outbox, 5)
    assert sorted(os.listdir(tmp_path / "store" / "pieces" / f"{5:020d}")) == ["metrics.parquet", "piece.json"]


def test_a_piece_is_removed_as_a_whole(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "store")
    found = put(outbox, 5)
    outbox.remove(found)
    assert os.listdir(tmp_path / "store" / "pieces") == []


def test_what_a_killed_process_left_is_removed_with_the_next_piece(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "store")
    left = tmp_path / "store" / "pieces" / ".published"
    left.mkdir(parents=True)
    (left / "metrics.parquet").write_bytes(b"rows")
    outbox.remove(put(outbox, 5))
    assert os.listdir(tmp_path / "store" / "pieces") == []


def test_a_piece_that_is_removed_while_it_is_measured_has_no_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = Outbox(tmp_path / "store")
    put(outbox, 5)
    size = outbox.size_bytes()
    monkeypatch.setattr(outbox, "ends", lambda: [5, 9])
    assert outbox.size_bytes() == size


def test_how_far_a_log_is_published_survives_a_restart(tmp_path: Path) -> None:
    published = Published(LOG, "file:///lake", 7, {"metrics": 7, "runs": 3})
    Outbox(tmp_path / "store").set_published(published)
    assert Outbox(tmp_path / "store").published() == published


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"log": 1}', b"\xff"])
def test_a_damaged_note_is_one_line_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    outbox = Outbox(tmp_path / "store")
    put(outbox, 5)
    outbox.set_published(Published(LOG, "file:///lake", 7, {}))
    (tmp_path / "store" / "published.json").write_bytes(content)
    with pytest.raises(OSError, match=r"published\.json is damaged; remove it and run chiplog rebuild"):
        outbox.published()
    (tmp_path / "store" / "pieces" / f"{5:020d}" / "piece.json").write_bytes(content)
    with pytest.raises(OSError, match=r"piece\.json is damaged; remove .*/pieces/0*5, it is cut again"):
        outbox.piece(5)


def test_the_first_record_that_may_be_another_one_than_the_store_has_is_kept_until_the_store_has_confirmed(
    tmp_path: Path,
) -> None:
    outbox = Outbox(tmp_path / "store")
    assert outbox.unconfirmed() is None
    outbox.note_unconfirmed(7)
    outbox.note_unconfirmed(9)
    assert outbox.unconfirmed() == 7
    for _ in range(2):
        outbox.confirm()
        assert outbox.unconfirmed() is None


@proves(
    "own-deletions-not-repeated",
    "a log with a new ID does not carry out again what it deleted under its former ID: a run of that name may be new",
)
@proves("damaged-note-renewed", "a damaged note of how far a retired log is published is written again", value="()")
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_log_that_was_retired_continues_after_what_is_published(tmp_path: Path, is_damaged: bool) -> None:
    outbox = Outbox(tmp_path / "store")
    DeletionRequests(outbox.directory, "aa" * 16).take([])
    assert outbox.retired() == b""
    outbox.set_published(Published("aa" * 16, "file:///lake", 5, {"runs": 7}))
    outbox.add(lambda directory: Piece("aa" * 16, 5, 7, "2026-11-28", {}))
    outbox.add(lambda directory: Piece("aa" * 16, 7, 9, "2026-11-28", {}))
    (outbox.directory / "pieces" / f"{9:020d}" / "piece.json").write_text("{")  # damaged
    outbox.note_retired(Published("aa" * 16, "file:///lake", 5, {"runs": 7}))
    if is_damaged:
        outbox.notes.write_text("{")
    assert outbox.retired() == b"\xaa" * 16
    for _ in range(2):  # the second time after a crash
        outbox.renew(b"\xbb" * 16)
        assert outbox.published() == Published("bb" * 16, "file:///lake", 5, {"runs": 7})
        assert outbox.ends() == []
        assert outbox.retired() == b""
    requests = DeletionRequests(outbox.directory, "bb" * 16)
    by_other = DeletionRequest("cc" * 16, 4, "r")
    for _ in range(2):
        requests.take([DeletionRequest("aa" * 16, 4, "r"), by_other])
        assert requests.waiting() == [by_other]
    outbox.note_retired(Published("aa" * 16, "file:///lake", 5, {"runs": 7}))
    outbox.set_published(Published("bb" * 16, "file:///lake", 9, {"runs": 9}))
    outbox.renew(b"\xbb" * 16)  # after a crash before the end of the first time
    assert outbox.published() == Published("bb" * 16, "file:///lake", 9, {"runs": 9})
    outbox.note_retired(Published("bb" * 16, "file:///lake", 5, {"runs": 7}))
    (outbox.directory / "requests.json").write_text("[]")
    outbox.renew(b"\xdd" * 16)
    assert outbox.retired() == b""
