"""How a rank ended, as its node knows: real processes and files, and the agent's verdict."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog_agent.ranks.exit_cause import STATE_LOST, VANISHED, ExitCauseResolver
from chiplog_agent.ranks.orphan_journals import OrphanJournalCollector
from chiplog_schemas.model.codes import EndCause
from chiplog_schemas.process.file_lock import kernel_lock_holder_pid
from tests.support.safeguard import proves
from tests.support.tools import PID_NAMESPACE, require
from tests.support.waiting import WAIT_S, wait_until

PRODUCER = b"P" * 16
STARTED_US = 1_000_000
HOLDER = """
import os, pathlib, sys
from chiplog_schemas.process.file_lock import Lock
lock = Lock(pathlib.Path(sys.argv[1]))
print(flush=True)
sys.stdin.readline()
exec(sys.argv[2])
"""


@pytest.fixture
def endings(tmp_path: Path) -> Iterator[ExitCauseResolver]:
    endings = ExitCauseResolver(tmp_path)
    yield endings
    endings.forget(PRODUCER)


def verdict(
    endings: ExitCauseResolver, journals: Path, how: str, *, finished: bool = False, **identity: Any
) -> dict[str, Any]:
    """End a process that holds a journal's lock in some way, and return the agent's verdict."""
    lock = journals / PRODUCER.hex() / "lock"
    lock.parent.mkdir()
    command = [sys.executable, "-P", "-c", HOLDER, str(lock), how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    endings.on_hello(PRODUCER)
    process.communicate("\n", timeout=WAIT_S)
    wait_until(lambda: endings.poll(42), "the end of the process")
    ts_us, state = endings.resolve(PRODUCER, {"started_at": STARTED_US, "rank": 0, **identity}, 99, finished=finished)
    assert ts_us == 42
    assert "late_us" not in state, "the end was observed"
    return state


@pytest.mark.parametrize(
    ("how", "finished", "said"),
    [
        ("os._exit(3)", False, {"state": "crashed", "exit_code": 3, "cause": "exit_status"}),
        (
            "os.abort()",
            False,
            {"state": "crashed", "exit_signal": 6, "reason": "killed by SIGABRT", "cause": "exit_status"},
        ),
        ("os.kill(os.getpid(), 9)", True, {"state": "crashed", "exit_signal": 9}),
        ("os._exit(0)", True, {"state": "finished", "exit_code": 0, "reason": STATE_LOST}),
        ("os._exit(2)", True, {"state": "failed", "exit_code": 2, "reason": STATE_LOST}),
    ],
)
def test_the_exit_status_makes_the_verdict(
    endings: ExitCauseResolver, tmp_path: Path, how: str, *, finished: bool, said: dict[str, Any]
) -> None:
    state = verdict(endings, tmp_path, how, finished=finished)
    assert said.items() <= state.items(), state
    assert state["detail"] == {"status_by": "pidfd"}


def test_a_rank_that_nobody_saw_end_may_have_ended_any_time_since_it_started(endings: ExitCauseResolver) -> None:
    ts_us, state = endings.resolve(PRODUCER, {"started_at": 60}, 99, finished=False)
    assert (ts_us, state) == (99, {"state": "crashed", "reason": VANISHED, "cause": "unseen", "late_us": 39})


@proves("reported-exception-is-reason", "the exception that a rank reported is its reason", condition=False)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("os.kill(os.getpid(), 15)", {"exit_signal": 15, "reason": "ValueError: boom; then killed by SIGTERM"}),
        ("os._exit(1)", {"exit_code": 1, "reason": "ValueError: boom"}),
        (None, {"reason": "ValueError: boom"}),
    ],
)
def test_the_exception_that_a_rank_reported_is_its_reason_however_it_ended(
    endings: ExitCauseResolver, tmp_path: Path, how: str | None, said: dict[str, Any]
) -> None:
    if how is None:  # before the agent was up
        _, state = endings.resolve(PRODUCER, {}, 99, finished=False, failure="ValueError: boom")
    else:
        verdict(endings, tmp_path, how)
        _, state = endings.resolve(PRODUCER, {}, 99, finished=False, failure="ValueError: boom")
    assert ({"state": "failed", "cause": "exception"} | said).items() <= state.items(), state


@pytest.mark.parametrize(
    ("failure", "named", "cause"),
    [
        ("RuntimeError: boom", EndCause.PEER_LOST, "peer_lost"),
        ("RuntimeError: Broken pipe", None, "connection_lost"),
        ("RuntimeError: Broken pipe", EndCause.EXCEPTION, "exception"),
    ],
)
def test_the_cause_that_a_rank_named_beside_its_exception_is_its_ends(
    endings: ExitCauseResolver, failure: str, named: EndCause | None, cause: str
) -> None:
    _, state = endings.resolve(PRODUCER, {}, 99, finished=False, failure=failure, failure_cause=named)
    assert (state["state"], state["cause"], type(state["cause"])) == ("failed", cause, str)


@pytest.mark.parametrize(("status", "said"), [("11 pidfd", {"exit_signal": 11}), ("1024 x", {"exit_code": 4})])
def test_what_the_consoles_helper_wrote_is_the_status_of_a_rank_that_no_agent_saw(
    endings: ExitCauseResolver, tmp_path: Path, status: str, said: dict[str, int]
) -> None:
    journal = tmp_path / PRODUCER.hex()
    journal.mkdir()
    (journal / "status").touch()
    assert endings.exit_status_pending(PRODUCER), "the helper is about to write"
    (journal / "status").write_text(f"{status}\n")
    assert not endings.exit_status_pending(PRODUCER)
    ts_us, state = endings.resolve(PRODUCER, {}, 99, finished=False)
    assert said.items() <= state.items()
    assert ts_us == (journal / "status").stat().st_mtime_ns // 1000
    assert "late_us" not in state


@pytest.mark.parametrize("status", ["unknown ", "99999999 pidfd", "-1 pidfd", "\xff", "1"])
def test_a_status_that_is_none_is_no_status(endings: ExitCauseResolver, tmp_path: Path, status: str) -> None:
    journal = tmp_path / PRODUCER.hex()
    journal.mkdir()
    (journal / "status").write_bytes(f"{status}\n".encode("latin-1"))
    _, state = endings.resolve(PRODUCER, {}, 99, finished=False)
    assert ("exit_signal" in state) is (status == "1")


def error_file(path: Path, said: Any) -> str:
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    return str(path)


def test_torchelastics_error_file_tells_what_a_vanished_rank_died_of(
    endings: ExitCauseResolver, tmp_path: Path
) -> None:
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
    endings: ExitCauseResolver, tmp_path: Path, said: str | None
) -> None:
    path = tmp_path / "error.json"
    if said == "fifo":
        os.mkfifo(path)
    elif said is not None:
        error_file(path, said)
    state = verdict(endings, tmp_path, "os._exit(1)", error_file=str(path))
    assert (state["state"], state["exit_code"]) == ("crashed", 1)
    assert "error file" not in state["reason"]


def test_an_error_file_of_an_earlier_attempt_or_of_a_parent_is_not_this_ranks(
    endings: ExitCauseResolver, tmp_path: Path
) -> None:
    path = error_file(tmp_path / "error.json", {"message": "ValueError: of another"})
    os.utime(path, (0, 0))
    state = verdict(endings, tmp_path, "os._exit(1)", error_file=path, started_at=60_000_000)
    assert "ValueError" not in str(state)
    os.utime(path)
    _, state = endings.resolve(PRODUCER, {"error_file": path, "started_at": 1}, 99, finished=False)
    assert "ValueError" not in str(state), "a process without a rank inherited the variable"


def of_rank(endings: ExitCauseResolver, path: str) -> str:
    """Return the agent's verdict on a rank whose end was not observed and that has an error file."""
    return str(
        endings.resolve(PRODUCER, {"error_file": path, "started_at": 1, "rank": 0}, 99, finished=False)[1]["reason"]
    )


def test_ranks_whose_error_files_hang_are_done_without_after_the_first(
    endings: ExitCauseResolver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / PRODUCER.hex()).mkdir()
    path = error_file(tmp_path / "error.json", {"message": "ValueError: boom"})
    hung, opened, open_file = threading.Event(), [], os.open

    def opens(name: Any, *rest: Any, **named: Any) -> int:  # simulates a file system that does not answer
        if name == "/hung/error.json":
            opened.append(name)
            hung.wait(WAIT_S)
        return open_file(name, *rest, **named)

    monkeypatch.setattr(os, "open", opens)
    n_threads = threading.active_count()
    for _ in range(16):
        endings.poll(1)
        assert of_rank(endings, "/hung/error.json") == VANISHED
    assert len(opened) == 1
    assert threading.active_count() == n_threads + 1
    assert of_rank(endings, path) == VANISHED, "the one reader hangs"
    hung.set()
    wait_until(lambda: threading.active_count() == n_threads, "the end of the reader")
    endings.poll(1)
    assert of_rank(endings, path).endswith("ValueError: boom")


def test_one_turn_waits_for_slow_error_files_once(
    endings: ExitCauseResolver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / PRODUCER.hex()).mkdir()
    path = error_file(tmp_path / "error.json", {"message": "ValueError: boom"})
    open_file = os.open

    def opens(name: Any, *rest: Any, **named: Any) -> int:  # simulates a slow file system
        time.sleep(0.3 * (name == path))
        return open_file(name, *rest, **named)

    monkeypatch.setattr(os, "open", opens)
    endings.poll(1)
    n_read = sum(of_rank(endings, path) != VANISHED for _ in range(4))
    assert n_read <= 1, "another one would be longer than a turn may wait"
    monkeypatch.undo()

    def is_read() -> bool:
        endings.poll(1)
        return of_rank(endings, path) != VANISHED

    wait_until(is_read, "the file in another turn")


@pytest.fixture
def leaving(tmp_path: Path) -> Iterator[tuple[int, Callable[[], None]]]:
    """Yield the PID of a process that holds a journal's lock, and what lets it end once it was killed.

    It is the first of a PID namespace, and waits there for all others to be reaped, its own files already closed.
    """
    require("unshare", "nsenter", PID_NAMESPACE)
    lock = tmp_path / PRODUCER.hex() / "lock"
    lock.parent.mkdir()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    is_root = os.geteuid() == 0
    command = ["unshare", *([] if is_root else ["--user"]), "--pid", "--fork", sys.executable, "-P", "-c", HOLDER]
    with subprocess.Popen([*command, str(lock), "pass"], **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pid = kernel_lock_holder_pid(lock)
        command = ["nsenter", *([] if is_root else ["--user", "--preserve-credentials"]), "--pid", "--target", str(pid)]
        with subprocess.Popen([*command, "sh", "-c", "echo; read line"], **pipes) as other:
            try:
                assert other.stdout is not None
                other.stdout.readline()
                other.send_signal(signal.SIGSTOP)  # it reaps its child no more
                yield pid, lambda: other.send_signal(signal.SIGCONT)
            finally:
                os.kill(other.pid, signal.SIGCONT)


@proves("wait-for-exit-status", "a rank that is ending is waited for, so that its status is known", condition=False)
def test_a_rank_without_its_lock_that_is_not_dead_yet_is_waited_for_until_its_status_is_there(
    endings: ExitCauseResolver, tmp_path: Path, leaving: tuple[int, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, may_end = leaving
    adoption = OrphanJournalCollector(tmp_path, endings)
    assert adoption.scan({}) == []
    assert endings.watched == {PRODUCER}
    assert endings.is_alive(PRODUCER)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: kernel_lock_holder_pid(tmp_path / PRODUCER.hex() / "lock") == 0, "its lock")
    assert not endings.poll(41)
    assert adoption.scan({}) == []
    assert adoption.alive == 1
    monkeypatch.setattr("chiplog_agent.ranks.exit_cause._LEAVING_MAX_S", 0.0)
    assert not endings.exit_status_pending(PRODUCER), "a process that hangs while it exits is not waited for forever"
    monkeypatch.undo()
    may_end()
    wait_until(lambda: endings.poll(42), "its end")
    assert adoption.scan({}) == [PRODUCER]
    ts_us, state = endings.resolve(PRODUCER, {"rank": 0}, 99, finished=False)
    assert (ts_us, state["exit_signal"]) == (42, signal.SIGKILL)
