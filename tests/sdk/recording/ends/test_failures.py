"""What an exception leaves: one line, the end of its traceback, and whether it was memory that ran out."""

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog.recording.ends.failures import TRACEBACK_CHARS_MAX, cause_of, exit_status_of, failure_detail
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.journal_dir import HEAD_NAME, decode_head, list_journals
from tests.support.journals import read_events
from tests.support.marks import everyday
from tests.support.waiting import WAIT_S


def caught(code: str, **names: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:
        exec(code, names)
    return caught.value


def test_a_traceback_is_the_end_of_what_the_interpreter_prints() -> None:
    error = caught("def f(n):\n    if n: f(n - 1)\n    raise ValueError('x' * 50_000 + 'boom \\udcff')\nf(900)")
    detail = failure_detail(error)
    assert detail["exception"] == "ValueError"
    assert len(detail["traceback"]) <= TRACEBACK_CHARS_MAX
    assert "boom" in detail["traceback"][-30:]
    detail["traceback"].encode()


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        ("raise SystemExit(3)", 3, "SystemExit: 3"),
        ("raise SystemExit", 0, "SystemExit: None"),
        ("try: 1/0\nexcept Exception: raise SystemExit(1)", 1, "ZeroDivisionError: division by zero"),
        ("try: 1/0\nexcept Exception: raise SystemExit(0)", 0, "SystemExit: 0"),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt"),
    ],
)
def test_an_exit_says_in_the_middle_of_what_it_was_called(code: str, status: int, reason: str) -> None:
    error = caught(code)
    assert exit_status_of(error) == (status, reason)
    assert ("traceback" in failure_detail(error)) == (reason.split(":")[0] != "SystemExit")


class DistBackendError(RuntimeError):
    """As torch names it."""


class OtherDistError(DistBackendError):
    """A subclass with a name that is not specific."""


class SignalException(Exception):  # noqa: N818 - torchelastic's name
    """As torchelastic names it."""


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("raise ValueError('boom')", "exception"),
        ("raise KeyboardInterrupt", "interrupted"),
        ("raise SignalException('Process 7 got signal: 15')", "interrupted"),
        ("raise SystemExit(143)", "interrupted"),
        ("raise SystemExit(3)", "exit_status"),
        ("try: raise OtherDistError('x')\nexcept Exception: raise SystemExit(1)", "peer_lost"),
        ("raise OtherDistError('x')", "peer_lost"),
        ("raise RuntimeError('[gloo/transport/tcp/pair.cc:547] Connection closed by peer')", "peer_lost"),
        ("raise ConnectionResetError", "connection_lost"),
        ("raise RuntimeError('Broken pipe')", "connection_lost"),
    ],
)
def test_the_cause_of_an_end_is_known_by_the_exceptions_type_first(code: str, cause: str) -> None:
    error = caught(code, OtherDistError=OtherDistError, SignalException=SignalException)
    assert cause_of(error) == cause
    assert failure_detail(error).get("cause", cause) == cause


def test_memory_that_ran_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class OutOfMemoryError(RuntimeError):
        """Like torch's: a separate type of RuntimeError."""

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError))
    said = "CUDA out of memory. Tried to allocate 20.00 GiB"
    for error in (OutOfMemoryError(said), RuntimeError(said), RuntimeError("CUDA error: out of memory")):
        code, reason = exit_status_of(error)
        assert code == 1
        assert reason.startswith("CUDA out of memory: ")
        assert failure_detail(error)["out_of_memory"] == "cuda"
    assert failure_detail(MemoryError())["out_of_memory"] == "host"
    assert "out_of_memory" not in failure_detail(ValueError(said))


def test_an_exception_whose_own_methods_raise_is_still_an_end() -> None:
    class HostileError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

        @property
        def __cause__(self) -> Any:
            raise RuntimeError("no cause")

    assert exit_status_of(HostileError()) == (1, "HostileError: <HostileError>")
    assert "HostileError" in failure_detail(HostileError())["traceback"]


SCRIPT = """
import threading
import chiplog
run = chiplog.init(mode="offline", capture_console=False)
def work():
    raise ValueError("in a thread")
thread = threading.Thread(target=work, name="worker")
thread.start()
thread.join()
run.log({"x": 1.0})
%s
"""


def notices(chiplog_dir: Path, rest: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    done = subprocess.run([sys.executable, "-c", SCRIPT % rest], capture_output=True, text=True, timeout=WAIT_S)
    assert "in a thread" in done.stderr, "the interpreter prints it as ever"
    events = read_events(chiplog_dir / "offline")
    [state] = [event.fields["state"] for event in events if event.kind == EventKind.STATE]
    return [event.fields for event in events if event.kind == EventKind.NOTICE], state


def test_an_exception_in_a_thread_is_a_row_and_no_end(chiplog_dir: Path) -> None:
    [row], state = notices(chiplog_dir, "")
    assert (row["notice"], row["level"]) == ("thread_failed", "error")
    assert row["message"] == "thread worker: ValueError: in a thread"
    assert row["body"]["traceback"].rstrip().endswith("ValueError: in a thread")
    assert state == {"state": "finished", "exit_code": 0}


@pytest.mark.parametrize(
    "rest",
    ["1/0", "with run: 1/0", "import sys\ntry: 1/0\nexcept Exception: sys.exit(1)"],
    ids=["uncaught", "with", "sys.exit"],
)
def test_an_uncaught_exception_leaves_its_traceback_before_its_process_ends(chiplog_dir: Path, rest: str) -> None:
    rows, state = notices(chiplog_dir, rest)
    [row] = [row for row in rows if row["notice"] == "traceback"]
    assert row["message"] == state["reason"] == "ZeroDivisionError: division by zero"
    assert row["body"]["exception"] == "ZeroDivisionError"
    assert row["body"]["cause"] == state["cause"] == "exception"
    assert "Traceback (most recent call last)" in row["body"]["traceback"]
    assert (state["state"], state["exit_code"]) == ("failed", 1)


def test_a_disabled_run_notes_nothing(chiplog_dir: Path) -> None:
    run = chiplog.init(mode="disabled")
    run._end.mark_exit(ValueError("x"))
    run._notices.note_thread("t", ValueError("x"))
    run.alert("x")
    run.finish()
    assert not (chiplog_dir / "offline").exists()


ENDING = """
import signal, sys, threading, chiplog
from dataclasses import replace
run = chiplog.init(mode="offline", run_id="r", label="rank0", capture_console=False)
run.log({"x": 1.0})
where, does = sys.argv[1:]
def handler(number, frame):
    if does == "finishes":
        run.finish(143)
    elif does == "leaves":
        sys.exit(7)
    else:
        raise KeyboardInterrupt
signal.signal(signal.SIGUSR1, handler)
owner, name = {
    "asking": (run._membership.rendezvous, "take_answer"), "steps": (run._steps, "stop"),
    "report": (run._diagnostics, "emit_counts"),
    "sending": (run._run_journal.sender, "stop"),
}[where]
run._membership.awaits_group, run._membership.identity = True, replace(run._membership.identity, needs_agreement=True)
plain = getattr(owner, name)
def interrupted(*given):
    if threading.current_thread() is not threading.main_thread():
        return plain(*given)  # the sender's thread reports complaints too
    setattr(owner, name, plain)
    signal.raise_signal(signal.SIGUSR1)
    return plain(*given)
setattr(owner, name, interrupted)
if does == "is caught":
    try:
        run.finish()
    except KeyboardInterrupt:
        run.log({"x": 2.0})
else:
    run.finish()
"""
WELL = {"state": "finished", "exit_code": 0}


@pytest.mark.parametrize(
    ("where", "does", "said"),
    everyday(
        2,
        [
            (
                "asking",
                "finishes",
                {"state": "failed", "exit_code": 143, "reason": "finish(exit_code=143)", "cause": "exit_status"},
            ),
            ("steps", "finishes", WELL),
            (
                "asking",
                "leaves",
                {"state": "failed", "exit_code": 7, "reason": "SystemExit: 7", "cause": "exit_status"},
            ),
            (
                "report",
                "leaves",
                {"state": "failed", "exit_code": 7, "reason": "SystemExit: 7", "cause": "exit_status"},
            ),
            (
                "steps",
                "raises",
                {"state": "failed", "exit_code": 1, "reason": "KeyboardInterrupt", "cause": "interrupted"},
            ),
            ("report", "is caught", WELL),
            ("sending", "raises", WELL),
        ],
    ),
)
def test_a_signal_in_the_middle_of_finish_does_not_cost_the_end(tmp_path, where, does, said) -> None:
    environ = os.environ | {"CHIPLOG_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", ENDING, where, does], env=environ, timeout=WAIT_S, stderr=subprocess.PIPE)
    events = read_events(tmp_path / "offline")
    assert [event.fields["state"] for event in events if event.kind == EventKind.STATE] == [said]
    assert sum(event.kind == EventKind.METRICS for event in events) == (2 if does == "is caught" else 1)
    [(_, journal)] = list_journals(tmp_path / "offline")
    head = decode_head((journal / HEAD_NAME).read_bytes())
    assert head is not None
    assert head.finished
