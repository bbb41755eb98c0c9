"""A rank that computes, writes and forks in control groups with limits, a real sampler, and independent readings."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chiplog_agent.stats.sampler_process import Sample, SamplerProcess
from chiplog_schemas.clock import now_us
from chiplog_schemas.limits import SAMPLE_INTERVAL_S
from tests.support.independent_readings import Accuracy, Groups, Observer, Received, compare
from tests.support.waiting import WAIT_S

READING_INTERVAL_S = 0.1
BEFORE_S = 0.5  # so that a reading precedes the first sample
_MOUNT = "/sys/fs/cgroup"
_LIMITS = {  # of CPU 20 ms in each 100, so that it is denied some
    "cpu": ("cpu.cfs_quota_us", 20_000),
    "memory": ("memory.limit_in_bytes", 1 << 30),
}
# Two workers compute; what else varies does so every few seconds, so that a value and a reading of it can be alike.
_WORKER = "import time\nkept = bytes(32 << 20)\nwhile True:\n    sum(range(100_000))"
_RANK = f"""
import os, subprocess, sys, threading, time
workers = [subprocess.Popen([sys.executable, "-c", {_WORKER!r}]) for _ in range(2)]
kept, files = bytes(64 << 20), []
time.sleep(0.5)
print(os.getpid(), *(worker.pid for worker in workers), flush=True)
for turn in range(1_000_000):
    if turn % 8 == 0:
        kept = bytes((64 if turn % 16 else 96) << 20)
        [file.close() for file in files]
        files = [open("/dev/null") for _ in range(5 if turn % 16 else 15)]
        threading.Thread(target=time.sleep, args=(2.0,)).start()
    with open(sys.argv[1], "wb") as file:
        file.write(os.urandom(1 << 18))
        file.flush()
        os.fsync(file.fileno())
    with open(sys.argv[1], "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that the disk is read
        file.read()
    subprocess.run(["true"])
    time.sleep(0.4)
"""


def observe(seconds: float, folder: Path) -> dict[str, Accuracy]:
    """Sample a rank for some seconds, and until each metric has been compared or WAIT_S is over.

    folder: on a disk, for the rank's file.
    """
    with _groups() as groups, _rank(folder / "data", groups) as processes:
        rank = processes[0]
        observer = Observer(processes, groups, ("/dev/shm", "/tmp"))
        readings, samples = [observer.read()], list[Received]()
        time.sleep(BEFORE_S)
        feed = SamplerProcess()
        feed.watch([rank])
        try:
            feed.start()
            compare_at = time.monotonic() + seconds
            end_at = compare_at + WAIT_S
            while True:
                messages = feed.read()
                received_us = now_us()
                samples += [Received(each, received_us) for each in messages if isinstance(each, Sample)]
                readings.append(observer.read())
                if (now := time.monotonic()) >= compare_at:
                    found = compare(samples, readings, rank)
                    if all(of.n for of in found.values()) or now >= end_at:
                        return found
                    compare_at = now + SAMPLE_INTERVAL_S
                feed.tick(now)
                time.sleep(READING_INTERVAL_S)
        finally:
            feed.close()


@contextmanager
def _rank(path: Path, groups: Groups) -> Iterator[list[int]]:
    """Run the rank, and yield its PID and those of its workers."""

    def join() -> None:
        for group in groups:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))

    command = [sys.executable, "-c", _RANK, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=join, start_new_session=True) as rank:
        assert rank.stdout is not None
        try:
            yield list(map(int, rank.stdout.readline().split()))
        finally:
            os.killpg(rank.pid, 9)
            rank.wait(WAIT_S)


@contextmanager
def _groups() -> Iterator[Groups]:
    """Make the control groups that this machine and user can have."""
    made: dict[str, Path] = {}
    for name in Groups._fields:
        folder = Path(_MOUNT, name, f"chiplog-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            folder.mkdir()
            made[name] = folder
            if name in _LIMITS:
                file, limit = _LIMITS[name]
                (folder / file).write_text(str(limit))
    try:
        yield Groups(**made)
    finally:
        for folder in made.values():
            _remove(folder)


def _remove(folder: Path) -> None:
    until = time.monotonic() + WAIT_S
    while True:
        try:
            folder.rmdir()
            return
        except OSError:  # its killed processes have not ended yet
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
