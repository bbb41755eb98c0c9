"""fork, spawn and forkserver: children log as separate producers and never touch their parent's files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import chiplog
from chiplog_schemas.model.events import EventKind
from tests.support.forks import FORKS
from tests.support.marks import everyday
from tests.support.safeguard import proves
from tests.support.scripts import run_script
from tests.support.sdk_events import by_label, numbers, values
from tests.support.waiting import WAIT_S, wait_until


def test_a_forked_child_logs_into_the_same_run_under_a_label_of_its_own(chiplog_dir, offline) -> None:
    run_script("""
run = chiplog.init(mode="offline", run_id="r", label="main")
run.log({"parent": 1.0}, step=0)
pid = os.fork()
if not pid:
    run.log({"child": 1.0}, step=0)
    run.finish()
    os._exit(0)
os.waitpid(pid, 0)
run.log({"parent": 2.0}, step=1)
run.finish()
""")
    labels = by_label(offline())
    assert values(labels.pop("main"), "parent") == [(0, 1.0), (1, 2.0)]
    [(label, child)] = labels.items()
    assert label.startswith("main.")
    assert values(child, "child") == [(0, 1.0)]
    identity = child[0].fields["identity"]
    assert (identity["run_id"], identity["primary"]) == ("r", False)
    assert identity["pid"] == int(label.removeprefix("main."))
    assert child[-1].kind == EventKind.STATE


def test_a_forked_child_has_a_summary_of_its_own(chiplog_dir) -> None:
    shown = run_script("""
run = chiplog.init(mode="offline", run_id="r", label="main")
run.log({"loss": 1.0, "lr": 0.5})
run.log({"loss": 2.0, "lr": 0.5})
pid = os.fork()
if not pid:
    before = dict(run.summary)
    run.log({"loss": 3.0, "lr": 0.5})
    run.log({"loss": 4.0, "lr": 0.5})
    print(before, dict(run.summary), flush=True)
    run.finish()
    os._exit(0)
os.waitpid(pid, 0)
print(dict(run.summary))
run.finish()
""")
    assert shown.splitlines() == ["{} {'loss': 4.0, 'lr': 0.5}", "{'loss': 2.0, 'lr': 0.5}"]


@proves("fork-detaches-journal", "a child of multiprocessing that inherits the run finishes it")
def test_children_of_multiprocessing_that_inherit_the_run_log_and_finish(chiplog_dir, offline) -> None:
    run_script("""
run = chiplog.init(mode="offline", run_id="r", label="main")
context = multiprocessing.get_context("fork")
children = [context.Process(target=child, args=(number,)) for number in range(3)]
for process in children: process.start()
for step in range(50): run.log({"parent": step}, step=step)
for process in children: process.join()
""")
    labels = by_label(offline())
    assert values(labels.pop("main"), "parent") == [(step, float(step)) for step in range(50)]
    assert len(labels) == 3
    assert sorted(values(events, "child")[0][1] for events in labels.values()) == [0.0, 1.0, 2.0]
    for events in labels.values():
        assert len(values(events, "child")) == 20
        assert events[-1].kind == EventKind.STATE


@pytest.mark.parametrize("method", everyday(2, ["fork", "spawn", "forkserver"]))
def test_a_child_that_calls_init_joins_the_run_of_its_parent(chiplog_dir, offline, method) -> None:
    run_script(f"""
run = chiplog.init(mode="offline", run_id="r", label="main")
context = multiprocessing.get_context({method!r})
children = [context.Process(target=joining, args=(number,)) for number in range(2)]
for process in children: process.start()
for process in children: process.join()
run.log({{"parent": 1.0}}, step=0)
""")
    labels = by_label(offline())
    assert set(labels) == {"main", "child0", "child1"}
    for number in range(2):
        events = labels[f"child{number}"]
        assert values(events, "child") == [(0, float(number))]
        identity = events[0].fields["identity"]
        assert (identity["run_id"], identity["primary"]) == ("r", False)
        assert [event.kind for event in events].count(EventKind.STATE) == 1


@pytest.mark.parametrize("method", everyday(1, ["fork", "spawn"]))
def test_a_child_of_a_rank_does_not_take_its_label_and_place(chiplog_dir, offline, monkeypatch, method) -> None:
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    run_script(f"""
run = chiplog.init(mode="offline", run_id="r")
process = multiprocessing.get_context({method!r}).Process(target=nameless, args=(0,))
process.start()
process.join()
run.finish()
run = chiplog.init(mode="offline", run_id="again")
""")
    identities = [event.fields["identity"] for event in offline(EventKind.IDENTITY)]
    told = {(identity["run_id"], identity["label"]): identity for identity in identities}
    [(_, label)] = told.keys() - {("r", "rank0"), ("again", "rank0")}
    child = told["r", label]
    assert label == f"rank0.{child['pid']}"
    assert (child["primary"], child.get("rank")) == (False, None)
    assert told["again", "rank0"]["primary"]


@pytest.mark.parametrize("method", everyday(1, ["fork", "spawn", "forkserver"]))
def test_children_that_do_not_log_open_nothing(chiplog_dir, offline, method) -> None:
    out = run_script(f"""
run = chiplog.init(mode="offline", run_id="r", label="main")
with multiprocessing.get_context({method!r}).Pool(2) as pool:
    print(pool.map(silent, range(4)))
run.log({{"parent": 1.0}}, step=0)
""")
    assert out == "[0, 2, 4, 6]\n"
    assert set(by_label(offline())) == {"main"}


def test_workers_of_a_dataloader_double_nothing(chiplog_dir, offline) -> None:
    run_script("""
from torch.utils.data import DataLoader
run = chiplog.init(mode="offline", run_id="r", label="main")
for step, batch in enumerate(DataLoader(list(range(8)), num_workers=2, multiprocessing_context="fork")):
    run.log({"batch": float(batch)}, step=step)
""")
    labels = by_label(offline())
    assert set(labels) == {"main"}
    assert values(labels["main"], "batch") == [(step, float(step)) for step in range(8)]


def test_what_a_forked_child_prints_is_its_parents(chiplog_dir, offline) -> None:
    out = run_script("""
run = chiplog.init(mode="offline", run_id="r", label="main")
print("parent", flush=True)
pid = os.fork()
if not pid:
    print("child", flush=True)
    os._exit(0)
os.waitpid(pid, 0)
""")
    assert out == "parent\nchild\n"
    wait_until(lambda: [e.fields["line"] for e in offline(EventKind.CONSOLE)] == ["parent", "child"], "both lines")


def test_a_killed_child_leaves_the_parents_journal_whole(chiplog_dir, offline) -> None:
    run_script("""
run = chiplog.init(mode="offline", run_id="r", label="main")
pids = []
for number in range(3):
    pid = os.fork()
    if not pid:
        for step in range(1000): run.log({"child": number}, step=step)
        os.kill(os.getpid(), signal.SIGKILL)
    pids.append(pid)
for step in range(2000): run.log({"parent": step}, step=step)
for pid in pids: os.waitpid(pid, 0)
run.log({"parent": 2000}, step=2000)
""")
    labels = by_label(offline())
    assert values(labels.pop("main"), "parent") == [(step, float(step)) for step in range(2001)]
    assert sorted(values(events, "child")[-1] for events in labels.values()) == [(999, 0.0), (999, 1.0), (999, 2.0)]


def test_the_parents_lock_is_not_released_by_its_children(chiplog_dir) -> None:
    """A process that gets a journal's lock assumes that its owner is dead."""
    from chiplog_schemas.process.file_lock import lock_holder_pid

    run = chiplog.init(mode="offline", capture_console=False)
    lock = run._journal.directory / "lock"
    ask = [
        sys.executable,
        "-c",
        f"from chiplog_schemas.process.file_lock import *; print(lock_holder_pid(Path({str(lock)!r})))",
    ]
    pid = os.fork()
    if not pid:
        os._exit(0)  # closes every descriptor that it inherited
    os.waitpid(pid, 0)
    done = subprocess.run(ask, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert int(done.stdout) == os.getpid()
    assert lock_holder_pid(chiplog_dir / "no such lock") == 0
    run.finish()


def test_a_fork_while_another_thread_logs_gives_a_child_that_can_log(chiplog_dir, offline) -> None:
    out = run_script("""
import threading
run = chiplog.init(mode="offline", run_id="r", label="main", capture_console=False)
stop = threading.Event()
def busy():
    while not stop.is_set(): run.log({"busy": 1.0})
thread = threading.Thread(target=busy)
thread.start()
pids = []
for _ in range(20):
    pid = os.fork()
    if not pid:
        signal.alarm(30)
        run.log({"child": 1.0}, step=0)
        run.finish()
        os._exit(0)
    pids.append(pid)
codes = [os.waitpid(pid, 0)[1] for pid in pids]
stop.set()
thread.join()
print(codes)
""")
    assert out == f"{[0] * 20}\n"
    labels = by_label(offline())
    assert len(labels) == 21
    labels.pop("main")
    assert all(values(events, "child") == [(0, 1.0)] for events in labels.values())


def test_threads_that_speak_first_in_a_child_share_one_journal_and_label(chiplog_dir, offline) -> None:
    run_script("""
import threading
run = chiplog.init(mode="offline", run_id="r", label="main", capture_console=False)
for _ in range(4):
    pid = os.fork()
    if not pid:
        barrier = threading.Barrier(8)
        def speak(number):
            barrier.wait()
            run.log({"child": number}, step=number)
        threads = [threading.Thread(target=speak, args=(number,)) for number in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        run.finish()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
""")
    labels = by_label(offline())
    labels.pop("main")
    assert sorted(labels) == sorted(f"main.{events[0].fields['identity']['pid']}" for events in labels.values())
    assert len(labels) == 4
    for events in labels.values():
        assert sorted(values(events, "child")) == [(number, float(number)) for number in range(8)]


def test_what_a_signal_handler_says_while_a_childs_journal_is_being_opened_comes_into_that_journal(
    chiplog_dir, offline
) -> None:
    """A profile function is called where a handler may run: in the middle of the opening."""
    run_script("""
run = chiplog.init(mode="offline", run_id="r", label="main", capture_console=False)
def interrupt(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "open_journal":
        sys.setprofile(None)
        run.log({"child": 1.0}, step=1)
pid = os.fork()
if not pid:
    sys.setprofile(interrupt)
    run.log({"child": 0.0}, step=0)
    run.finish()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
""")
    labels = by_label(offline())
    labels.pop("main")
    [(label, events)] = labels.items()
    assert label == f"main.{events[0].fields['identity']['pid']}"
    assert sorted(values(events, "child")) == [(0, 0.0), (1, 1.0)]


def test_a_forked_child_knows_that_it_is_not_its_parent_before_its_first_word(chiplog_dir, offline) -> None:
    """Nor is a child of a child that said nothing that one's: it is its first speaking parent's."""
    out = run_script("""
run = chiplog.init(mode="offline", run_id="r", label="main", capture_console=False, config={"lr": 1})
pid = os.fork()
if not pid:
    print(run.label == f"main.{os.getpid()}", run.is_primary, run.rank, flush=True)
    pid = os.fork()
    if not pid:
        print(run.label == f"main.{os.getpid()}", flush=True)
        run.log({"child": 1.0}, step=0)
        run.finish()
        os._exit(0)
    os._exit(os.waitpid(pid, 0)[1])
assert os.waitpid(pid, 0)[1] == 0
assert (run.label, run.is_primary) == ("main", True)
""")
    assert out == "True False None\nTrue\n"
    labels = by_label(offline())
    assert len(labels) == 2
    assert not labels[max(labels)][0].fields["identity"]["primary"]


def test_a_forked_child_of_the_primary_is_refused_a_file_aloud(chiplog_dir, offline) -> None:
    out = run_script("""
import logging
logging.getLogger("chiplog").addHandler(logging.NullHandler())
run = chiplog.init(mode="offline", run_id="r", label="main", capture_console=False)
pid = os.fork()
if not pid:
    print(run.save(__file__), dict(run._diagnostics.counts), flush=True)
    run.finish()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
""")
    assert out == "[] {'save_not_primary': 1}\n"
    assert not offline(EventKind.FILE)


# The hook is there before chiplog's own, and even before that of threading.
EARLY = """
import os, signal, sys
logs_in_hook = False
def hook():
    signal.alarm(60)  # a child that waits ends, and its exit status shows it
    if logs_in_hook:
        if logs_in_hook == "signal": os.kill(os.getpid(), signal.SIGUSR1)
        else: run.log({"child": 1.0}, step=1)
os.register_at_fork(after_in_child=hook)
import threading
import chiplog
from tests.support.forks import FORKS
run = chiplog.init(mode="offline", run_id="r", label="main", capture_console=False)
"""

WAYS = """
signal.signal(signal.SIGUSR1, lambda number, frame: run.log({"child": 1.0}, step=1))
steps = iter(range(1_000_000))
def parent(count=3):
    for _ in range(count):
        step = next(steps)
        run.log({"parent": float(step)}, step=step)
def both(pid):
    if not pid:
        signal.alarm(60)
        sys.setprofile(None)
        run.log({"child": 2.0}, step=2)
        run.log({"child": 3.0})
        run.log({"text": "of the child"}, step=4)
        run.finish()
        os._exit(0)
    parent()
    found = os.waitpid(pid, 0)[1]
    assert found == 0, found
    parent()

for logs_in_hook in (True, "signal"):
    both(os.fork())
logs_in_hook = False

class Final:
    def __del__(self): run.log({"child": 1.0}, step=1)
def keep(local, event):
    local.final = Final()
    kept.set()
    event.wait()
kept, event = threading.Event(), threading.Event()
thread = threading.Thread(target=keep, args=(threading.local(), event))
thread.start()
kept.wait()
both(os.fork())
Final.__del__ = lambda self: None
event.set()
thread.join()

for fork in FORKS.values():
    both(fork())
    pid = fork()
    if not pid:  # ends as a script does, with the hooks of its exit
        signal.alarm(30)
        break
    both(fork())
    assert os.waitpid(pid, 0)[1] == 0

# In the middle of an append that needs a new segment: before it is made, and after.
run._journal.preallocate = lambda: None
for name, event in (("_put", "call"), ("_new_segment", "call"), ("_new_segment", "return")):
    if not pid: break
    forked = []
    def profile(frame, what, argument):
        if what == event and frame.f_code.co_name == name and not forked:
            forked.append(os.fork())
            if not forked[0]: signal.alarm(30)
    sys.setprofile(profile)
    while not forked:
        chiplog.log({"parent": float(step := next(steps)), **{f"k{n}": 1.0 for n in range(100)}}, step=step)
    sys.setprofile(None)
    both(forked[0])
if not pid:
    run.log({"child": 2.0}, step=2)
print(next(steps))
"""


@proves(
    "child-leaves-parents-journal",
    "a forked child writes nothing to the journal of its parent, whichever way it was forked",
    part=" or not self.is_own",
)
@proves("child-keeps-parents-segments", "a forked child removes no segment of its parent", condition=False)
@pytest.mark.parametrize("native", ["1", "0"])
def test_no_byte_of_a_child_is_in_its_parents_journal(chiplog_dir, offline, native) -> None:
    out = run_alone(EARLY + WAYS, CHIPLOG_NATIVE=native)
    labels = by_label(offline())
    main = labels.pop("main")
    steps = sorted(int(line) for line in out.splitlines())
    found = [(step, value) for key, step, value in numbers(main) if key == "parent"]
    assert found == [(step, float(step)) for step in range(steps[-1])]
    assert [e.fields["state"]["state"] for e in main if e.kind == EventKind.STATE] == ["finished"]
    assert not [e for e in main if e.kind in (EventKind.LOST, EventKind.TEXT)]
    n_early = n_in_append = 0
    for events in labels.values():
        found = values(events, "child")
        n_early += found[0] == (1, 1.0)
        in_append = [step for key, step, _ in numbers(events) if key == "parent"]
        n_in_append += len(in_append)
        assert len(in_append) <= 1, "only the call in whose middle it was forked"
        found = [entry for entry in found if entry[0] != 1]
        assert found in ([(2, 2.0), (3, 3.0)], [(2, 2.0)])
    assert n_early == 3
    assert n_in_append == 3
    assert len(labels) == 3 + 3 * len(FORKS) + 3


def run_alone(script: str, **environ: str) -> str:
    """Run a script that imports as little as possible before its first lines."""
    path = os.path.join(os.path.dirname(os.environ["CHIPLOG_DIR"]), "alone.py")
    with open(path, "w") as file:
        file.write(script)
    where = {"PYTHONPATH": os.pathsep.join((os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[3])))}
    done = subprocess.run(
        [sys.executable, path], env={**os.environ, **where, **environ}, capture_output=True, text=True, timeout=WAIT_S
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


LOCKED = """
def hold():
    with threading._active_limbo_lock:
        held.set()
        leave.wait()
held, leave = threading.Event(), threading.Event()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
for fork in FORKS.values():
    logs_in_hook = fork is os.fork
    pid = fork()
    if not pid:
        signal.alarm(60)
        run.log({"child": 2.0}, step=2)
        run.finish()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
leave.set()
thread.join()
"""


@proves(
    "early-child-starts-no-thread",
    "a forked child that logs before Python's own hooks starts no thread: a lock of threading may be held",
    condition=True,
)
def test_a_child_that_logs_while_a_lock_of_threading_is_held_does_not_wait(chiplog_dir, offline) -> None:
    run_alone(EARLY + LOCKED)
    labels = by_label(offline())
    labels.pop("main")
    assert [values(events, "child")[-1] for events in labels.values()] == [(2, 2.0)] * len(FORKS)
