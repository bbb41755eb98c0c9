"""How a rank ended, by what its node knows: real processes and files, and the verdict that the agent makes of them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog_agent.endings import STATE_LOST, VANISHED, Endings
from tests.conftest import wait_until

PRODUCER = b"P" * 16
STARTED_US = 1_000_000
HOLDER = """
import os, pathlib, sys
from chiplog_schemas.locks import Lock
lock = Lock(pathlib.Path(sys.argv[1]))
print(flush=True)
sys.stdin.readline()
exec(sys.argv[2])
"""


@pytest.fixture
def endings(tmp_path: Path) -> Iterator[Endings]:
    endings = Endings(tmp_path)
    yield endings
    endings.forget(PRODUCER)


def verdict(endings: Endings, journals: Path, how: str, *, finished: bool = False, **identity: Any) -> dict[str, Any]:
    """Let a process that holds a journal's lock end in some way, and return what the agent says of it."""
    lock = journals / PRODUCER.hex() / "lock"
    lock.parent.mkdir()
    command = [sys.executable, "-S", "-P", "-c", HOLDER, str(lock), how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    endings.greet(PRODUCER)
    process.communicate("\n", timeout=60)
    wait_until(lambda: endings.look(42), "the end of the process")
    ts_us, state = endings.of(PRODUCER, {"started_at": STARTED_US, "rank": 0, **identity}, 99, finished=finished)
    assert ts_us == 42
    assert "late_us" not in state, "somebody saw it"
    return state


@pytest.mark.parametrize(
    ("how", "finished", "said"),
    [
        ("os._exit(3)", False, {"state": "crashed", "exit_code": 3}),
        ("os.abort()", False, {"state": "crashed", "exit_signal": 6, "reason": "killed by SIGABRT"}),
        ("os.kill(os.getpid(), 9)", True, {"state": "crashed", "exit_signal": 9}),
        ("os._exit(0)", True, {"state": "finished", "exit_code": 0, "reason": STATE_LOST}),
        ("os._exit(2)", True, {"state": "failed", "exit_code": 2, "reason": STATE_LOST}),
    ],
)
def test_the_exit_status_makes_the_verdict(
    endings: Endings, tmp_path: Path, how: str, *, finished: bool, said: dict[str, Any]
) -> None:
    state = verdict(endings, tmp_path, how, finished=finished)
    assert said.items() <= state.items(), state
    assert state["detail"] == {"status_by": "pidfd"}


def test_a_rank_that_nobody_saw_end_may_have_ended_any_time_since_it_started(endings: Endings) -> None:
    ts_us, state = endings.of(PRODUCER, {"started_at": 60}, 99, finished=False)
    assert (ts_us, state) == (99, {"state": "crashed", "reason": VANISHED, "late_us": 39})


def error_file(path: Path, said: Any) -> str:
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    return str(path)


def test_torchelastics_error_file_tells_what_a_vanished_rank_died_of(endings: Endings, tmp_path: Path) -> None:
    extra = {"py_callstack": "x" * 20_000 + "ValueError: boom", "timestamp": "1"}
    path = error_file(tmp_path / "error.json", {"message": {"message": "ValueError: boom", "extraInfo": extra}})
    state = verdict(endings, tmp_path, "os._exit(1)", error_file=path)
    assert state["reason"].endswith("; its error file says: ValueError: boom")
    assert state["detail"]["message"] == "ValueError: boom"
    assert state["detail"]["error_file"] == path
    assert len(state["detail"]["traceback"]) == 16_384
    assert state["detail"]["traceback"].endswith("ValueError: boom")


@pytest.mark.parametrize(
    "said",
    ["", "{", "[]", '{"message": 3}', '{"message": {}}', "[" * 100_000, '{"message": "' + "x" * 300_000, None, "fifo"],
    ids=lambda said: str(said)[:20],
)
def test_an_error_file_that_is_none_costs_nothing_but_itself(
    endings: Endings, tmp_path: Path, said: str | None
) -> None:
    path = tmp_path / "error.json"
    if said == "fifo":
        os.mkfifo(path)
    elif said is not None:
        error_file(path, said)
    state = verdict(endings, tmp_path, "os._exit(1)", error_file=str(path))
    assert (state["state"], state["exit_code"]) == ("crashed", 1)
    assert "error file" not in state["reason"]


def test_an_error_file_of_an_earlier_attempt_or_of_a_parent_is_not_this_ranks(endings: Endings, tmp_path: Path) -> None:
    path = error_file(tmp_path / "error.json", {"message": "ValueError: of another"})
    os.utime(path, (0, 0))
    state = verdict(endings, tmp_path, "os._exit(1)", error_file=path, started_at=60_000_000)
    assert "ValueError" not in str(state)
    os.utime(path)
    _, state = endings.of(PRODUCER, {"error_file": path, "started_at": 1}, 99, finished=False)
    assert "ValueError" not in str(state), "a process without a rank inherited the variable"
