"""Ranks that use the SDK in the ways that have lost values: signals, threads, pools, handlers that end the process.

    python -m tests.fault.rank_of_mixed_use KIND FOLDER SECONDS SEED

Each value is written to `FOLDER/<label>.oracle` after `log()` has returned: what the file has must come out of SQL.
"""

import itertools
import multiprocessing
import os
import random
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import chiplog
from chiplog.recording.run.run import Run

THREADS = 8
POOL_WORKERS = 3
POOL_STEPS = 40
INTERRUPT_S = 0.003  # mean time between two signals
PAUSE_S = 0.004  # between two calls of log(): two cores are shared by all of it


class TimeUpError(Exception):
    """Raised by a signal handler, as by the time-outs of training frameworks."""


class Oracle:
    """Logs values, and writes down those whose `log()` returned."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run = run
        self.steps = itertools.count()
        self.file = os.open(
            folder / f"{run.label}.oracle", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )

    def log(self) -> None:
        step, value = next(self.steps), random.random()
        self.run.log({"value": value, "other": 1.0}, step=step)
        os.write(self.file, f"{step} {struct.pack('<d', value).hex()}\n".encode())


def open_run(label: str | None, folder: Path) -> Oracle:
    return Oracle(chiplog.init(run_id="mixed", label=label, primary=False, capture_console=False), folder)


def until(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(PAUSE_S)


def interrupted(folder: Path, seconds: float, name: str) -> None:
    """Log while handlers log too, and raise out of any operation of the main thread."""
    oracle = open_run(name, folder)
    can_raise = False  # the test's own loop has no handler for it everywhere

    def handle(number: int, frame: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, random.expovariate(1 / INTERRUPT_S) + 1e-4)
        if random.random() < 0.5:
            oracle.log()
        if can_raise and random.random() < 0.5:
            raise TimeUpError

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, INTERRUPT_S)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            can_raise = True
            for _ in until(end - time.monotonic()):
                with oracle.run.phase("forward"):
                    oracle.log()
            can_raise = False
        except TimeUpError:
            can_raise = False
    signal.signal(signal.SIGALRM, signal.SIG_IGN)


def threaded(folder: Path, seconds: float, name: str) -> None:
    """Log from many threads. The test kills this process now and then."""
    oracle = open_run(name, folder)

    def work() -> None:
        for _ in until(seconds):
            for _ in range(5):
                oracle.log()

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def leaving(folder: Path, seconds: float, name: str) -> None:
    """End in a signal handler that has just logged: by os._exit, by SIGKILL, or by the signal's default action."""
    for number in itertools.count():
        if seconds <= 0:
            return
        started = time.monotonic()
        child = os.fork()
        if not child:
            oracle = open_run(f"{name}-{number}", folder)
            way = number % 3

            def handle(signum: int, frame: object, oracle: Oracle = oracle, way: int = way) -> None:
                for _ in range(3):
                    oracle.log()
                if way == 0:
                    os._exit(7)
                if way == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)

            signal.signal(signal.SIGTERM, handle)
            threading.Timer(random.uniform(0.2, 1.5), os.kill, (os.getpid(), signal.SIGTERM)).start()
            while True:
                oracle.log()
                time.sleep(PAUSE_S / 4)
        os.waitpid(child, 0)
        time.sleep(0.5)
        seconds -= time.monotonic() - started


def work_in_pool(folder: str) -> None:
    """Be a worker of a pool, which ends without notice."""
    oracle = open_run(None, Path(folder))
    for _ in range(POOL_STEPS):
        oracle.log()
        time.sleep(PAUSE_S)


def pooled(folder: Path, seconds: float, name: str) -> None:
    """Start pools whose workers log. The parent only called setup(), or nothing."""
    os.environ["CHIPLOG_RUN_ID"] = "mixed"
    chiplog.setup()
    end = time.monotonic() + seconds
    context = multiprocessing.get_context("fork")
    while time.monotonic() < end:
        with context.Pool(POOL_WORKERS) as pool:
            pool.map(work_in_pool, [str(folder)] * POOL_WORKERS)
        time.sleep(1.0)


KINDS = {"interrupted": interrupted, "threaded": threaded, "leaving": leaving, "pooled": pooled}

if __name__ == "__main__":
    kind, folder, seconds, name = sys.argv[1:]
    random.seed(name)
    KINDS[kind](Path(folder), float(seconds), name)
