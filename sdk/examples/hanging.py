"""A run that hangs: one of three ranks gets no more data, and the others wait for it.

Run: `python hanging.py`
"""

import multiprocessing
import time
from contextlib import suppress
from threading import BrokenBarrierError
from typing import Any

import chiplog


def batches(rank: int) -> Any:
    """Yield data, late on rank 2; then none, for longer than the others wait."""
    for number in range(6 if rank == 2 else 7):
        time.sleep(0.05 if rank == 2 else 0.001)
        yield number
    time.sleep(0.8 if rank == 2 else 0.0)


def train(rank: int, everybody: Any) -> None:
    """Run one rank: a step ends when all ranks have reached the barrier."""
    with chiplog.init(project="hanging", label=f"rank{rank}", primary=rank == 0) as run, suppress(BrokenBarrierError):
        for step, number in enumerate(run.data(batches(rank))):
            run.log({"loss": 1.0 / (number + 1)}, step=step)
            with run.phase("all_reduce"):
                everybody.wait(0.4 if step == 6 else 20.0)  # a real barrier waits forever
            run.step()


if __name__ == "__main__":
    chiplog.setup()
    barrier = multiprocessing.Barrier(3)
    ranks = [multiprocessing.Process(target=train, args=(rank, barrier)) for rank in range(3)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
