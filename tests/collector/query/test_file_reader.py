"""Parts of saved files, read in a thread: what is answered, and the end of the thread."""

import hashlib
import os
import queue
from pathlib import Path

from chiplog_collector.query.change_request import ChangeRequest
from chiplog_collector.query.file_reader import FileReader
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import ID_BYTES
from chiplog_schemas.security.zap import AuthenticatedClient
from chiplog_schemas.storage.content_files import content_path
from tests.support.waiting import WAIT_S

Answers = "queue.SimpleQueue[list[bytes]]"


def request(digest: bytes, offset: int, n_bytes: int, answers: Answers) -> ChangeRequest:
    question = query_messages.parse(query_messages.read_file(os.urandom(ID_BYTES), digest, offset, n_bytes))
    return ChangeRequest(b"peer", AuthenticatedClient(True), question, 0.0, lambda _, frames: answers.put(frames))


def test_a_part_of_a_file_its_absence_and_a_file_that_cannot_be_read_are_answered_in_order(tmp_path: Path) -> None:
    data = b"0123456789"
    digest, other = hashlib.sha256(data).digest(), hashlib.sha256(b"other").digest()
    path = content_path(tmp_path, digest)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    content_path(tmp_path, other).mkdir(parents=True)
    answers: Answers = queue.SimpleQueue()
    reader = FileReader(tmp_path)
    reader.start()
    for asked in ((digest, 2, 3), (bytes(32), 0, 1), (other, 0, 1)):
        reader.submit(request(*asked, answers))
    part, absent, broken = (query_messages.parse(answers.get(timeout=WAIT_S)) for _ in range(3))
    assert bytes(part.payload) == b"234"
    assert (absent.error_kind, broken.error_kind) == ("refused", "internal")
    assert "is not stored at this collector" in absent.message and "cannot be read" in broken.message
    assert reader.is_alive
    reader.close(60)
    assert not reader.is_alive


def test_a_reader_that_was_never_started_closes() -> None:
    FileReader(None).close(0.1)
