"""The file that asks an agent to leave GPUs closed."""

from pathlib import Path

import pytest

from chiplog_agent.stats.release_mark import ReleaseMark


def test_a_request_is_confirmed_and_withdrawn(tmp_path: Path) -> None:
    mark, agents = ReleaseMark(tmp_path), ReleaseMark(tmp_path)
    assert not mark.is_set and not mark.is_confirmed
    mark.set()
    assert agents.is_set and not mark.is_confirmed
    agents.confirm()
    mark.set()
    assert mark.is_confirmed, "a second request finds the GPUs closed"
    mark.clear()
    mark.clear()
    assert not agents.is_set and not mark.is_confirmed


def test_a_request_that_was_withdrawn_is_not_confirmed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ReleaseMark(tmp_path).confirm()
    assert not ReleaseMark(tmp_path).is_set
