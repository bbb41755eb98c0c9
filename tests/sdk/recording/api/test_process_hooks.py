"""How a process ends is how its run ends: by sys.exit, by an exception, or by the end of its program."""

import subprocess
import sys

import pytest

from chiplog_schemas.model.events import EventKind
from tests.support.marks import everyday
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

EXITS = """
import sys
import chiplog
def train():
    with chiplog.init(mode="offline", capture_console=False) as run:
        run.log({"x": 1.0})
        EXIT
if INSIDE:
    train()
chiplog.init(mode="offline", run_id="outside", capture_console=False).log({"x": 1.0})
EXIT
"""


@pytest.mark.parametrize("inside", everyday(1, [True, False]))
@pytest.mark.parametrize(
    ("leave", "state", "code", "reason"),
    [
        ("sys.exit(0)", "finished", 0, None),
        ("sys.exit()", "finished", 0, None),
        ("sys.exit(3)", "failed", 3, "SystemExit: 3"),
        ("sys.exit('no data')", "failed", 1, "SystemExit: no data"),
        ("raise KeyboardInterrupt", "failed", 1, "KeyboardInterrupt"),
    ],
)
def test_the_end_by_sys_exit_is_the_end_of_the_run(chiplog_dir, offline, inside, leave, state, code, reason) -> None:
    script = EXITS.replace("EXIT", leave).replace("INSIDE", str(inside))
    subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=WAIT_S, check=False)
    [event] = offline(EventKind.STATE)
    found = event.fields["state"]
    assert (found["state"], found["exit_code"], found.get("reason")) == (state, code, reason)


STARTS_THREADS_AT_ITS_END = """
import chiplog
from chiplog.safety.background_threads import start_thread
run = chiplog.init(mode="offline", capture_console=False)
start_thread(str, name="earlier")
finish = type(run).finish
def and_ask(self):
    print(start_thread(str, name="later"))
    finish(self)
type(run).finish = and_ask
"""


@proves("runs-end-before-the-exit-waits", "the end of a run can start threads, as to agree on a run ID")
def test_the_end_of_a_run_at_the_exit_can_start_threads(chiplog_dir) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTS_THREADS_AT_ITS_END], capture_output=True, timeout=WAIT_S, check=True, text=True
    )
    may_start = sys.version_info < (3, 12)  # later ones start none at the exit
    assert done.stdout == f"{may_start}\n", done.stderr


KEEPS = """
import multiprocessing, os, sys
import chiplog
kept = []
def train(again=False):
    try:
        sys.exit(3)
    except SystemExit as error:
        kept.append(error)
        if again: raise
def drop():
    try:
        sys.exit(3)
    except SystemExit:
        pass
def child(again):
    chiplog.init(mode="offline", run_id="child", capture_console=False).log({"x": 1.0})
    train(again)
chiplog.init(mode="offline", run_id="r", capture_console=False).log({"x": 1.0})
"""


CHILD = "p = multiprocessing.get_context('fork').Process(target=child, args=({},)); p.start(); p.join()"


@proves("caught-exit-is-no-end", "a sys.exit() that was caught is no end", condition=False)
@proves("kept-exit-is-no-end", "a caught sys.exit() whose exception is kept does not end the run", value="is_seen")
@pytest.mark.parametrize(
    ("how", "end", "ends"),
    everyday(
        3,
        [
            ("script", "train()", {"r": 0}),
            ("script", "train(again=True)", {"r": 3}),
            ("script", "train(); sys.exit(4)", {"r": 4}),
            ("script", "train(); 1 / 0", {"r": 1}),
            ("script", "drop(); raise SystemExit", {}),  # the exit status shows the reason, because no hook sees this
            ("script", CHILD.format(False), {"r": 0, "child": 0}),
            ("script", CHILD.format(True), {"r": 0, "child": 3}),
            ("-m", "train()", {"r": 0}),
            ("-m", "train(again=True)", {"r": 3}),
            ("-c", "train()", {"r": 0}),
            ("-i", "train()", {"r": 0}),
            ("-i", "train(again=True)", {"r": 3}),
        ],
    ),
)
def test_a_sys_exit_that_somebody_caught_or_keeps_is_no_end(chiplog_dir, tmp_path, offline, how, end, ends) -> None:
    (tmp_path / "train.py").write_text(KEEPS + (end if how != "-i" else "") + "\n")
    command = {"script": ["train.py"], "-m": ["-m", "train"], "-c": ["-c", KEEPS + end], "-i": ["-i", "train.py"]}[how]
    typed = {"input": f"{end}\n", "text": True}
    subprocess.run([sys.executable, *command], **typed, capture_output=True, timeout=WAIT_S, cwd=tmp_path)
    runs = {event.producer: event.fields["identity"]["run_id"] for event in offline(EventKind.IDENTITY)}
    found = {runs[event.producer]: event.fields["state"]["exit_code"] for event in offline(EventKind.STATE)}
    assert found == ends


REPLACES = """
import sys, threading
import chiplog
chiplog.init(mode="offline", capture_console=False).finish()
before, before_in_threads = sys.excepthook, threading.excepthook
def hook(*given):
    print("hook", flush=True)
    CALLS and before(*given)
def thread_hook(given):
    print("thread hook", flush=True)
    CALLS and before_in_threads(given)
sys.excepthook, threading.excepthook = hook, thread_hook
chiplog.init(mode="offline", run_id="r", capture_console=False).log({"x": 1.0})
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise ValueError("of the script")
"""


@pytest.mark.parametrize("calls_the_former", [True, False])
def test_an_exception_is_noted_once_and_reaches_the_hooks_that_came_before_init(
    chiplog_dir, offline, calls_the_former
) -> None:
    script = REPLACES.replace("CALLS", str(calls_the_former))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.stdout == "thread hook\nhook\n"
    assert done.stderr.count("ZeroDivisionError: ") == done.stderr.count("ValueError: ") == calls_the_former
    [state] = [e.fields["state"] for e in offline(EventKind.STATE) if e.fields["state"].get("exit_code") != 0]
    assert (state.get("exit_code"), state.get("reason")) == (1, "ValueError: of the script")
    notices = [e.fields["notice"] for e in offline(EventKind.NOTICE)]
    assert (notices.count("thread_failed"), notices.count("traceback")) == (1, 1)


# A collection of garbage at each of the next allocations in turn: what is freed takes the lock of Python's threads.
COLLECTING = """
import gc, sys, threading
import chiplog
from chiplog.recording.api import process_hooks
chiplog.init(mode="offline", capture_console=False)
class Cycle: pass
def leave():
    try: sys.exit(0)
    except SystemExit: pass
def in_thread():
    thread = threading.Thread(target=lambda: with_garbage(process_hooks._remember_main_frame))
    thread.start()
    thread.join()
def with_garbage(call):
    gc.collect(); gc.disable()
    cycle = Cycle(); cycle.own = cycle; cycle.local = threading.local(); cycle.local.x = 1; del cycle
    gc.set_threshold(n); gc.enable()
    call()
for n in range(1, 40):
    with_garbage(leave)
    in_thread()
"""


def test_a_garbage_collection_amid_the_hook_does_not_block_the_process(chiplog_dir) -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")
