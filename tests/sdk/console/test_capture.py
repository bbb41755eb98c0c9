"""Which streams are captured, and how: descriptors, or what Python writes to other streams."""

import io
import os
import subprocess
import sys

import pytest

from chiplog.console.capture import writes_to_fd
from chiplog.console.python_streams import STDERR, STDOUT
from chiplog_schemas.model.events import EventKind
from tests.support.console import recorded, run_script, script, timed_lines
from tests.support.journals import read_events
from tests.support.safeguard import proves
from tests.support.tools import NAMESPACES, needs
from tests.support.waiting import WAIT_S, wait_until


def test_python_c_and_subprocesses_are_recorded_and_shown(chiplog_dir, tmp_path) -> None:
    done = run_script(
        tmp_path,
        """
        run = init()
        helper_of(run)
        print("python")
        libc.puts(b"C"); libc.fflush(None)
        subprocess.run(["echo", "subprocess"])
        print("unfinished", end="")
        libc.printf(b" with C's buffer")
        run.finish()
        print("after the run")
        """,
    )
    assert done.stdout.decode() == "python\nC\nsubprocess\nunfinished with C's bufferafter the run\n"
    assert (done.returncode, done.stderr) == (0, b"")
    lines = recorded(chiplog_dir, 4)
    assert lines == [(1, "python"), (1, "C"), (1, "subprocess"), (1, "unfinished with C's buffer")]
    identities = {
        event.producer.hex(): event.fields["identity"]
        for event in read_events(chiplog_dir / "offline")
        if event.kind == EventKind.IDENTITY
    }
    rank = next(producer for producer, said in identities.items() if said["role"] == "rank")
    console = next(said for said in identities.values() if said["role"] == "console")
    assert console["of"] == rank
    assert not {"run_id", "label", "pid"} & set(console), "it is no label, and no process to be sampled"


def test_without_a_shell_python_is_recorded_and_it_is_said_once(chiplog_dir, tmp_path) -> None:
    body = """
    import chiplog.console.redirect
    def refuse(*arguments, **options): raise OSError(11, "no more processes")
    os.posix_spawn = refuse
    for number in range(2):
        run = init(label=f"a{number}")
        print("python", number)
        run.finish()
    """
    done = run_script(tmp_path, body)
    assert done.stdout == b"python 0\npython 1\n"
    assert done.stderr.count(b"no more processes") == 2, "once for each run"
    lines = [e.fields["line"] for e in read_events(chiplog_dir / "offline") if e.kind == EventKind.CONSOLE]
    assert sorted(lines) == ["python 0", "python 1"]


@proves(
    "pid-1-without-helper", "PID 1 of a container prints without a helper that would be killed with it", condition=False
)
@needs("unshare", NAMESPACES)
@pytest.mark.parametrize("end", ["os._exit(3)", "sys.exit(3)"])
def test_a_training_that_is_pid_1_shows_and_records_its_last_words(chiplog_dir, tmp_path, end) -> None:
    train = script(tmp_path, f"run = init(); print('first'); print('last words', flush=True); {end}")
    command = ["unshare", "-pf", "--mount-proc", sys.executable, "-W", "error", train]
    done = subprocess.run(command, capture_output=True, timeout=WAIT_S)
    assert done.stdout == b"first\nlast words\n"
    assert b"PID 1" in done.stderr
    assert done.returncode == 3
    lines = [event.fields for event in read_events(chiplog_dir / "offline") if event.kind == EventKind.CONSOLE]
    assert [line["line"] for line in lines if line["stream"] == 1] == ["first", "last words"]


def test_streams_that_are_no_descriptors_are_captured_beside_those_that_are(chiplog_dir, tmp_path) -> None:
    body = """
    import io
    kept = sys.stdout
    sys.stdout = notebook = io.StringIO()
    run = init()
    helper_of(run)
    print("to the notebook")
    print("to the terminal", file=sys.stderr)
    os.write(2, b"C\\n")
    run.finish()
    assert sys.stdout is notebook and notebook.getvalue() == "to the notebook\\n"
    """
    done = run_script(tmp_path, body)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"to the terminal\nC\n")
    wait_until(lambda: len(timed_lines(chiplog_dir)) == 3, "three lines")
    lines = [(e.fields["stream"], e.fields["line"]) for e in read_events(chiplog_dir / "offline") if e.kind == 5]
    assert sorted(lines) == [(1, "to the notebook"), (2, "C"), (2, "to the terminal")]


def test_a_stream_that_somebody_wrapped_is_recorded_once(chiplog_dir, tmp_path) -> None:
    body = """
    class Both:
        def __init__(self): self.terminal = sys.stdout
        def write(self, text): return self.terminal.write(text)
        def flush(self): self.terminal.flush()
    sys.stdout = Both()
    run = init()
    print("once")
    """
    assert run_script(tmp_path, body).stdout == b"once\n"
    assert recorded(chiplog_dir, 1) == [(1, "once")]


def test_nothing_is_put_in_place_of_streams_when_it_is_not_wanted(chiplog_dir, tmp_path) -> None:
    body = """
    before = [os.fstat(n).st_ino for n in (1, 2)]
    for options in ({"capture_console": False}, {"mode": "disabled"}):
        run = init(**options)
        assert [os.fstat(n).st_ino for n in (1, 2)] == before
        run.finish()
    """
    done = run_script(tmp_path, body)
    assert (done.returncode, done.stderr) == (0, b"")


class Wrapper:
    """A wrapper around a stream, as of a colour library."""

    def __init__(self, stream: object) -> None:
        self.wrapped = stream


class Hostile:
    def fileno(self) -> int:
        raise RuntimeError("no descriptor")


def test_a_descriptor_is_captured_if_what_python_prints_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(1, closefd=False) as own, open(2, closefd=False) as other:
        for stream in (own, Wrapper(own), None):
            monkeypatch.setattr(sys, "stdout", stream)
            assert writes_to_fd(STDOUT)
        for stream in (other, Wrapper(other), io.StringIO(), Hostile(), Wrapper(Hostile())):
            monkeypatch.setattr(sys, "stdout", stream)
            assert not writes_to_fd(STDOUT)


def test_a_descriptor_that_is_closed_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert writes_to_fd(STDERR)
    kept = os.dup(STDERR)
    os.close(STDERR)
    try:
        assert not writes_to_fd(STDERR)
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
