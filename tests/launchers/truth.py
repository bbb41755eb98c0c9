"""The file that each rank of a launcher test writes: its identity and what it logged. No pipeline touches it.

A rank writes a line before each `log()` and one after it. A value with both must arrive once and unaltered; a killed
rank's last line, without a second one, may arrive. A file's first line identifies the writer. Training scripts import
this module, so it needs only the standard library.
"""

import json
import os
import random
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DIRECTORY = "TRUTH_DIR"  # variable


class Truth:
    """The file of one rank, in the directory that `TRUTH_DIR` names.

    rank, world_size: as the training knows them, from torch.distributed or its own arguments, never from chiplog.
    label: what this writer must be called; `rank{rank}` if not given, and without a rank any name that init() makes up.
    """

    def __init__(self, rank: int | None = None, world_size: int | None = None, label: str | None = None) -> None:
        path = Path(os.environ[DIRECTORY], f"{os.getpid()}-{uuid.uuid4().hex[:8]}")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        label = f"rank{rank}" if label is None and rank is not None else label
        self._chooser = random.Random(str(path))
        self._write(
            {"label": label, "rank": rank, "world_size": world_size, "pid": os.getpid(), "at": time.monotonic_ns()}
        )

    def values(self) -> dict[str, float]:
        """Return numbers that no other process logs."""
        return {"value": self._chooser.random(), "other": self._chooser.uniform(-1e9, 1e9)}

    @contextmanager
    def of(self, step: int, values: Mapping[str, float]) -> Iterator[None]:
        """Write what the enclosed `log()` is given, and then that it returned."""
        self._write({"step": step, "values": {key: float(value) for key, value in values.items()}})
        yield
        self._write({"returned": step})

    def log(self, run: Any, step: int, more: Mapping[str, float] | None = None) -> None:
        """Log numbers of this process and others by a run, or by `chiplog` itself, and write them down."""
        values = {**self.values(), **(more or {})}
        with self.of(step, values):
            run.log(values, step=step)

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, f"{json.dumps(line)}\n".encode())


@dataclass
class Writer:
    """The content of one file. `attempt`: how many files of the same label are older."""

    label: str | None
    rank: int | None
    world_size: int | None
    pid: int
    at: int  # on the machine's monotonic clock
    rows: list[tuple[int, str, float]] = field(default_factory=list)  # step, key, value
    perhaps: list[tuple[int, str, float]] = field(default_factory=list)  # of a log() that was cut short
    attempt: int = 0


def read(directory: Path) -> list[Writer]:
    """Return what all ranks wrote, oldest first."""
    begun = (path for path in directory.iterdir() if path.stat().st_size)
    writers = sorted(map(_read, begun), key=lambda writer: writer.at)
    seen: dict[str, int] = {}
    for writer in writers:
        if writer.label is not None:
            writer.attempt = seen.get(writer.label, 0)
            seen[writer.label] = writer.attempt + 1
    return writers


def writers_with_rows() -> int:
    """Return how many processes of this training have logged something. For training scripts."""
    return sum(b'"returned"' in path.read_bytes() for path in Path(os.environ[DIRECTORY]).iterdir())


def agree(run: Any) -> None:
    """Wait until a rank's identity is final: on a busy machine that may last longer than a test's short training."""
    while run._membership.identity.needs_agreement:
        time.sleep(0.01)


def _read(path: Path) -> Writer:
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    writer = Writer(**json.loads(first))
    for line in map(json.loads, lines):
        if "returned" in line:
            writer.rows += writer.perhaps
            writer.perhaps = []
        else:
            writer.perhaps = [(line["step"], key, value) for key, value in line["values"].items()]
    return writer
