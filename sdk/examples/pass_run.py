"""A run passed to child processes as an argument: each logs into it under its own label.

Run: `python pass_run.py`
"""

import multiprocessing

import chiplog


def work(run: chiplog.Run, number: int) -> None:
    """Log into the parent's run."""
    for step in range(10):
        run.log({f"worker{number}/loss": 1.0 / (step + 1)}, step=step)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with chiplog.init(project="pass_run", label="parent") as run:
        workers = [context.Process(target=work, args=(run, number)) for number in (0, 1)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        run.log({"done": True})
