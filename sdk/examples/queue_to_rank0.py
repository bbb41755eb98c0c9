"""Other processes send values through a queue to the process that logs: they do not need chiplog.

Run: `python queue_to_rank0.py`
"""

import multiprocessing
from typing import Any

import chiplog


def work(number: int, results: Any) -> None:
    """Send values to log."""
    for step in range(10):
        results.put((step, {f"worker{number}/loss": 1.0 / (step + number)}))
    results.put(None)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=work, args=(number, results)) for number in (1, 2)]
    for worker in workers:
        worker.start()
    with chiplog.init(project="queue_to_rank0") as run:
        for _ in workers:
            while (item := results.get()) is not None:
                step, data = item
                run.log(data, step=step)
    for worker in workers:
        worker.join()
