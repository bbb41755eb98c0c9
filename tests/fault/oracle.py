"""The oracle: a rank that also writes what it logged into a file of its own, and a checker that compares it with SQL.

Run as a program it is the rank: `python oracle.py FILE [--events N] [--pause-s S] [--label L]`. A line `step value` is
written after `log()` has returned and before the next call, with O_APPEND: what stands there must come out, once.
"""

import argparse
import os
import random
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Verdict:
    """What a comparison found. `extra` is at most one per kill: logged, then killed before the line was written."""

    expected: int = 0
    lost: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    altered: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.lost or self.doubled or self.altered)


def compare(file: Path, rows: list[dict[str, Any]]) -> Verdict:
    """Compare an oracle's file with the rows (step, value) that SQL has of it."""
    expected: dict[int, float] = {}
    for line in file.read_text().splitlines():
        step, _, bits = line.partition(" ")
        if len(bits) == 16:  # else the rank was killed in the middle of writing its line
            expected[int(step)] = struct.unpack("<d", bytes.fromhex(bits))[0]
    counts = Counter(row["step"] for row in rows)
    values = {row["step"]: row["value"] for row in rows}
    return Verdict(
        len(expected),
        sorted(step for step in expected if step not in counts),
        sorted(step for step, count in counts.items() if count > 1),
        sorted(step for step, value in expected.items() if step in values and values[step] != value),
        sorted(step for step in counts if step not in expected),
    )


def produce(file: Path, events: int, pause_s: float, label: str, run_id: str) -> None:
    """Log `events` random values, each written to the file once log() has returned."""
    import chiplog

    chooser = random.Random(label)
    run = chiplog.init(project="oracle", run_id=run_id, label=label, primary=label == "rank0")
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for step in range(events):
        value = chooser.random()
        run.log({"value": value, "other": 1.0}, step=step)
        os.write(target, f"{step} {struct.pack('<d', value).hex()}\n".encode())
        if pause_s:
            time.sleep(pause_s)
    run.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--label", default="rank0")
    parser.add_argument("--run-id", default="oracle")
    arguments = parser.parse_args()
    produce(arguments.file, arguments.events, arguments.pause_s, arguments.label, arguments.run_id)
