"""Ways in which a rank may end, and the stage process that runs them.

The stage has imported torch, and starts a rank for each line of its input: most by fork, so that fifty endings cost one
import. It prints a line when a rank has started and one when it has ended. A rank reports in its folder when it is
`ready` and when it is `leaving`. Without telemetry the same script runs without chiplog.
"""

import atexit
import gc
import json
import multiprocessing
import os
import random
import resource
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import chiplog

STEPS = 60
FILE_BYTES_MAX = 300_000  # a journal's first segment has 256 KiB, the next would have 512


class Numbers(Dataset):
    """What the workers load; item 13 cannot be loaded when asked for `broken`."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> float:
        if self.broken and index == 13:
            raise ValueError("item 13 is broken")
        print("item", index)  # through the console that a forked worker inherits
        return float(index)


class Rank:
    """A rank that writes what it logged into a file of its own as well, in the oracle's form."""

    def __init__(self, part: dict[str, Any]) -> None:
        self.folder = Path(part["folder"])
        self.run = None
        os.environ |= part["environment"]
        if part["telemetry"]:
            self.run = chiplog.init(project="ends", run_id="ends", label=part["label"], primary=False)
            self.run.finish = self.timed(self.run.finish)
        self.target = os.open(self.folder / "oracle", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.pid = os.getpid()
        self.step = 0
        self.is_served: bool = part["is_served"]
        self.chooser = random.Random(part["label"])
        self.loader: DataLoader | None = None
        self.kept: Any = None

    def log(self, steps: int = 1) -> None:
        for _ in range(steps):
            value = self.chooser.random()
            if self.run is not None:
                self.run.log({"value": value, "other": 1.0}, step=self.step)
            os.write(self.target, f"{self.step} {struct.pack('<d', value).hex()}\n".encode())
            self.step += 1

    def load(self, broken: bool = False, method: str = "fork") -> None:
        """Train an epoch with workers that stay: two, or a spawned one, which imports torch again."""
        workers = 1 if method == "spawn" else 2
        self.loader = DataLoader(
            Numbers(broken), num_workers=workers, persistent_workers=True, multiprocessing_context=method
        )
        for _ in self.loader:
            self.log()

    def timed(self, finish: Callable[..., None]) -> Callable[..., None]:
        """Wrap finish() so that it writes its longest duration to a file."""
        longest_s = 0.0

        def finish_and_tell(*arguments: Any) -> None:
            nonlocal longest_s
            begun = time.monotonic()
            finish(*arguments)
            longest_s = max(longest_s, time.monotonic() - begun)
            if os.getpid() == self.pid:
                self.say("finish", longest_s)

        return finish_and_tell

    def say(self, word: str, seconds: float | None = None) -> None:
        """Leave a time under this name: that of now, unless another is given."""
        making = self.folder / f".{word}"
        making.write_text(str(time.monotonic() if seconds is None else seconds))
        making.rename(self.folder / word)

    def wait_for_the_end(self) -> None:
        """Train until another process ends this one.

        Where an agent serves, that may be once the agent knows the rank.
        """
        is_ready = False
        while True:
            self.log()
            if not is_ready and (self.run is None or not self.is_served or self.run._journal.acked):
                self.say("ready")
                is_ready = True
            time.sleep(0.01)


def returns(rank: Rank) -> None:
    rank.load()
    rank.say("leaving")


def returns_with_spawned_workers(rank: Rank) -> None:
    rank.load(method="spawn")
    rank.say("leaving")


def logs_much(rank: Rank) -> None:
    rank.log(4000)
    rank.say("leaving")


def sys_exit(rank: Rank) -> None:
    rank.load()
    rank.say("leaving")
    sys.exit(3)


def sys_exit_that_is_caught(rank: Rank) -> None:
    rank.log(STEPS)
    try:
        sys.exit(3)
    except SystemExit:
        rank.log(STEPS)
    rank.say("leaving")


def sys_exit_in_atexit(rank: Rank) -> None:
    rank.log(STEPS)
    atexit.register(sys.exit, 4)
    rank.say("leaving")


def os_exit(rank: Rank) -> None:
    rank.load()
    rank.say("leaving")
    os._exit(5)


def aborts(rank: Rank) -> None:
    rank.load()
    rank.say("leaving")
    os.abort()


def raises(rank: Rank) -> None:
    rank.load()
    rank.say("leaving")
    raise ValueError("boom")


def raises_in_a_worker(rank: Rank) -> None:
    rank.say("leaving")
    rank.load(broken=True)


def raises_in_a_thread(rank: Rank) -> None:
    def work() -> None:
        rank.log(STEPS)
        raise ValueError("in a thread")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    rank.log(STEPS)
    rank.say("leaving")


def raises_in_del(rank: Rank) -> None:
    class Broken:
        def __init__(self, logs: bool) -> None:
            self.logs = logs

        def __del__(self) -> None:
            if self.logs:
                rank.log()
            raise ValueError("in __del__")

    rank.log(STEPS)
    Broken(True)
    rank.kept = Broken(False)  # destroyed with the interpreter
    rank.say("leaving")


def raises_in_import(rank: Rank) -> None:
    rank.log(STEPS)
    (rank.folder / "broken_module.py").write_text("import chiplog\nraise RuntimeError('broken module')\n")
    sys.path.insert(0, str(rank.folder))
    rank.say("leaving")
    import broken_module  # noqa: F401  what is under test is that it cannot be imported


def is_ended(rank: Rank) -> None:
    rank.load()
    rank.wait_for_the_end()


def is_ended_with_spawned_workers(rank: Rank) -> None:
    rank.load(method="spawn")
    rank.wait_for_the_end()


def ends_by_its_handler(rank: Rank) -> None:
    def handler(*_: object) -> None:
        rank.log()
        sys.exit(143)

    signal.signal(signal.SIGTERM, handler)
    rank.load()
    rank.wait_for_the_end()


def _in_the_middle_of_log(rank: Rank, leave: Any) -> None:
    """Call `leave` from a signal handler that interrupts the journal's append."""

    from chiplog.native.loader import hot_path

    def handler(_: int, frame: Any) -> None:
        while frame is not None and frame.f_code.co_name != "append":
            frame = frame.f_back
        if frame is None and rank.run is not None and hot_path is None:  # an append in C is not interrupted
            signal.setitimer(signal.ITIMER_REAL, 0.0002)  # not there: soon again
            return
        rank.say("leaving")
        leave()

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    while True:
        value = float(rank.step)
        if rank.run is not None:
            rank.run.log({"value": value, "other": 1.0}, step=rank.step)
        os.write(rank.target, f"{rank.step} {struct.pack('<d', value).hex()}\n".encode())
        rank.step += 1


def sys_exit_in_log(rank: Rank) -> None:
    _in_the_middle_of_log(rank, lambda: sys.exit(7))


def os_exit_in_log(rank: Rank) -> None:
    _in_the_middle_of_log(rank, lambda: os._exit(9))


def finish_in_log(rank: Rank) -> None:
    def leave() -> None:
        if rank.run is not None:
            rank.run.finish()
        sys.exit(0)

    _in_the_middle_of_log(rank, leave)


ENDINGS = {function.__name__: function for function in (
    returns, returns_with_spawned_workers, logs_much, sys_exit, sys_exit_that_is_caught, sys_exit_in_atexit,
    os_exit, aborts, raises, raises_in_a_worker, raises_in_a_thread, raises_in_del, raises_in_import, is_ended,
    is_ended_with_spawned_workers, ends_by_its_handler, sys_exit_in_log, os_exit_in_log, finish_in_log,
)}  # fmt: skip


def play(part: dict[str, Any]) -> None:
    """Be a rank in a session of its own, with what it prints in its folder."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if part["file_bytes_max"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (part["file_bytes_max"], part["file_bytes_max"]))
    # A session without a terminal gets the one that it opens.
    os.dup2(os.open(part["terminal"] or os.devnull, os.O_RDWR), 0)
    output = os.open(Path(part["folder"]) / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    ENDINGS[part["ending"]](Rank(part))


def stage() -> dict[str, Any] | None:
    """Start ranks and report their ends, until the input ends. In a forked child: return its part."""
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # a forked rank that ends need not traverse all objects of torch
    if "forkserver" in sys.argv[1:]:  # it imports torch, too
        multiprocessing.set_forkserver_preload(["tests.fault.endings"])
        forkserver.ensure_running()
    running: dict[int, tuple[str, Any]] = {}  # what becomes readable at its end -> (name, its Process or PID)
    unread = b""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor in running:
                name, process = running.pop(descriptor)
                ended = time.monotonic()
                poller.unregister(descriptor)
                os.close(descriptor)
                if isinstance(process, int):
                    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                else:
                    process.join()
                    code = process.exitcode
                print(json.dumps({"name": name, "code": code, "ended": ended}), flush=True)
                continue
            data = os.read(0, 65536)
            if not data:
                return None
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                part = json.loads(line)
                if part["method"] == "script":
                    pid = os.fork()
                    if not pid:
                        # As a child of multiprocessing does: else starting a worker looks after the stage's children,
                        # and takes the exit code of one by forkserver out of the pipe that it shares with the stage.
                        multiprocessing.process._children.clear()  # type: ignore[attr-defined]  # no public name
                        return part
                    descriptor, process = os.pidfd_open(pid), pid
                else:
                    process = multiprocessing.get_context(part["method"]).Process(target=play, args=(part,))
                    process.start()
                    pid = process.pid
                    descriptor = os.pidfd_open(pid)  # its sentinel would wait for its workers too
                running[descriptor] = (part["name"], process)
                poller.register(descriptor, select.POLLIN)
                print(json.dumps({"name": part["name"], "pid": pid}), flush=True)


if __name__ == "__main__":
    own_part = stage()
    if own_part is not None:
        play(own_part)
