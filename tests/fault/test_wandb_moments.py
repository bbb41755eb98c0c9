"""`wandb.init()` in a finalizer and in a signal handler, also while another `init()`, `log()` or `finish()` is running.

Invariant: what a `log()` that returned was given is stored once, and no call raises by itself. The oracle are files
that each script writes.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.node import Node
from tests.support.waiting import WAIT_S

N_ROUNDS = 12
HEAD = f"""
import gc, os, random, signal, sys
import chiplog.integrations.wandb as wandb

N_ROUNDS = {N_ROUNDS}
file = os.open("returned", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
numbers = iter(range(1_000_000))

def log(key, more=None):
    number = next(numbers)
    wandb.log({{key: number, **(more or {{}})}})
    os.write(file, b"%s %d\\n" % (key.encode(), number))
"""
# Garbage of a cycle: the collector runs its finalizer in whichever call allocates next.
FINALIZER = (
    HEAD
    + """
class Late:
    def __init__(self):
        self.own = self

    def __del__(self):
        wandb.init(config={"late": True}, settings=wandb.Settings(console="off"))
        log("late")

gc.set_threshold(25)
for n in range(N_ROUNDS):
    garbage = [Late() for _ in range(3)]
    del garbage
    run = wandb.init(config={"n": n}, tags=["main"], settings=wandb.Settings(console="off"))
    for step in range(5):
        Late()
        log("main", {"text": "of a kind that W&B's rules are applied to"})
    Late()
    wandb.finish()
assert wandb.run is None or sys.argv[1:], wandb.run
last = Late() if sys.argv[1:] else None  # its finalizer runs when the interpreter ends
"""
)
HANDLER = (
    HEAD
    + """
class Alarm(Exception):
    pass

chooser = random.Random(int(sys.argv[1]))
n_ticks = n_raised = n_caught = 0
armed = is_over = False

def handler(number, frame):
    global n_ticks, n_raised, armed
    n_ticks += 1
    wandb.init(config={"tick": n_ticks}, settings=wandb.Settings(console="off"))
    log("tick")
    if is_over:  # an alarm that came before the timer was stopped
        return
    signal.setitimer(signal.ITIMER_REAL, chooser.uniform(1e-5, 2e-3))
    if armed and n_ticks % 3 == 0:
        armed = False
        n_raised += 1
        raise Alarm()

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001)
while n_ticks < 40 * N_ROUNDS:
    try:
        armed = True
        wandb.init(config={"n": n_ticks}, tags=["main"], settings=wandb.Settings(console="off"))
        for step in range(5):
            log("main", {"text": "of a kind that W&B's rules are applied to"})
        wandb.finish()
        armed = False
    except Alarm:
        n_caught += 1
is_over = True
signal.setitimer(signal.ITIMER_REAL, 0)
wandb.finish()
print(n_raised, n_caught)
"""
)


def run_and_compare(script: str, node: Node, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script, and compare what SQL has with what it wrote."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "CHIPLOG_DIR": str(node.root), "WANDB_PROJECT": "moments"},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    returned = Counter((directory / "returned").read_text().splitlines())
    assert {line.split()[0] for line in returned} > {"main"}

    def is_whole(rows: list[dict[str, object]]) -> bool:
        stored = Counter(f"{row['key']} {row['value']:.0f}" for row in rows)
        return not returned - stored and max(stored.values()) == 1

    node.until("SELECT key, value FROM metrics", is_whole)
    return done


@pytest.mark.parametrize("end", [(), ("also at the end",)], ids=["between", "at-exit"])
def test_init_in_a_finalizer_loses_nothing(node: Node, tmp_path: Path, end: tuple[str, ...]) -> None:
    assert run_and_compare(FINALIZER, node, tmp_path, *end).stderr == ""


def test_init_in_a_signal_handler_loses_nothing(node: Node, tmp_path: Path) -> None:
    done = run_and_compare(HANDLER, node, tmp_path, "1")
    n_raised, n_caught = map(int, done.stdout.split())
    # Python itself drops what is raised in the callback of a weak reference, and prints that.
    assert n_caught + done.stderr.count("Exception ignored in: ") == n_raised > 0, done.stderr
