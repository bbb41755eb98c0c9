"""A large database, written by the index's own code: runs of many labels, and thousands of small ones."""

import time
from pathlib import Path

import numpy as np

from chiplog_collector.index.apply.state import Producer, Run, State
from chiplog_collector.index.apply.write_batch import Batch, Matrix
from chiplog_collector.index.database import Database
from chiplog_schemas.limits import INDEX_FLUSH_ROWS

LABELS = 64
KEYS = 50
STEPS = 5_000
LONG_STEPS = 50_000
PHASES = ("step", "data", "forward", "backward", "optimizer")
SMALL_STEPS = 20
SMALL_RUNS_PER_FLUSH = 1_000
GPUS_PER_NODE = 8
SAMPLED = ("gpu_util", "gpu_memory_bytes", "gpu_power_w", "gpu_temperature_c")
BEGUN_US = 1_790_000_000_000_000
STEP_US = 50_000
SAMPLE_US = 1_000_000


class Writer:
    """Writes batches as the index does, without a log."""

    def __init__(self, path: Path, log_id: bytes, *, is_numbered: bool = False) -> None:
        self.is_numbered, self.n_flushes = is_numbered, 0
        self.database = Database(path, log_id)
        self.state = State()
        self.batch = Batch()
        self.random = np.random.default_rng(11)
        self.n_points = 0
        self.spent_s = 0.0  # in the database

    def name(self, name: str) -> int:
        number = self.state.names.get(name)
        if number is None:
            number = self.state.names[name] = len(self.state.names) + 1
            self.batch.names.append((number, name))
        return number

    def run(self, run_id: str, labels: int, begun_us: int, n_steps: int) -> list[int]:
        """Add a run with its labels, as finished; return its producers."""
        run = self.state.add_run(Run(len(self.state.runs) + 1, run_id, project=run_id.rstrip("0123456789-")))
        run.primary_label = "rank0"
        self.batch.runs.add(run.run)
        numbers = []
        for rank in range(labels):
            number = len(self.state.producers) + 1
            node = f"{run_id}-node{rank // GPUS_PER_NODE}"
            producer = Producer(number, number.to_bytes(16, "big"), "rank", run.run, f"rank{rank}", rank=rank)
            producer.node = producer.agent_node = node
            producer.is_primary, producer.world_size, producer.gpus = rank == 0, labels, [f"GPU-{run_id}-{rank}"]
            producer.state, producer.started_at = "finished", begun_us
            producer.ended_at = begun_us + n_steps * STEP_US
            producer.produced = 2 * n_steps
            self.state.add_producer(producer)
            self.batch.producers.add(number)
            self.batch.intervals.append((number, 0, 2 * n_steps - 1, producer.ended_at))
            numbers.append(number)
        for key, value in (("lr", "0.0003"), ("model", '"gpt"'), ("seed", str(run.run))):
            self.batch.add("config", (numbers[0], 1, begun_us, key, value))
        return numbers

    def write(self) -> None:
        begun = time.perf_counter()
        self.n_points += self.batch.n_points
        self.n_flushes += 1
        # Where the log is empty, the index accepts no file that is ahead of it.
        self.database.write(self.batch, self.state, self.n_flushes if self.is_numbered else 0)
        self.database.sort_facts()
        self.spent_s += time.perf_counter() - begun
        self.batch = Batch()

    def events(
        self, table: str, keys: tuple[int, ...], numbers: list[int], steps: range, begun_us: int, *, odd: int
    ) -> None:
        """Add one event of all keys for each producer and step, producers interleaved as they arrive."""
        producer = np.tile(np.array(numbers, dtype=np.int32), len(steps))
        step = np.repeat(np.arange(steps.start, steps.stop), len(numbers))
        ts = begun_us + step * STEP_US + np.tile(np.arange(len(numbers)) * 7, len(steps))
        values = self.random.random((len(step), len(keys)), dtype=np.float32).astype(np.float64)
        matrix = Matrix(producer, step, 2 * step + odd, ts, values)
        getattr(self.batch, table).setdefault(keys, []).append(matrix)
        self.batch.n_points += values.size


def write_large_run(
    writer: Writer, run_id: str, begun_us: int, labels: int = LABELS, keys: int = KEYS, n_steps: int = STEPS
) -> None:
    """Write one run: `keys` metrics and the phases of each step, and a sample of each GPU every second."""
    names = tuple(writer.name(f"train/metric_{n}") for n in range(keys))
    phases = tuple(writer.name(phase) for phase in PHASES)
    numbers = writer.run(run_id, labels, begun_us, n_steps)
    steps_per_flush = max(1, INDEX_FLUSH_ROWS // (labels * (keys + len(PHASES))))
    for first in range(0, n_steps, steps_per_flush):
        steps = range(first, min(first + steps_per_flush, n_steps))
        writer.events("metrics", names, numbers, steps, begun_us, odd=0)
        writer.events("phases", phases, numbers, steps, begun_us, odd=1)
        _sample(writer, run_id, numbers, steps, begun_us)
        writer.write()


def _sample(writer: Writer, run_id: str, numbers: list[int], steps: range, begun_us: int) -> None:
    times = np.arange(begun_us + steps.start * STEP_US, begun_us + steps.stop * STEP_US)[::SAMPLE_US]
    if not len(times):
        return
    names = tuple(writer.name(name) for name in SAMPLED)
    for rank, number in enumerate(numbers):
        device = writer.name(f"GPU-{run_id}-{rank}")
        producer, lead, seq = (np.full(len(times), value) for value in (number, device, 0))
        values = writer.random.random((len(times), len(names)))
        matrix = Matrix(producer.astype(np.int32), lead, seq, times, values)
        writer.batch.system.setdefault(names, []).append(matrix)
        writer.batch.n_points += values.size


def write_small_runs(writer: Writer, count: int, begun_us: int) -> None:
    """Write runs of one label, two metrics and a few steps."""
    keys = (writer.name("loss"), writer.name("accuracy"))
    for first in range(0, count, SMALL_RUNS_PER_FLUSH):
        for number in range(first, min(first + SMALL_RUNS_PER_FLUSH, count)):
            numbers = writer.run(f"small-{number}", 1, begun_us + number * 1_000_000, SMALL_STEPS)
            writer.events("metrics", keys, numbers, range(SMALL_STEPS), begun_us + number * 1_000_000, odd=0)
        writer.write()


def write_long_run(writer: Writer, run_id: str, begun_us: int) -> None:
    """Write one metric of ten times as many steps."""
    key = (writer.name("loss"),)
    numbers = writer.run(run_id, LABELS, begun_us, LONG_STEPS)
    steps_per_flush = INDEX_FLUSH_ROWS // LABELS
    for first in range(0, LONG_STEPS, steps_per_flush):
        steps = range(first, min(first + steps_per_flush, LONG_STEPS))
        writer.events("metrics", key, numbers, steps, begun_us, odd=0)
        writer.write()


def write_store(path: Path, log_id: bytes, large: int, small: int, *, is_numbered: bool = False) -> float:
    """Write the database; return how many points a second of the large runs the index wrote, with all rollups.

    is_numbered: whether each flush has a number, as of a log; pieces of a store end there.
    """
    writer = Writer(path, log_id, is_numbered=is_numbered)
    write_small_runs(writer, small, BEGUN_US - 100_000_000_000)
    write_long_run(writer, "long", BEGUN_US - 50_000_000_000)
    n_before, s_before = writer.n_points, writer.spent_s
    for number in range(large):
        write_large_run(writer, f"large-{number}", BEGUN_US + number * 1_000_000_000)
    rate = (writer.n_points - n_before) / (writer.spent_s - s_before)
    writer.database.checkpoint()
    writer.database.close()
    return rate
