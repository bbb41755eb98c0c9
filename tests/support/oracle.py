"""The oracle: a rank that writes what it logged into a file of its own as well, and what compares that file with SQL.

    python -P tests/support/oracle.py FILE [--events N] [--pause-s S] [--label L] [--run-id R]

A line `step value` is written, with one write(2), after `log()` has returned and before the next call. What stands
there must come out once and unaltered, or be declared lost. The pipeline cannot touch the file: it judges fault tests.
"""

import argparse
import os
import random
import struct
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ORACLE = str(Path(__file__).resolve())  # the program
_HEX_DIGITS = 16  # of a float64


@dataclass
class Verdict:
    """What a comparison found. All but `expected`, `declared` and `undeclared` are lists of steps.

    lost: logged and not in SQL, whether declared or not. declared: how many events rows declare lost, other events than
    the oracle's too. undeclared: how many of those that are lost no row declares.
    extra: in SQL and not in the file: at most one for each kill, between `log()` and its line.
    """

    expected: int = 0
    lost: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    altered: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)
    undeclared: int = 0
    declared: int = 0

    @property
    def ok(self) -> bool:
        """Whether everything came out, once and unaltered."""
        return not (self.lost or self.doubled or self.altered)

    @property
    def is_honest(self) -> bool:
        """Whether what did not come out is declared, and the rest is there once and unaltered.

        More may be declared than is missing here, because other events may be lost too. If none can be, use `is_exact`.
        """
        return not (self.undeclared or self.doubled or self.altered)

    @property
    def is_exact(self) -> bool:
        """Whether as many events are declared lost as are missing here, and the rest is there once and unaltered."""
        # safeguard: false-loss-is-inexact
        return self.declared == len(self.lost) and not (self.doubled or self.altered)


def read(file: Path) -> dict[int, float]:
    """Return value by step. A last line that a kill cut short does not count."""
    expected: dict[int, float] = {}
    for line in file.read_text(encoding="ascii").splitlines():
        step, _, bits = line.partition(" ")
        if len(bits) == _HEX_DIGITS:  # safeguard: cut-line-ignored
            expected[int(step)] = struct.unpack("<d", bytes.fromhex(bits))[0]
    return expected


def compare(file: Path, rows: Iterable[Mapping[str, Any]], lost: int = 0) -> Verdict:
    """Compare an oracle's file with the rows (step, value) that SQL has of it.

    lost: what `completeness` declares lost of this label.
    """
    expected = read(file)
    counts: Counter[int] = Counter()
    values: dict[int, float] = {}
    for row in rows:
        counts[row["step"]] += 1
        values[row["step"]] = row["value"]
    missing = sorted(step for step in expected if step not in counts)
    return Verdict(  # safeguard: values-equal-to-last-bit, double-rows-seen
        len(expected),
        missing,
        sorted(step for step, count in counts.items() if count > 1),
        sorted(step for step, value in expected.items() if step in values and values[step] != value),
        sorted(step for step in counts if step not in expected),
        max(0, len(missing) - lost),
        lost,
    )


def produce(file: Path, events: int, pause_s: float, label: str, run_id: str, *, finish: bool = True) -> None:
    """Log `events` random values as one label, each written to the file once log() has returned.

    The key is `value`; `other` is logged beside it, always 1.0. Steps count from what the file has already.
    """
    import chiplog

    chooser = random.Random(label)
    run = chiplog.init(project="oracle", run_id=run_id, label=label, primary=label == "rank0", capture_console=False)
    first = max(read(file), default=-1) + 1 if file.exists() else 0
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for step in range(first, first + events):
        value = chooser.random()
        run.log({"value": value, "other": 1.0}, step=step)
        os.write(target, f"{step} {struct.pack('<d', value).hex()}\n".encode())
        if pause_s:
            time.sleep(pause_s)
    os.close(target)
    if finish:
        run.finish()


def main() -> None:
    """Be the rank."""
    parser = argparse.ArgumentParser(prog="oracle.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--label", default="rank0")
    parser.add_argument("--run-id", default="oracle")
    arguments = parser.parse_args()
    produce(arguments.file, arguments.events, arguments.pause_s, arguments.label, arguments.run_id)


if __name__ == "__main__":
    main()
