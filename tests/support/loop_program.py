"""Random calls of a training's loop on a recorder with a real journal. A program: the same seeds, with C or without.

`python -m tests.support.loop_program DIRECTORY FIRST COUNT CALLS [torch]` makes one journal for each seed, and prints a
line of JSON: which path was active, and for each seed the digest of its files and what the calls returned. Clock,
producer and seqs are the same in both paths, so the bytes must be.
"""

import gc
import hashlib
import json
import logging
import math
import random
import struct
import sys
import warnings
from collections import OrderedDict, UserDict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from chiplog.journal import appender, journal, segment
from chiplog.native.loader import hot_path
from chiplog.recording.log import device_events, loop_calls, recorder, step_phases, value_events
from chiplog.timing import phases, steps
from chiplog_schemas.codec import unpack
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.model.events import EventKind, decode
from chiplog_schemas.storage.journal_dir import JournalReader
from chiplog_schemas.storage.record import Record

PRODUCER = bytes(range(16))
STEPS = [0, 1, 7, -1, -33, 127, 128, 255, 256, 65_535, 65_536, 1 << 31, 1 << 32, -(1 << 31), -(1 << 63), (1 << 63) - 1]
NUMBERS = [0, 1, -1, 1 << 53, (1 << 53) + 1, 1 << 63, -(1 << 63), 1 << 1023, 0.0, -0.0, 5e-324, 1e308, 0.1]
PHASES = ["forward", "backward", "optimizer", "data", "ünïcode"]


class Clock:
    """The time of both paths, in microseconds."""

    now_us = 1_700_000_000_000_000

    def advance(self, by_us: int) -> None:
        self.now_us += by_us
        if hot_path is not None:
            hot_path.fix_time(self.now_us)

    def time_ns(self) -> int:
        return self.now_us * 1000

    def seconds(self) -> float:
        return self.time_ns() / 1e9


class Probe(recorder.Recorder):
    """A recorder whose journal is not sent anywhere."""

    def __init__(self, directory: Path) -> None:
        super().__init__(Limits())
        self._journal = journal.Journal(directory, PRODUCER, b"identity", bytes_max=64 << 20)


class HostileNumber:
    """Does something else while its value is read."""

    def __init__(self, what: Any) -> None:
        self._what = what

    def __float__(self) -> float:
        self._what()
        return 2.5


class HostileArray(HostileNumber):
    """A scalar array of another library: its type is one that C converts, once Python has seen it."""

    shape = ()
    dtype = np.dtype("f8")

    def __array__(self) -> Any:
        raise TypeError("of another library")


class OddFloat(float):
    def __float__(self) -> float:
        return 99.0


class OddInt(int):
    def __float__(self) -> float:
        return 98.0


class OddKey(str):
    def __hash__(self) -> int:
        return hash("loss")

    def __eq__(self, other: object) -> bool:
        return other == "loss"


class OddDict(dict[Any, Any]):
    def values(self) -> Any:
        return [3.0 for _ in self]

    def items(self) -> Any:
        return [(key, 4.0) for key in self]


def fail() -> None:
    raise ValueError("from __float__")


def value(draw: random.Random, run: Probe, data: dict[Any, Any]) -> Any:
    """Return what a training may log, or what it should not."""
    makes: list[Any] = [
        lambda: draw.uniform(-1e3, 1e3),
        lambda: draw.choice(NUMBERS),
        lambda: draw.random() < 0.5,
        lambda: draw.choice([float("nan"), float("inf"), -float("inf")]),
        lambda: draw.choice([np.float32, np.float64, np.int64, np.uint8, np.float16, np.bool_, np.longdouble])(1),
        lambda: np.array(draw.random()),
        lambda: np.array([draw.random()]),
        lambda: np.array([1.0, 2.0]),
        lambda: draw.choice(["text", "", "\ud800", "x" * 5000]),
        lambda: {"a": draw.random(), "b": {"c": 1}},
        lambda: OddFloat(1.0),
        lambda: OddInt(5),
        lambda: draw.choice([None, [1.0], (1.0,), 1j, b"1", object]),
        lambda: draw.choice([Decimal("1.5"), Fraction(1, 3), 1 << 1024, -(1 << 5000)]),
        lambda: HostileNumber(fail),
        lambda: HostileNumber(lambda: data.clear()),
        lambda: HostileNumber(lambda: data.update(more=1.0)),
        lambda: HostileNumber(lambda: run.log({"nested": 1.0})),
        lambda: HostileNumber(lambda: run.step()),
        lambda: HostileArray(fail),
        lambda: HostileArray(lambda: None),
    ]
    usual = makes[:3]
    if torch := sys.modules.get("torch"):
        usual.append(lambda: torch.tensor(draw.random(), requires_grad=draw.random() < 0.5))
        makes += [
            lambda: torch.tensor([draw.random()]),
            lambda: torch.tensor([[draw.randrange(1 << 40)]]),
            lambda: torch.tensor(draw.random() < 0.5),
            lambda: torch.tensor(draw.random(), dtype=draw.choice([torch.float16, torch.bfloat16, torch.float64])),
            lambda: torch.tensor([1.0, 2.0]),
            lambda: torch.tensor(1j),
            lambda: torch.empty(1, device="meta"),
            lambda: torch.nn.Parameter(torch.tensor(0.5)),
            lambda: torch.tensor(float("nan")),
        ]
    return draw.choice(usual if draw.random() < 0.8 else makes)()


def mapping(draw: random.Random, run: Probe) -> Any:
    """Return a dict of one of a few sets of keys, as a training has, or something like a dict."""
    size = draw.choice([1, 2, 3, 10, 20, 65, 200])
    keys: list[Any] = [f"metric_{i}" for i in range(size)]
    if draw.random() < 0.1:
        odd = ["", "a/b", "x" * 600, "\udfff", 7, None, ("a",), OddKey("odd"), "new" + str(draw.random())]
        keys[draw.randrange(size)] = draw.choice(odd)
    data: dict[Any, Any] = {}
    for key in keys:
        data[key] = value(draw, run, data)
    kinds: list[Any] = [dict, OrderedDict, OddDict, UserDict, list, lambda given: None]
    return data if draw.random() < 0.95 else draw.choice(kinds)(data)


def call(draw: random.Random, run: Probe, clock: Clock, depth: int = 0) -> object:
    """Make one random call, and return what it returned."""
    clock.advance(draw.choice([0, 1, 1000, 5_000_000]))
    kind = draw.random()
    if kind < 0.55:
        data = mapping(draw, run)
        step = draw.choice([None, None, None, draw.randrange(10_000), draw.choice(STEPS)])
        if draw.random() < 0.05:
            step = draw.choice([1.0, 1.5, "5", np.int64(9), True, 1 << 64, OddInt(5), float("nan"), ...])
        style = draw.random()
        if style < 0.4:
            return run.log(data, step)
        if style < 0.8:
            return run.log(data, step=step)
        if style < 0.85:
            return run.log(step=step, data=data)
        if style < 0.9:
            return run.log(data, commit=False)
        if style < 0.95:
            return run.log(data, step, True, unknown=1)
        return run.log(loss=1.0, **({} if step is None else {"step": step}))
    if kind < 0.85 and depth < 3:
        named: dict[str, Any] = {"on_host": True} if draw.random() < 0.1 else {}
        with run.phase(draw.choice(PHASES), **named):
            for _ in range(draw.randrange(3)):
                call(draw, run, clock, depth + 1)
        return None
    if kind < 0.95:
        return type(run.step()).__name__
    if kind < 0.97:
        with run.step():
            call(draw, run, clock, depth + 1)
        return None
    return run.log()  # type: ignore[call-arg]  # as a mistake


def events_of(run: Probe) -> list[tuple[int, list[Any]]]:
    """Return the seq and the fields of each event that is in the journal's files."""
    directory = run._journal._staging_dir  # type: ignore[attr-defined]  # of a Journal
    records = JournalReader(directory).records()
    return [(record.number, decode(record.payload)) for record in records if isinstance(record, Record)]


def tallies_of_events(run: Probe) -> dict[str, list[float]]:
    """Return what the journal's events have of each key: how many values, first, last, smallest and largest."""
    values: dict[str, list[float]] = {}
    for _, event in events_of(run):
        if event[0] == EventKind.METRICS:
            numbers = struct.unpack(f"<{len(event[4]) // 8}d", event[4])
            for key, number in zip(unpack(event[3]), numbers, strict=True):
                values.setdefault(key, []).append(number)
    found = {}
    for key, column in values.items():
        plain = [number for number in column if not math.isnan(number)] or [math.nan]
        found[key] = [len(column), column[0], column[-1], min(plain), max(plain)]
    return found


def tallies_of(run: Probe) -> dict[str, list[float]]:
    """Return the same from the summary."""
    found = {}
    for key in run._logged.list_keys():
        tally = run._logged.tally(key)
        assert tally is not None
        summaries = [tally.summarize(kind) for kind in ("first", "last", "min", "max")]
        found[key] = [tally.n_all, *summaries]
    return found


def journal_of(seed: int, directory: Path, n_calls: int) -> list[str]:
    """Make the calls of one seed; return the digest of the journal's files, and of what was returned."""
    draw, clock = random.Random(seed), Clock()
    clock.advance(0)
    for module, name, replaced in (
        (loop_calls, "time_ns", clock.time_ns),
        (recorder, "time_ns", clock.time_ns),
        (value_events, "time_ns", clock.time_ns),
        (device_events, "time_ns", clock.time_ns),
        (journal, "now_us", lambda: clock.now_us),
        (phases, "perf_counter", clock.seconds),
        (steps, "perf_counter", clock.seconds),
        (step_phases, "perf_counter", clock.seconds),
    ):
        setattr(module, name, replaced)
    run = Probe(directory)
    run._logged.define(lambda key: "min")
    returned = hashlib.sha256()
    for _ in range(n_calls):
        returned.update(repr(call(draw, run, clock)).encode("utf-8", "backslashreplace"))
    returned.update(repr(sorted(run._diagnostics.counts.items())).encode())
    files = hashlib.sha256()
    for path in sorted(run._journal._staging_dir.iterdir()):  # type: ignore[attr-defined, union-attr]  # of a Journal
        if path.name != "lock":  # has the PID
            files.update(path.name.encode() + path.read_bytes())
    state = (
        run._next_step,
        run._top_step,
        run._last_step,
        run._former_next_step,
        run._former_top_step,
        run._journal.next_seq,
    )
    shown, logged = tallies_of(run), tallies_of_events(run)
    keys = {**shown, **logged}.keys() - {"loss", "odd"}  # an OddKey is one of these and equals the other
    differing = [key for key in keys if repr(shown.get(key)) != repr(logged.get(key))]
    assert not differing, f"seed {seed}: {[(key, shown.get(key), logged.get(key)) for key in differing]}"
    return [files.hexdigest(), returned.hexdigest(), repr(state)]


def main() -> None:
    logging.disable()
    warnings.simplefilter("ignore")
    if "torch" in sys.argv[5:]:
        import torch  # noqa: F401  # values() then draws tensors too
    gc.disable()  # its pauses would be a phase
    directory, first, count, n_calls = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    assert (appender.Appender is appender.PythonAppender) == (hot_path is None)
    assert segment.Segment is journal.Segment
    found = {seed: journal_of(seed, directory / str(seed), n_calls) for seed in range(first, first + count)}
    print(json.dumps({"native": hot_path is not None, "found": found}))


if __name__ == "__main__":
    main()
