"""Files in the index: what was said, by whom it counts, and when the content arrived, in whatever order."""

import json
from pathlib import Path

import pytest

from chiplog_schemas.codec import pack
from chiplog_schemas.events import EventKind
from chiplog_schemas.record import Kind
from tests.collector.log import START_US, Index, Rank, apply, whole

ONE, TWO = bytes(range(32)), bytes(range(32, 64))


def stored(digest: bytes, n_bytes: int) -> tuple[int, bytes]:
    return Kind.STORED, pack([b"S" * 16, digest, n_bytes])


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path)


def test_files_are_the_last_word_of_the_primary_on_each_path(index: Index) -> None:
    primary, other = Rank(0), Rank(1)
    primary.say(EventKind.FILE, "last.pt", 10, ONE)
    primary.say(EventKind.FILE, "last.pt", 11, TWO)
    primary.say(EventKind.FILE, "sub/notes.txt", 0, ONE)
    other.say(EventKind.FILE, "mine.txt", 12, ONE)
    index.take(whole(primary), whole(other))
    assert index.sql("SELECT run_id, path, bytes, sha256, epoch_us(ts) FROM files ORDER BY path") == [
        ("r", "last.pt", 11, TWO.hex(), START_US + 2),
        ("r", "sub/notes.txt", 0, ONE.hex(), START_US + 3),
    ]
    refused = index.sql("SELECT label, message, body FROM events WHERE kind = 'file_refused'")
    assert refused == [("rank1", "file 'mine.txt' of rank1 is refused: rank0 is the primary", '{"path": "mine.txt"}')]
    index.close()


@pytest.mark.parametrize("first", ["said", "stored"])
def test_a_file_is_stored_once_both_its_event_and_its_bytes_are_there(index: Index, first: str) -> None:
    primary = Rank(0)
    primary.say(EventKind.FILE, "last.pt", 10, ONE)
    primary.say(EventKind.FILE, "next.pt", 10, TWO)
    parts = [whole(primary), stored(ONE, 10)]
    index.take(*(parts if first == "said" else reversed(parts)))
    index.take(stored(ONE, 10), stored(TWO, 9))  # again; and a content of another size is another content
    rows = index.sql("SELECT label, seq, level, message, body FROM events WHERE kind = 'file_stored'")
    ((label, seq, level, message, body),) = rows
    assert (label, seq, level, message) == ("rank0", 1, "info", "file last.pt arrived whole, 10 bytes")
    assert json.loads(body) == {"path": "last.pt", "bytes": 10, "sha256": ONE.hex()}
    before = index.views()
    index.reopen()
    assert index.views() == before
    index.close()


@pytest.mark.parametrize(
    "fields",
    [
        ("../up", 1, ONE),
        ("/etc/passwd", 1, ONE),
        ("a//b", 1, ONE),
        ("a\nb", 1, ONE),
        ("x" * 1_025, 1, ONE),
        (b"bytes", 1, ONE),
        ("a", -1, ONE),
        ("a", 1, ONE.hex()),
        ("a", 1, ONE[:31]),
    ],
    ids=lambda fields: repr(fields)[:30],
)
def test_a_file_that_no_path_or_digest_fits_is_set_aside(fields: tuple[object, int, object]) -> None:
    primary = Rank(0)
    primary.say(EventKind.FILE, *fields)
    rows = apply(whole(primary)).batch.rows
    assert "files" not in rows
    assert [row[3] for row in rows["events"]] == ["quarantined"]


@pytest.mark.parametrize("payload", [b"\xc1", pack([b"S" * 16, ONE]), pack([b"S", ONE, -1]), pack([b"S", "x", 1])])
def test_a_record_of_a_stored_file_that_cannot_be_read_is_set_aside(payload: bytes) -> None:
    rows = apply((Kind.STORED, payload)).batch.rows
    assert "stored" not in rows
    assert [row[3] for row in rows["events"]] == ["quarantined"]
