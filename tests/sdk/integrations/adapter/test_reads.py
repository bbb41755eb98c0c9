"""What a run had before: read from SQL, None if it is not stored or there is no answer in time."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog.integrations.adapter import reads
from chiplog.integrations.adapter.reads import former_state
from tests.support.node import Node
from tests.support.waiting import WAIT_S, wait_until


def test_a_stored_run_has_its_state_and_one_that_began_later_has_none(node: Node) -> None:
    with chiplog.init(run_id="r", notes="n", tags=["a", "b"], config={"lr": 0.1}, dir=node.root) as run:
        run.log({"loss": 0.5})
    later_us = time.time_ns() // 1000

    def state() -> object:
        found = former_state(node.root, "r", later_us, WAIT_S)
        return found if found and found["config"] and found["summary"] else None

    found = wait_until(state, "the state of the run")
    assert {name: found[name] for name in ("notes", "tags", "config")} == {
        "notes": "n",
        "tags": ["a", "b"],
        "config": {"lr": 0.1},
    }
    assert former_state(node.root, "r", 1, WAIT_S) is None
    assert former_state(node.root, "other", later_us, WAIT_S) is None


def test_a_run_that_is_expected_is_asked_for_until_it_is_stored(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    was_asked, read = threading.Event(), reads._read

    def ask(*given: Any) -> Any:
        found = read(*given)
        was_asked.set()
        return found

    def record() -> None:
        was_asked.wait(WAIT_S)
        chiplog.init(run_id="r", notes="late", dir=node.root, capture_console=False).finish()

    monkeypatch.setattr(reads, "_read", ask)
    recording = threading.Thread(target=record)
    recording.start()
    found = former_state(node.root, "r", 2 * time.time_ns() // 1000, WAIT_S, is_expected=True)
    recording.join()
    assert found is not None and found["notes"] == "late"


def test_without_data_there_is_no_state_and_without_an_answer_in_time_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert former_state(tmp_path / "nothing", "r", 1, WAIT_S) is None
    is_over = threading.Event()
    monkeypatch.setattr(reads, "_read", lambda *given: is_over.wait(WAIT_S))
    with pytest.raises(TimeoutError):
        former_state(tmp_path / "nothing", "r", 1, 0.0)
    is_over.set()


def test_without_a_thread_there_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "start_thread", lambda *given, name: False)
    assert former_state(tmp_path, "r", 1, WAIT_S) is None
