"""What a training waits for when it logs by the W&B drop-in, or an image, or a table: until `log()` has returned.

Calls take turns with their yardsticks in one process: `chiplog.log()`; Pillow's PNG of the same pixels, and arro3's
Parquet of the same rows, each written to a file.
"""

from tests.bench.bench_rank import python
from tests.bench.figure import Figure, fresh_node

PROGRAM = """
import io, statistics, tempfile, time
import numpy as np
from arro3.core import Array, DataType, Table as ArrowTable
from arro3.io import write_parquet
from PIL import Image
import chiplog
import chiplog.integrations.wandb as wandb

run = wandb.init(project="bench", settings=wandb.Settings(console="off", x_disable_stats=True))
directory = tempfile.mkdtemp(dir=run.dir)
clock, cpus = time.perf_counter_ns, {}

def in_turns(rounds, calls):
    times = {name: [] for name in calls}
    for n in range(-2, rounds):
        for name, call in calls.items():
            given, times_of_call = call[1](n), 1 if len(call) < 3 else call[2]
            begun, cpu = clock(), time.thread_time_ns()
            for _ in range(times_of_call):
                call[0](given)
            if n >= 0:
                times[name].append((clock() - begun) / times_of_call / 1e3)
                cpus.setdefault(name, []).append((time.thread_time_ns() - cpu) / times_of_call / 1e3)
        time.sleep(0.02)  # what was logged is delivered
    return times

def stored(data):
    with open(f"{directory}/file", "wb") as file:
        file.write(data)

floats = {f"train/metric_{i}": 0.1 * i for i in range(10)}
results = in_turns(100, {
    "chiplog.log()": (chiplog.log, lambda n: floats, 500),
    "wandb.log()": (wandb.log, lambda n: floats, 500),
    "chiplog's": (run._inner.log, lambda n: floats, 500),
    "W&B's run.log()": (run.log, lambda n: floats, 500),
})

def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    stored(buffer.getvalue())

random = np.random.default_rng(0)
def pixels(n):
    return random.integers(0, 256, (256, 256, 3), dtype=np.uint8)
results |= in_turns(40, {
    "an image": (lambda given: run.log({"image": wandb.Image(given)}), pixels),
    "Pillow's PNG in a file": (png, pixels),
})

names = [f"column{i}" for i in range(10)]
def rows(n):
    texts = [n, "a text", True, 0.5]
    return [[row, *texts, *random.random(5).tolist()] for row in range(1_000)]
kinds = [DataType.int64(), DataType.int64(), DataType.utf8(), DataType.bool(), *[DataType.float64()] * 6]
def parquet(given):
    columns = [Array(list(column), type=kind) for column, kind in zip(zip(*given), kinds)]
    buffer = io.BytesIO()
    write_parquet(ArrowTable.from_arrays(columns, names=names), buffer)
    stored(buffer.getvalue())

results |= in_turns(40, {
    "a table": (lambda given: run.log({"table": wandb.Table(columns=names, data=given)}), rows),
    "arro3's Parquet in a file": (parquet, rows),
})
assert not run._inner._diagnostics.counts, run._inner._diagnostics.counts
run.finish()
print({name: [statistics.median(times), statistics.median(cpus[name])] for name, times in results.items()})
"""


def measure() -> list[Figure]:
    with fresh_node("--no-stats") as node:
        both = python(PROGRAM, node.environ)

    def figure(name: str, of: str, than: str, unit: str, at_most: float) -> Figure:
        """Return what a call takes; in µs: beyond its yardstick."""
        scale = 1 if unit == "µs" else 1e3
        wall, cpu = ([both[key][at] / scale for key in (of, than)] for at in (0, 1))
        value = wall[0] - wall[1] if unit == "µs" else wall[0]
        beside = f"{of} {wall[0]:.2f}, {than} {wall[1]:.2f}; CPU {cpu[0]:.2f}, {cpu[1]:.2f}"
        return Figure(name, value, unit, at_most, yardstick=beside)

    return [
        figure("log() of ten floats, W&B's drop-in beyond chiplog's", "wandb.log()", "chiplog.log()", "µs", 1.5),
        figure("the same as method of a run", "W&B's run.log()", "chiplog's", "µs", 1.5),
        figure("log() of an image of 256 × 256", "an image", "Pillow's PNG in a file", "ms", 12),
        figure("log() of a table of 1,000 × 10", "a table", "arro3's Parquet in a file", "ms", 5),
    ]
