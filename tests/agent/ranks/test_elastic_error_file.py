"""Torchelastic's error files: only a regular file of the rank's user, no older than the rank, is read."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from chiplog_agent.ranks.elastic_error_file import ElasticErrorFileReader
from tests.support.tools import ROOT, needs
from tests.support.waiting import WAIT_S

MessageOf = Callable[[Path], str | None]


@pytest.fixture
def message_of(tmp_path: Path) -> MessageOf:
    """Return what reads the message of an error file for a rank with a journal here."""
    reader = ElasticErrorFileReader()

    def message_of(path: Path) -> str | None:
        reader.begin_turn()
        return reader.read(str(path), tmp_path, 1).get("message")

    return message_of


def said(path: Path, message: str) -> Path:
    path.write_text(json.dumps({"message": message}))
    return path


def test_an_error_file_is_not_opened_before_it_is_known_to_be_a_file(message_of: MessageOf, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(b""), daemon=True)  # waits for a reader
    writer.start()
    assert message_of(path) is None
    writer.join(0.2)
    assert writer.is_alive(), "the pipe was opened"
    path.read_bytes()
    writer.join(WAIT_S)
    path.unlink()
    path.symlink_to(said(tmp_path / "other.json", "ValueError: of another"))
    assert message_of(path) is None


@needs(ROOT)
def test_an_error_file_of_another_user_is_not_read(message_of: MessageOf, tmp_path: Path) -> None:
    path = said(tmp_path / "error.json", "ValueError: boom")
    assert message_of(path) == "ValueError: boom"
    os.chown(path, 12_345, -1)
    assert message_of(path) is None


def test_a_file_is_read_with_its_traceback_unless_it_is_older_than_its_rank(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    stack = "Traceback\nValueError: boom"
    path.write_text(json.dumps({"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": stack}}}))
    os.utime(path, (100, 100))
    reader = ElasticErrorFileReader()
    reader.begin_turn()
    found = {"message": "ValueError: boom", "error_file": str(path), "traceback": stack}
    assert reader.read(str(path), tmp_path, 100_000_000) == found
    assert reader.read(str(path), tmp_path, 110_000_000) == {}
    assert reader.read(str(path), tmp_path / "nowhere", 100_000_000) == {}, "without a journal its owner is unknown"
