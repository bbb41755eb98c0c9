"""Capture of descriptors: what Python, C and subprocesses print is recorded, and the terminal sees the same bytes."""

import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import textwrap
import time
from fcntl import ioctl
from pathlib import Path

import pytest

import chiplog
import chiplog_schemas
from chiplog.console.helper import ConsoleHelper
from chiplog.console.relay import SpliceRelay
from chiplog.console.shared_counters import SharedCounters
from chiplog.console.stream_fds import StreamFds
from chiplog_schemas.model.events import EventKind
from tests.support.journals import read_events
from tests.support.network import need
from tests.support.safeguard import Safeguard
from tests.support.waiting import WAIT_S, wait_until

SAFEGUARDS = [
    Safeguard(
        "native code that prints while it holds the GIL does not wait for the rank's own threads",
        "helper-reads-under-gil",
        part="helper",
        new='["sleep", "30"]',
        test="test_native_code_that_prints_a_megabyte_while_it_holds_the_gil_goes_on",
    ),
    Safeguard(
        "what a killed helper had not passed on is still in the pipe",
        "killed-helper-leaves-bytes",
        value="-1",
        test="test_a_helper_that_is_killed_while_the_reader_is_slow_costs_the_terminal_nothing",
    ),
    Safeguard(
        "a helper that is killed is replaced",
        "killed-helper-replaced",
        test="test_a_helper_that_is_killed_costs_the_terminal_nothing",
    ),
    Safeguard(
        "a helper that is stopped is ended",
        "stopped-helper-ended",
        test="test_a_helper_that_is_stopped_does_not_stop_the_training",
    ),
    Safeguard(
        "a training whose reader has gone meets EPIPE",
        "training-meets-epipe",
        test="test_a_reader_that_leaves_ends_the_training_as_it_would_without_us",
    ),
    Safeguard(
        "what a short process printed is shown and recorded though its helper is late",
        "late-helper-loses-no-line",
        part="None or self._tally.lock()",
        new="None",
        test="test_a_helper_that_is_late_for_finish_costs_no_line_and_shows_none_twice",
    ),
    Safeguard(
        "a rank that prints much before its helper is ready continues",
        "printing-waits-for-no-helper",
        condition=False,
        test="test_a_rank_that_prints_much_before_its_helper_is_there_goes_on_and_every_line_is_told_once",
    ),
    Safeguard(
        "PID 1 of a container prints without a helper that would be killed with it",
        "pid-1-without-helper",
        condition=False,
        test="test_a_training_that_is_pid_1_shows_and_records_its_last_words",
    ),
    Safeguard(
        "what was written first to one of two streams is shown first, also by a helper that waited for a core",
        "streams-in-written-order",
        value="select.EPOLLIN",
        test="test_what_was_written_first_is_moved_first_however_late_the_helper_is",
    ),
]

HEAD = """
import ctypes, os, signal, subprocess, sys, time
import chiplog

def init(**more):
    return chiplog.init(**{"mode": "offline", "run_id": "r", "label": "a", **more})

def helper_of(run):
    while not run._console.helper: time.sleep(0.01)
    return run._console.helper

libc = ctypes.CDLL(None)
"""


def script(tmp_path: Path, body: str, name: str = "train.py") -> str:
    path = tmp_path / name
    path.write_text(HEAD + textwrap.dedent(body))
    return str(path)


def run_script(tmp_path: Path, body: str, **options) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-W", "error", script(tmp_path, body)]
    return subprocess.run(command, capture_output=True, timeout=WAIT_S, **options)


def recorded(chiplog_dir: Path, n_lines: int) -> list[tuple[int, str]]:
    """Return (stream, line) of the recorded lines, in the order of their numbers; wait until there are as many."""
    found: list = []

    def look() -> bool:
        nonlocal found
        lines = [event.fields for event in read_events(chiplog_dir / "offline") if event.kind == EventKind.CONSOLE]
        found = sorted((line["line_no"], line["stream"], line["line"]) for line in lines)
        return len(found) >= n_lines

    wait_until(look, f"{n_lines} lines")
    assert len({number for number, _, _ in found}) == len(found), "numbers of lines are drawn once"
    return [(stream, line) for _, stream, line in found]


def notices(chiplog_dir: Path, kind: str) -> list[dict]:
    found = [event.fields for event in read_events(chiplog_dir / "offline") if event.kind == EventKind.NOTICE]
    return [fields["body"] for fields in found if fields["notice"] == kind]


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


def test_streams_keep_their_order_and_their_names(chiplog_dir, tmp_path) -> None:
    done = run_script(
        tmp_path,
        """
        run = init()
        helper_of(run)
        for number in range(20):
            stream, tally = 1 + number % 2, run._console._pipes._tally
            before = tally.passed(stream)
            print(f"line {number}", file=(sys.stdout, sys.stderr)[number % 2])
            while tally.passed(stream) == before: time.sleep(0.001)
        """,
    )
    assert done.stdout.decode().splitlines() == [f"line {number}" for number in range(0, 20, 2)]
    assert recorded(chiplog_dir, 20) == [(1 + number % 2, f"line {number}") for number in range(20)]


def test_a_stream_that_is_printed_to_all_the_time_keeps_its_order_with_the_other_and_wakes_the_helper_seldom(
    chiplog_dir, tmp_path
) -> None:
    done = run_script(
        tmp_path,
        """
        run = init()
        helper, tally = helper_of(run), run._console._pipes._tally
        def wakes():
            with open(f"/proc/{helper}/status") as status:
                return int(status.read().split("\\nvoluntary_ctxt_switches:")[1].split()[0])
        before = wakes()
        for number in range(400):
            print("busy", number)
            time.sleep(0.001)
            if number % 10 == 9:
                passed = tally.passed(2)
                print("out", number, flush=True)
                print("err", number, file=sys.stderr)
                while tally.passed(2) == passed: time.sleep(0.0005)
        assert wakes() - before < 300, wakes() - before
        """,
    )
    assert (done.returncode, done.stderr.count(b"\n")) == (0, 40), done.stderr
    lines = recorded(chiplog_dir, 480)
    expected = []
    for number in range(400):
        expected += [(1, f"busy {number}")]
        expected += [(1, f"out {number}"), (2, f"err {number}")] if number % 10 == 9 else []
    assert lines == expected


def test_what_was_written_first_is_moved_first_however_late_the_helper_is(tmp_path) -> None:
    """The helper's own loop, turn by turn: between two of them it waits for a core as long as it likes."""
    control, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory = os.memfd_create("tally")
    os.ftruncate(memory, SharedCounters.SIZE)
    target = tmp_path / "both"
    pipes = [os.pipe(), os.pipe()]
    writers = [writer for _, writer in pipes]
    bounds = {"console_lines_per_s": 1, "console_burst_lines": 1}
    with control, ours, open(memory, "wb"), target.open("wb") as file:
        tally = SharedCounters(memory)
        passages = [
            SpliceRelay(StreamFds(n + 1, source, os.dup(file.fileno())), tally) for n, (source, _) in enumerate(pipes)
        ]
        helper = ConsoleHelper({"bounds": bounds}, control, passages, tally)
        helper._records = False  # no journal is opened
        expected = b""
        for number in range(20):
            first = number // 2 % 2
            for stream in (first, 1 - first):
                expected += b"%d %d\n" % (stream, number)
                os.write(writers[stream], b"%d %d\n" % (stream, number))
            helper.poll_once()
            # In between: a stream that was just polled, and then is written to after the other one.
            os.write(writers[1], b"alone\n")
            expected += b"alone\n"
            helper.poll_once()
        for writer in writers:
            os.close(writer)
        helper.poll_once()
        tally.close()
    assert helper._passages == {}
    assert target.read_bytes() == expected


def test_a_helper_needs_no_other_package_until_the_first_line(tmp_path) -> None:
    """All that it imports before is in chiplog and the standard library: msgpack alone would cost it 4 MB."""
    paths = [str(Path(module.__path__[0]).parent) for module in (chiplog, chiplog_schemas)]
    body = "import sys, types; package = types.ModuleType('chiplog'); sys.modules['chiplog'] = package\n"
    body += f"sys.path += {paths!r}; package.__path__ = [sys.path[-2] + '/chiplog']\n"
    body += "import chiplog.console.helper\nassert not {'msgpack', 'zmq', 'dataclasses'} & {*sys.modules}, sys.path\n"
    done = subprocess.run([sys.executable, "-P", "-S", "-c", body], capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_bars_are_folded_and_bytes_that_are_no_text_are_kept(chiplog_dir, tmp_path) -> None:
    written = b"10%\r50%\r100%\n\xff\xfe \xc3\xa9\n|\b/\b-\b done\nwindows\r\n\x1b[31mred\x1b[0m\n\0\n"
    done = run_script(tmp_path, f"run = init()\nos.write(1, {written!r})\n")
    assert done.stdout == written
    lines = [line for _, line in recorded(chiplog_dir, 6)]
    assert lines == ["100%", "\udcff\udcfe é", " done", "windows", "\x1b[31mred\x1b[0m", "\0"]


def test_lines_above_the_rate_are_declared_with_their_number(chiplog_dir, tmp_path) -> None:
    """Recorded + declared = printed."""
    environment = dict(os.environ, CHIPLOG_CONSOLE_BURST_LINES="100", CHIPLOG_CONSOLE_LINES_PER_S="1")
    body = "run = init()\nos.write(1, b''.join(b'line %d\\n' % n for n in range(30000)))\n"
    done = run_script(tmp_path, body, env=environment)
    assert done.stdout.count(b"\n") == 30_000
    wait_until(lambda: notices(chiplog_dir, "console_lost"), "a declared loss")
    lines = recorded(chiplog_dir, 100)
    assert len(lines) < 200
    assert len(lines) + sum(body["lines"] for body in notices(chiplog_dir, "console_lost")) == 30_000


@pytest.mark.parametrize(
    ("end", "code"),
    [("os.abort()", -signal.SIGABRT), ("os.kill(os.getpid(), 9)", -signal.SIGKILL), ("os._exit(3)", 3)],
    ids=["abort", "SIGKILL", "_exit"],
)
def test_the_last_words_of_a_process_that_dies_are_recorded(chiplog_dir, tmp_path, end, code) -> None:
    body = f"""
    run = init()
    print("first")
    libc.perror(b"native code fails")
    os.write(1, b"and leaves half a line")
    {end}
    """
    done = run_script(tmp_path, body)
    assert done.returncode == code
    assert done.stdout == b"first\nand leaves half a line"
    lines = recorded(chiplog_dir, 3)
    assert sorted(lines)[:2] == [(1, "and leaves half a line"), (1, "first")]
    assert lines[-1][0] in (1, 2)
    assert any(stream == 2 and line.startswith("native code fails") for stream, line in lines)


def test_native_code_that_prints_a_megabyte_while_it_holds_the_gil_goes_on(chiplog_dir, tmp_path) -> None:
    done = run_script(
        tmp_path,
        """
        run = init()
        held = ctypes.PyDLL(None)  # its calls keep the GIL
        line = b"x" * 1023 + b"\\n"
        for _ in range(1024): assert held.write(1, line, len(line)) == len(line)
        print("done", file=sys.stderr)
        """,
    )
    assert done.stderr == b"done\n"
    assert done.stdout == (b"x" * 1023 + b"\n") * 1024
    assert len(recorded(chiplog_dir, 1025)) == 1025


KILLED = """
run = init()
for number in range(4):
    for n in range(2500): os.write(1, b"%d %d\\n" % (number, n))
    if number < 3:
        victim = helper_of(run)
        os.kill(victim, signal.{signal})
        if {waits}:
            while run._console.helper == victim: time.sleep(0.01)
print("done")
"""


@pytest.mark.parametrize("waits", [True, False], ids=["one after the other", "while bytes wait"])
def test_a_helper_that_is_killed_costs_the_terminal_nothing(chiplog_dir, tmp_path, waits) -> None:
    done = run_script(tmp_path, KILLED.format(signal="SIGKILL", waits=waits))
    expected = [f"{number} {n}" for number in range(4) for n in range(2500)] + ["done"]
    assert done.stdout.decode().splitlines() == expected
    assert (done.returncode, done.stderr) == (0, b"")
    wait_until(lambda: (1, "done") in recorded(chiplog_dir, 1), "the last line")
    lines = [line for _, line in recorded(chiplog_dir, 1)]
    assert len(set(lines)) == len(lines), "no line is recorded twice"
    assert set(lines) <= {*expected, *lines}
    if len(lines) < len(expected):
        assert notices(chiplog_dir, "console_lost"), "what was passed on and not recorded is declared"


def test_a_helper_that_is_killed_while_the_reader_is_slow_costs_the_terminal_nothing(chiplog_dir, tmp_path) -> None:
    flag = tmp_path / "killed"
    body = f"""
    run = init()
    victim = helper_of(run)
    os.write(1, b"".join(b"%06d\\n" % n for n in range(28000)))  # more than the reader's pipe holds, less than ours
    tally = run._console._pipes._tally
    while not tally.is_waiting: time.sleep(0.01)
    time.sleep(0.1)
    os.kill(victim, signal.SIGKILL)
    while run._console.helper in (0, victim): time.sleep(0.01)
    open({str(flag)!r}, "w").close()
    """
    training = subprocess.Popen([sys.executable, script(tmp_path, body)], stdout=subprocess.PIPE)
    wait_until(flag.exists, "a helper that was killed")
    assert training.communicate(timeout=WAIT_S)[0].decode().splitlines() == [f"{n:06d}" for n in range(28_000)]


def test_a_helper_that_is_stopped_does_not_stop_the_training(chiplog_dir, tmp_path) -> None:
    body = """
    import chiplog.console.redirect
    chiplog.console.redirect._STALLED_S = 1.0
    run = init()
    os.kill(helper_of(run), signal.SIGSTOP)
    for n in range(10000): print(n, "x" * 100)
    """
    done = run_script(tmp_path, body)
    assert done.stdout.decode().splitlines() == [f"{n} {'x' * 100}" for n in range(10_000)]
    assert done.returncode == 0


def test_a_training_that_redirects_its_output_itself_keeps_its_helper(chiplog_dir, tmp_path) -> None:
    body = f"""
    import chiplog.console.redirect
    chiplog.console.redirect._STALLED_S = 0.3
    run = init()
    first = helper_of(run)
    mine = os.open({str(tmp_path / "mine")!r}, os.O_WRONLY | os.O_CREAT)
    os.dup2(mine, 1)
    time.sleep(1)
    print("to my file")
    print("captured", file=sys.stderr)
    assert run._console.helper == first
    os.dup2(mine, 2)
    time.sleep(1)
    run.finish()
    print("still my file")
    """
    done = run_script(tmp_path, body)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"captured\n")
    assert (tmp_path / "mine").read_text() == "to my file\nstill my file\n"
    assert recorded(chiplog_dir, 1) == [(2, "captured")]


def test_helpers_that_all_die_are_given_up_and_python_goes_on_being_recorded(chiplog_dir, tmp_path) -> None:
    body = """
    run = init()
    for _ in range(4):
        victim = helper_of(run)
        os.kill(victim, signal.SIGKILL)
        while run._console.helper == victim: time.sleep(0.01)
    child = subprocess.Popen(["sh", "-c", "echo from a child; cat"], stdin=subprocess.PIPE)
    while run._console._console is None: time.sleep(0.01)
    print("python continues")
    os.write(1, b"C is only shown\\n")
    child.communicate()
    """
    done = run_script(tmp_path, body)
    assert sorted(done.stdout.splitlines()) == [b"C is only shown", b"from a child", b"python continues"]
    assert b"the console is captured only as far as Python prints" in done.stderr
    assert (1, "python continues") in recorded(chiplog_dir, 1)
    assert done.returncode == 0


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


@pytest.mark.parametrize("end", ["os._exit(3)", "sys.exit(3)"])
def test_a_training_that_is_pid_1_shows_and_records_its_last_words(chiplog_dir, tmp_path, end) -> None:
    need({"unshare": "util-linux"})
    train = script(tmp_path, f"run = init(); print('first'); print('last words', flush=True); {end}")
    command = ["unshare", "-pf", "--mount-proc", sys.executable, "-W", "error", train]
    done = subprocess.run(command, capture_output=True, timeout=WAIT_S)
    assert done.stdout == b"first\nlast words\n"
    assert b"PID 1" in done.stderr
    assert done.returncode == 3
    lines = [event.fields for event in read_events(chiplog_dir / "offline") if event.kind == EventKind.CONSOLE]
    assert [line["line"] for line in lines if line["stream"] == 1] == ["first", "last words"]


@pytest.mark.parametrize("comes", ["exec sleep 2", 'sleep 1; exec "$PYTHON" "$@"'], ids=["never", "after finish()"])
def test_a_helper_that_is_late_for_finish_costs_no_line_and_shows_none_twice(chiplog_dir, tmp_path, comes) -> None:
    late = tmp_path / "late.sh"
    late.write_text(f"#!/bin/sh\n{comes}\n")
    late.chmod(0o755)
    body = f"""
    sys.executable = {str(late)!r}
    run = init()
    print("python")
    libc.printf(b"C\\n")
    run.finish()
    os.write(1, b"behind\\n")
    """
    with (tmp_path / "out").open("wb") as out:  # no pipe: a helper that hangs holds it open
        command = [sys.executable, "-W", "error", script(tmp_path, body)]
        done = subprocess.run(command, stdout=out, timeout=WAIT_S, env={**os.environ, "PYTHON": sys.executable})
    assert done.returncode == 0
    assert (tmp_path / "out").read_bytes() == b"python\nC\nbehind\n"
    time.sleep(2)  # any reaction comes within this
    assert (tmp_path / "out").read_bytes() == b"python\nC\nbehind\n"
    assert recorded(chiplog_dir, 2) == [(1, "python"), (1, "C")]
    assert notices(chiplog_dir, "console_lost") == []


@pytest.mark.parametrize("target", ["file", "pipe", "terminal"])
def test_a_rank_that_prints_much_before_its_helper_is_there_goes_on_and_every_line_is_told_once(
    chiplog_dir, tmp_path, target
) -> None:
    """The helper starts after the rank has printed six times the capacity of a pipe. Only one stream is a terminal."""
    late, flag = tmp_path / "late.sh", tmp_path / "printed"
    late.write_text(f'#!/bin/sh\nwhile ! test -e {flag}; do sleep 0.05; done; exec {sys.executable} "$@"\n')
    late.chmod(0o755)
    body = f"""
    signal.alarm(30)  # ends a rank that waits forever
    own, sys.executable = sys.executable, {str(late)!r}
    run = init()
    sys.executable = own
    for n in range(2500):
        print(n, "x" * 600)
        if {target != "terminal"}: print("e", n, "y" * 200, file=sys.stderr)
    print("one line", end=" ", flush=True)
    assert not run._console.helper
    open({str(flag)!r}, "w").close()
    helper_of(run)
    print("in two parts")
    """
    out = [*(f"{n} {'x' * 600}" for n in range(2500)), "one line in two parts"]
    err = [f"e {n} {'y' * 200}" for n in range(2500)] if target != "terminal" else []
    command = [sys.executable, "-W", "error", script(tmp_path, body)]
    if target == "terminal":
        assert on_terminal(command).decode().splitlines() == out
    elif target == "pipe":
        done = subprocess.run(command, capture_output=True, timeout=WAIT_S)
        assert done.returncode == 0
        assert (done.stdout.decode().splitlines(), done.stderr.decode().splitlines()) == (out, err)
    else:
        shown = tmp_path / "out", tmp_path / "err"
        with shown[0].open("ab") as to_out, shown[1].open("wb") as to_err:
            assert subprocess.run(command, stdout=to_out, stderr=to_err, timeout=WAIT_S).returncode == 0
        wait_until(lambda: [path.read_text().splitlines() for path in shown] == [out, err], "all lines in the files")
    wait_until(lambda: any(line.endswith("parts") for _, line in recorded(chiplog_dir, 1)), "the last line")
    found = recorded(chiplog_dir, 1)
    assert notices(chiplog_dir, "console_lost") == []
    if target != "terminal":  # of whose lines whole chunks are taken
        assert [line for stream, line in found if stream == 1] == out
        assert [line for stream, line in found if stream == 2] == err
    assert "".join(line for stream, line in found if stream == 1) == "".join(out)


def test_a_reader_that_leaves_ends_the_training_as_it_would_without_us(chiplog_dir, tmp_path) -> None:
    body = """
    run = init()
    try:
        while True: print("y" * 100)
    except BrokenPipeError:
        os.write(2, b"EPIPE\\n")
        os._exit(5)
    """
    training = subprocess.Popen(
        [sys.executable, script(tmp_path, body)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert training.stdout is not None
    assert training.stderr is not None
    try:
        assert training.stdout.readline() == b"y" * 100 + b"\n"
        training.stdout.close()
        assert training.wait(WAIT_S) == 5
        assert training.stderr.read() == b"EPIPE\n"
    finally:
        training.kill()  # without EPIPE it would print forever
        training.wait()
        training.stderr.close()


def test_children_print_on_into_their_parents_lines(chiplog_dir, tmp_path) -> None:
    body = """
    import multiprocessing
    def work(how): print("worker", how, flush=True)
    if __name__ == "__main__":
        run = init()
        for how in ("fork", "spawn", "forkserver"):
            process = multiprocessing.get_context(how).Process(target=work, args=(how,))
            process.start()
            process.join()
        child = subprocess.Popen(["sh", "-c", "read go; echo late"], stdin=subprocess.PIPE)
        run.finish()
        child.communicate(b"go\\n")
    """
    done = run_script(tmp_path, body)
    assert done.stdout == b"worker fork\nworker spawn\nworker forkserver\nlate\n"
    assert (done.returncode, done.stderr) == (0, b"")
    assert recorded(chiplog_dir, 3) == [(1, "worker fork"), (1, "worker spawn"), (1, "worker forkserver")]


def test_a_forked_child_that_calls_init_has_its_lines_to_itself(chiplog_dir, tmp_path) -> None:
    body = """
    run = init()
    print("parent")
    if not os.fork():
        own = init(label="child")
        print("child")
        own.finish()
        os._exit(0)
    os.wait()
    print("parent again")
    """
    done = run_script(tmp_path, body)
    assert sorted(done.stdout.splitlines()) == [b"child", b"parent", b"parent again"]
    wait_until(lambda: len(_all(chiplog_dir)) == 3, "three lines")
    events = read_events(chiplog_dir / "offline")
    labels = {e.producer.hex(): e.fields["identity"].get("label") for e in events if e.kind == EventKind.IDENTITY}
    of = {e.producer: e.fields["identity"].get("of") for e in events if e.kind == EventKind.IDENTITY}
    lines = {(labels[of[e.producer]], e.fields["line"]) for e in events if e.kind == EventKind.CONSOLE}
    assert lines == {("a", "parent"), ("a", "parent again"), ("child", "child")}


def test_several_runs_of_one_process_each_have_their_lines_and_leave_no_descriptor(chiplog_dir, tmp_path) -> None:
    body = """
    import gc, glob
    before = None
    for number in range(3):
        run = init(label=f"a{number}")
        print("run", number)
        run.finish()
        gc.collect()
        count = len(glob.glob("/proc/self/fd/*"))
        assert before in (None, count), (before, count)
        before = count
        assert not sys.stdout.line_buffering
    try: print(os.wait())
    except ChildProcessError: print("no children")
    """
    done = run_script(tmp_path, body)
    assert done.stdout == b"run 0\nrun 1\nrun 2\nno children\n", done.stderr
    wait_until(lambda: len(_all(chiplog_dir)) == 3, "three lines")
    assert [line for _, line in sorted(_all(chiplog_dir))] == ["run 0", "run 1", "run 2"]


def _all(chiplog_dir: Path) -> list[tuple[int, str]]:
    events = read_events(chiplog_dir / "offline")
    return [(e.ts, e.fields["line"]) for e in events if e.kind == EventKind.CONSOLE]


@pytest.mark.parametrize("closed", ["1", "2", "0"])
def test_a_process_that_began_with_a_closed_stream_runs(chiplog_dir, tmp_path, closed) -> None:
    path = script(tmp_path, "run = init()\nos.system('echo one; echo two >&2')\nrun.finish()\n")
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" "$1" {closed}>&-', sys.executable, path], capture_output=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    assert (b"one\n" if closed != "1" else b"") == done.stdout
    assert (b"two\n" in done.stderr) == (closed != "2")


def test_a_file_that_is_appended_to_gets_every_byte(chiplog_dir, tmp_path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("before\n")
    path = script(tmp_path, "run = init()\nfor n in range(3000): print(n)\nprint('e', file=sys.stderr)\n")
    with open(target, "ab") as file:
        assert subprocess.run([sys.executable, path], stdout=file, stderr=file, timeout=WAIT_S).returncode == 0
    expected = sorted(["before", "e", *map(str, range(3000))])
    wait_until(lambda: sorted(target.read_text().splitlines()) == expected, "all lines in the file")


TERMINAL = """
{start}
helper = helper_of(run) if {captured} else 0
print([os.isatty(n) for n in range(3)], os.get_terminal_size(1), os.get_terminal_size(2))
sys.stdout.write("bar 10%\\r"); sys.stdout.flush(); time.sleep(0.05)
sys.stdout.write("bar 100%\\n"); time.sleep(0.05)
os.write(2, b"\\xff\\t\\x1b[32mgreen\\x1b[0m\\r\\n"); time.sleep(0.05)
subprocess.run(["sh", "-c", "test -t 1 && echo a terminal"])
time.sleep(0.05)
print("you said", input("say: "))
while os.get_terminal_size(1).columns != 91: time.sleep(0.01)
print("resized")
"""


def on_terminal(command: list[str]) -> bytes:
    """Run a command on a terminal of 80 by 24 that becomes 91 wide, answer its question, and return its output."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    shown = b""
    answered = False
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.1)[0]:
            try:
                shown += os.read(master, 4096)
            except OSError:
                break  # the last one has closed it
        if b"say: " in shown and not answered:
            answered = True
            os.write(master, b"hello\n")
        if b"you said" in shown:
            ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 91, 0, 0))
    os.close(master)
    assert process.wait(WAIT_S) == 0, shown
    return shown


def test_a_terminal_shows_the_same_bytes_with_and_without_us(chiplog_dir, tmp_path) -> None:
    bare = script(tmp_path, TERMINAL.format(start="run = None", captured=False), "bare.py")
    ours = script(tmp_path, TERMINAL.format(start="run = init()", captured=True), "ours.py")
    without, within = on_terminal([sys.executable, bare]), on_terminal([sys.executable, ours])
    assert within == without
    assert b"[True, True, True] os.terminal_size(columns=80, lines=24)" in within
    assert b"a terminal" in within
    wait_until(lambda: (1, "resized") in recorded(chiplog_dir, 1), "the last line")
    lines = recorded(chiplog_dir, 1)
    assert (1, "bar 100%") in lines
    assert (2, "\udcff\t\x1b[32mgreen\x1b[0m") in lines


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
    wait_until(lambda: len(_all(chiplog_dir)) == 3, "three lines")
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


def test_what_c_code_prints_is_followed_by_label_while_the_run_goes_on(node, tmp_path) -> None:
    """A helper is killed and replaced: the new one's lines continue where those of the old one ended."""
    body = """
    run = init(mode="online", label="rank3")
    libc.puts(b"one"); libc.fflush(None)
    sys.stdin.readline()
    victim = helper_of(run)
    os.kill(victim, signal.SIGKILL)
    while run._console.helper in (0, victim): time.sleep(0.01)
    libc.puts(b"two"); libc.fflush(None)
    sys.stdin.readline()
    os.write(1, b"three\\n")
    os.abort()
    """
    environment = {**os.environ, "CHIPLOG_DIR": str(node.root), "CHIPLOG_AGENT": node.place.agent_address}
    training = subprocess.Popen(
        [sys.executable, script(tmp_path, body)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert training.stdin is not None
    lines = "SELECT stream, line FROM console WHERE run_id = 'r' AND label = 'rank3' ORDER BY line_no"
    follow = None
    try:
        node.until(lines, lambda rows: rows[-1]["line"] == "one")
        command = [sys.executable, "-P", "-m", "chiplog.cli", "logs", "r", "--label", "rank3", "--follow"]
        follow = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        assert follow.stdout is not None
        training.stdin.write(b"\n")
        training.stdin.flush()
        node.until(lines, lambda rows: rows[-1]["line"] == "two")
        training.stdin.write(b"\n")
        training.stdin.close()
        assert training.wait(WAIT_S) == -signal.SIGABRT
        told = follow.communicate(timeout=WAIT_S)[0].decode().splitlines()
    finally:
        for process in filter(None, (training, follow)):
            if process.poll() is None:
                process.kill()
            process.wait()
    assert told == ["one", "two", "three"]
    rows = node.sql("SELECT label, attempt, state FROM labels")
    assert rows == [{"label": "rank3", "attempt": 0, "state": "crashed"}], "helpers are no attempts"
    node.until("SELECT * FROM events WHERE kind = 'console_helper'")
    (row,) = node.until("SELECT * FROM completeness", lambda rows: rows[0]["pending"] == 0)
    assert row["produced"] == row["stored"] + row["lost"]
