"""Streams replaced by pipes: helpers that are killed, stopped, late or absent cost a training nothing."""

import os
import subprocess
import sys
import time

import pytest

from chiplog.console.lines import truncate
from chiplog.console.relay import CHUNK_BYTES
from chiplog_schemas.model.events import EventKind
from tests.support.console import notices, on_terminal, recorded, run_script, script, timed_lines
from tests.support.journals import read_events
from tests.support.marks import everyday
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

KILLED = """
run = init()
for number in range(2):
    for n in range(4_000): os.write(1, b"%d %d\\n" % (number, n))
    if not number:
        victim = helper_of(run)
        os.kill(victim, signal.SIGKILL)
        if {waits}:
            while run._console.capture.helper in (0, victim): time.sleep(0.01)  # the next one
print("done")
"""


@proves("killed-helper-replaced", "a helper that is killed is replaced")
@proves("killed-helper-declared", "what a killed helper may have lost is a row")
@pytest.mark.parametrize("waits", everyday(1, [True, False]), ids=["after its end", "while bytes wait"])
def test_a_helper_that_is_killed_costs_one_chunk_at_most_and_is_declared(chiplog_dir, tmp_path, waits) -> None:
    done = run_script(tmp_path, KILLED.format(waits=waits))
    written = b"".join(b"%d %d\n" % (number, n) for number in range(2) for n in range(4_000)) + b"done\n"
    assert (done.returncode, done.stderr) == (0, b"")
    n_lost = len(written) - len(done.stdout)
    n_first = next((n for n, byte in enumerate(done.stdout) if byte != written[n]), len(done.stdout))
    assert 0 <= n_lost <= CHUNK_BYTES
    assert done.stdout[n_first:] == written[n_first + n_lost :], "what is missing is in one place"
    wait_until(lambda: (1, "done") in recorded(chiplog_dir, 1), "the last line")
    lines = [line for _, line in recorded(chiplog_dir, 1)]
    assert len(set(lines)) == len(lines), "no line is recorded twice"
    assert notices(chiplog_dir, "console_lost")[0] == {"bytes": CHUNK_BYTES}


@proves("stopped-helper-ended", "a helper that is stopped is ended")
def test_a_helper_that_is_stopped_does_not_stop_the_training(chiplog_dir, tmp_path) -> None:
    body = """
    import chiplog.console.redirect
    chiplog.console.redirect._STOPPED_S = 1.0
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
    chiplog.console.redirect._STOPPED_S = 0.3
    run = init()
    first = helper_of(run)
    mine = os.open({str(tmp_path / "mine")!r}, os.O_WRONLY | os.O_CREAT)
    os.dup2(mine, 1)
    time.sleep(1)
    print("to my file")
    print("captured", file=sys.stderr)
    assert run._console.capture.helper == first
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
    for _ in range(2):
        victim = helper_of(run)
        os.kill(victim, signal.SIGKILL)
        while run._console.capture.helper == victim: time.sleep(0.01)
    child = subprocess.Popen(["sh", "-c", "echo from a child; cat"], stdin=subprocess.PIPE)
    while run._console.capture._console is None: time.sleep(0.01)
    print("python continues")
    os.write(1, b"C is only shown\\n")
    child.communicate()
    """
    done = run_script(tmp_path, body)
    assert sorted(done.stdout.splitlines()) == [b"C is only shown", b"from a child", b"python continues"]
    assert b"the console is captured only as far as Python prints" in done.stderr
    assert (1, "python continues") in recorded(chiplog_dir, 1)
    assert done.returncode == 0


@proves(
    "late-helper-loses-no-line",
    "what a short process printed is shown and recorded though its helper is late",
    part=" or self._relay_lock.acquire()",
)
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


@proves("printing-waits-for-no-helper", "a rank that prints much before its helper is ready continues", condition=False)
@proves(
    "begun-line-handed-over",
    "a line that the rank began to record is one row, also if the helper records its end",
    new="pass",
)
@pytest.mark.parametrize("target", everyday(2, ["file", "pipe", "terminal"]))
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
    print("z" * 1_000_000, end=" ", flush=True)
    assert not run._console.capture.helper
    open({str(flag)!r}, "w").close()
    helper_of(run)
    print("in two parts")
    """
    out = [*(f"{n} {'x' * 600}" for n in range(2500)), "z" * 1_000_000 + " in two parts"]
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
    wait_until(lambda: any("z" in line for _, line in recorded(chiplog_dir, 1)), "the last line")
    found = recorded(chiplog_dir, 1)
    assert notices(chiplog_dir, "console_lost") == []
    assert [line for stream, line in found if stream == 1] == [*out[:-1], truncate(out[-1])]
    assert [line for stream, line in found if stream == 2] == err


@proves("training-meets-epipe", "a training whose reader has gone meets EPIPE")
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


@pytest.mark.full
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
    wait_until(lambda: len(timed_lines(chiplog_dir)) == 3, "three lines")
    events = read_events(chiplog_dir / "offline")
    labels = {e.producer.hex(): e.fields["identity"].get("label") for e in events if e.kind == EventKind.IDENTITY}
    of = {e.producer: e.fields["identity"].get("of") for e in events if e.kind == EventKind.IDENTITY}
    # A run whose helper is late for finish() records the lines itself.
    runs = {producer: run or producer.hex() for producer, run in of.items()}
    lines = {(labels[runs[e.producer]], e.fields["line"]) for e in events if e.kind == EventKind.CONSOLE}
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
    wait_until(lambda: len(timed_lines(chiplog_dir)) == 3, "three lines")
    assert [line for _, line in sorted(timed_lines(chiplog_dir))] == ["run 0", "run 1", "run 2"]


@pytest.mark.parametrize("closed", ["1", "2", "0"])
def test_a_process_that_began_with_a_closed_stream_runs(chiplog_dir, tmp_path, closed) -> None:
    path = script(tmp_path, "run = init()\nos.system('echo one; echo two >&2')\nrun.finish()\n")
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" "$1" {closed}>&-', sys.executable, path], capture_output=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    assert (b"one\n" if closed != "1" else b"") == done.stdout
    assert (b"two\n" in done.stderr) == (closed != "2")


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
