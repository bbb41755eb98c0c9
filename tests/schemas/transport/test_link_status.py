"""The report about an agent's link counts only while the agent that wrote it lives."""

import os
from pathlib import Path

import pytest

from chiplog_schemas.transport.link_status import LinkState, read_link_status, remove_link_status, write_link_status


def test_a_report_is_read_as_it_was_written_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "link"
    write_link_status(path, LinkState.OPEN, "collector tcp://h:1 answers")
    found = read_link_status(path, os.getpid())
    assert found is not None
    assert (found.state, found.text, found.pid) == (LinkState.OPEN, "collector tcp://h:1 answers", os.getpid())
    assert os.listdir(tmp_path) == ["link"]
    remove_link_status(path)
    remove_link_status(path)
    assert read_link_status(path, os.getpid()) is None


def test_a_report_of_an_earlier_agent_is_none(tmp_path: Path) -> None:
    write_link_status(tmp_path / "link", LinkState.OPEN, "collector answers")
    assert read_link_status(tmp_path / "link", os.getpid() + 1) is None


@pytest.mark.parametrize(
    "content", [b"", b"collector answers\n", b"[]", b"{}", b"\xff", b'{"state": "x", "text": "", "pid": 1, "at_us": 1}']
)
def test_what_is_no_report_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "link").write_bytes(content)
    assert read_link_status(tmp_path / "link", 1) is None


def test_a_report_that_cannot_be_written_leaves_the_one_before_whole(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        write_link_status(tmp_path / "gone" / "link", LinkState.OPEN, "x")
