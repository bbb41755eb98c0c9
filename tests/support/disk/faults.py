"""The basis of tests with broken disks: the preloaded library and its rules, small disks, a node and ranks on them."""

import errno
import mmap
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.node import Node
from tests.support.oracle import Verdict, compare
from tests.support.tools import ROOT, require
from tests.support.waiting import WAIT_S, wait_until

HERE = Path(__file__).parent
RANK = HERE / "rank.py"
OPEN, WRITE, SYNC, ALLOCATE, TRUNCATE, RENAME, MKDIR, UNLINK, BIND = (1 << bit for bit in range(9))
LONG_MS = 5000  # of one log(): far above its limit, far below what a training would notice as a hang
SHORT = 0  # in place of an errno: half of it is written
_RULES, _RULE_BYTES, _HITS_OFFSET = 8, 512, 16
_RULE = struct.Struct("<IIiiII232s256s")


def build_library(directory: Path) -> Path:
    """Compile the library; return its path."""
    require("gcc")
    target = directory / "faults.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", target, HERE / "faults.c", "-ldl"]
    subprocess.run(command, check=True, timeout=WAIT_S)
    return target


class Faults:
    """The rules of the processes that are started with `environment`. They may change while these run."""

    def __init__(self, library: Path, control: Path) -> None:
        control.write_bytes(bytes(_RULES * _RULE_BYTES))
        with open(control, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), _RULES * _RULE_BYTES)
        self._used = 0
        self.environment = {"LD_PRELOAD": str(library), "CHIPLOG_FAULTS": str(control)}

    def fail(
        self, operations: int, below: Path, part: str = "", error: int = errno.EIO, skip: int = 0, times: int = -1
    ) -> None:
        """Let operations on paths below a directory fail, all of them or the next few, after `skip` that succeed."""
        self._add(_RULE.pack(operations, error, skip, times, 0, 0, str(below).encode(), part.encode()))

    def delay(self, operations: int, below: Path, delay_ms: int, part: str = "") -> None:
        """Delay operations on paths below a directory by this much, and let them succeed."""
        self._add(_RULE.pack(operations, 0, 0, -1, 0, delay_ms, str(below).encode(), part.encode()))

    def _add(self, rule: bytes) -> None:
        start = self._used * _RULE_BYTES
        self._page[start + 4 : start + _RULE_BYTES] = rule[4:]
        self._page[start : start + 4] = rule[:4]  # last: from here on it counts
        self._used += 1

    @property
    def hits(self) -> list[int]:
        """How often each rule made a call fail."""
        starts = range(0, self._used * _RULE_BYTES, _RULE_BYTES)
        return [struct.unpack_from("<I", self._page, start + _HITS_OFFSET)[0] for start in starts]

    def heal(self) -> None:
        """Remove all rules."""
        for start in range(0, _RULES * _RULE_BYTES, _RULE_BYTES):
            self._page[start : start + 4] = bytes(4)
            self._page[start + _HITS_OFFSET : start + _HITS_OFFSET + 4] = bytes(4)
        self._used = 0


@contextmanager
def small_disk(path: Path, size: int) -> Iterator["Disk"]:
    """Mount a disk of this size at a path, and unmount it in any case."""
    require("mount", ROOT)
    path.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", path], check=True, timeout=WAIT_S)
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True, timeout=WAIT_S)


class Disk:
    """A small disk that can be used up and given back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, but: int = 0) -> None:
        """Use up all that is free, down to a page, but for some bytes."""
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT, 0o600)
        free = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
        try:
            os.posix_fallocate(descriptor, 0, max(free - but, 1))
        except OSError as error:  # a process on this disk has written in the meantime
            assert error.errno == errno.ENOSPC
        if not but:
            try:
                while True:
                    os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, mmap.PAGESIZE)
            except OSError as error:
                assert error.errno == errno.ENOSPC
        os.close(descriptor)

    def free(self) -> None:
        """Give it back."""
        self._filler.unlink()


class FaultyNode(Node):
    """A node whose agent and collector have faults of their own."""

    def __init__(self, root: Path, agent: dict[str, str], collector: dict[str, str]) -> None:
        super().__init__(root)
        self._environments = {"chiplog_agent": agent, "chiplog_collector": collector}

    def _start(self, module: str, *flags: str) -> "subprocess.Popen[bytes]":
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self.log_of(module), "ab") as log:
            command = [sys.executable, "-P", "-m", module, "--dir", str(self.root), *flags]
            environment = {**os.environ, **self._environments[module]}
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def log_of(self, module: str) -> Path:
        """Return the path for a daemon's output: not on the disk that will fail."""
        return self.root.with_name(f"{self.root.name}.{module}.log")

    def output(self, module: str = "chiplog_agent") -> str:
        return self.log_of(module).read_text()


class Rank:
    """A rank that logs on request."""

    def __init__(
        self, file: Path, root: Path, label: str = "rank0", run_id: str = "r", pad: int = 0, **environment: str
    ) -> None:
        self.file, self.label, self.run_id = file, label, run_id
        self.produced = 0
        self.longest_ms = 0.0
        self.process = subprocess.Popen(
            [sys.executable, str(RANK), str(file), label, run_id, str(pad)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "CHIPLOG_DIR": str(root), **environment},
            text=True,
        )

    def ready(self) -> "Rank":
        """Wait until init() has returned."""
        self._answer()
        return self

    def log(self, count: int) -> None:
        """Log so many values, and wait until they are."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        assert self.process.stdout is not None
        longest, produced = self.process.stdout.readline().split()
        self.longest_ms, self.produced = max(self.longest_ms, float(longest)), int(produced)

    def finish(self) -> str:
        """End the run; return what it wrote to stderr."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdin.close()
        word, _, produced = self.process.stdout.read().strip().partition(" ")
        errors = self.process.stderr.read()
        assert self.process.wait(WAIT_S) == 0, errors
        assert word == "finished", errors
        self.produced = int(produced)
        return errors

    def kill(self) -> None:
        """End it at once."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def close(self) -> None:
        """Remove everything that was started or mounted."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


COMPLETENESS = (
    "SELECT c.produced, c.stored, c.lost, c.pending, c.reasons, l.state FROM completeness c "
    "JOIN labels l USING (run_id, label, attempt) WHERE run_id = '{}' AND c.label = '{}'"
)


def settled(node: Node, rank: Rank, lost: bool = False) -> tuple[Verdict, dict[str, Any]]:
    """Wait until a rank that ended is complete; return the oracle's verdict and its row of completeness.

    Here and everywhere: produced = stored + lost, nothing pending, what is missing is declared. lost: whether to wait
    for a loss, because only the last of its events would show that something is missing.
    """
    query = COMPLETENESS.format(rank.run_id, rank.label)
    (row,) = node.until(
        query,
        lambda rows: (
            rows[0]["pending"] == 0
            and rows[0]["state"] != "running"
            and rows[0]["produced"] >= rank.produced
            and (rows[0]["lost"] > 0 or not lost)
        ),
    )
    values = node.sql(
        "SELECT step, value FROM metrics WHERE run_id = ? AND label = ? AND key = 'value'", [rank.run_id, rank.label]
    )
    verdict = compare(rank.file, values, row["lost"])
    assert row["produced"] == row["stored"] + row["lost"], row
    assert verdict.is_honest, (rank.label, verdict, row)
    return verdict, row


def until_hit(faults: Faults, what: str) -> None:
    """Wait until every rule has made a call fail: a fault that never came proves nothing."""
    wait_until(lambda: all(faults.hits), f"a call that fails: {what}, {faults.hits}")
