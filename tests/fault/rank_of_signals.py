"""A rank that is interrupted: `python -m tests.fault.rank_of_signals SCENE FOLDER SEED`.

It writes what returned, and what a signal handler raised, into files of its own with O_APPEND: the oracle that the
pipeline cannot touch. The run is offline, so all that survives is the journal.
"""

import gc
import math
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import chiplog

RAISED_MAX = int(os.environ.get("CHIPLOG_TEST_RAISED", "2000"))
THREADS = 64
SLOW = np.arange(40_000)


class Oracle:
    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, number: int) -> None:
        os.write(self._file, b"%d\n" % number)


class Slow:
    """A value whose method takes long enough to be interrupted, in Python and in C."""

    def __init__(self, value: float) -> None:
        self._value = value

    def __float__(self) -> float:
        for _ in range(20):
            SLOW.sum()
        return self._value


def start(folder: Path) -> Any:
    return chiplog.init(mode="offline", dir=folder / "chiplog", label="rank0", capture_console=False)


def raises(folder: Path, chooser: random.Random) -> None:
    """A handler raises TimeoutError at random moments of log(), phase(), step() and config; a thread logs too."""
    run = start(folder)
    returned, beside = Oracle(folder, "returned"), Oracle(folder, "beside")
    n_raised = n_seen = n_calls = 0
    ended = threading.Event()
    armed = False

    def handler(signum: int, frame: Any) -> None:
        nonlocal n_raised, armed
        signal.setitimer(signal.ITIMER_REAL, chooser.uniform(1e-5, 4e-4))
        if armed:
            armed = False
            n_raised += 1
            raise TimeoutError("the training's own")

    def log_beside() -> None:
        number = 0
        while not ended.is_set():
            run.log({"beside": float(number)}, step=number)
            beside.write(number)
            number += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=log_beside)
    thread.start()
    values = [lambda n: float(n), lambda n: np.float32(n), lambda n: np.array(float(n)), lambda n: Slow(float(n))]
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 1e-4)
    number = 0
    while n_raised < RAISED_MAX:
        number += 1
        data: dict[str, Any] = {"number": values[number % 4](number), f"key{number % 50}": 1.0}
        if number % 3 == 0:
            data = {"number": data["number"], "nested": {"a": {"b": np.float64(2.0)}, "c": 3}}
        try:
            armed = True
            with run.phase("forward"):
                pass
            run.log(data, step=number)
            returned.write(number)
            run.step()
            if number % 7 == 0:
                run.config["lr"] = number
            if number % 11 == 0:
                gc.collect(0)
            armed = False
        except TimeoutError:
            n_seen += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    n_calls = number
    ended.set()
    thread.join()
    begun = time.perf_counter()
    done = threading.Thread(target=lambda: [run.log({"last": 1.0}, step=step) for step in range(100)])
    done.start()
    done.join()
    took_s = time.perf_counter() - begun
    bad = {kind: count for kind, count in run._diagnostics.counts.items() if count}
    print(n_calls, n_raised, n_seen, took_s, bad, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def leaves(folder: Path, chooser: random.Random) -> None:
    """A handler logs in the midst of a log(), and ends the process: in one of three ways."""
    run = start(folder)
    returned = Oracle(folder, "returned")
    number = 0
    way = chooser.choice(("exit", "kill", "default"))

    def handler(signum: int, frame: Any) -> None:
        for own in range(1_000_000, 1_000_003):
            run.log({"number": float(own)}, step=own)
            returned.write(own)
        if way == "exit":
            os._exit(3)
        if way == "default":
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGKILL if way == "kill" else signal.SIGTERM)

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, chooser.uniform(0.001, 0.05))
    text = "t" * chooser.choice((10, 5000))  # the latter fills segments
    while True:
        run.log({"number": float(number), "text": text}, step=number)
        returned.write(number)
        number += 1


def threads(folder: Path, chooser: random.Random) -> None:
    """Threads that compute and log; the process is killed while they do."""
    run = start(folder)
    last = chooser.randrange(5_000, 15_000)

    def work(thread: int) -> None:
        returned = Oracle(folder, f"returned.{thread}")
        number = thread * 1_000_000
        while True:
            for part in range(2000):
                math.sqrt(part)
            run.log({"number": float(number), f"of{thread}": 1.0}, step=number)
            returned.write(number)
            number += 1
            if run._journal.next_seq > last:
                os.kill(os.getpid(), signal.SIGKILL)

    running = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def finalises(folder: Path, chooser: random.Random) -> None:
    """Objects in cycles log when the collector finds them, in the midst of other threads' log()."""
    run = start(folder)
    returned = Oracle(folder, "returned")
    lock = threading.Lock()
    count = iter(range(1_000_000, 2_000_000))

    class Dying:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            own = next(count)
            run.log({"number": float(own)}, step=own)
            returned.write(own)

    def work(first: int) -> None:
        for number in range(first, first + 3000):
            if number % 10 == 0:
                Dying()
            run.log({"number": float(number), "text": "t" * 500}, step=number)
            with lock:
                returned.write(number)

    gc.set_threshold(50)
    workers = [threading.Thread(target=work, args=(first,)) for first in (0, 10_000, 20_000)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    scene, folder, seed = sys.argv[1:]
    {"raises": raises, "leaves": leaves, "threads": threads, "finalises": finalises}[scene](
        Path(folder), random.Random(int(seed))
    )
