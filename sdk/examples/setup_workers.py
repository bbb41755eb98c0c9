"""`chiplog.setup()`: a parent that only starts workers names the run that they join.

Run: `python setup_workers.py`
"""

import multiprocessing

import chiplog


def work(number: int) -> None:
    """Run one worker."""
    with chiplog.init(project="setup_workers", label=f"worker{number}", primary=number == 0) as run:
        for step in range(10):
            run.log({"value": float(step * number)}, step=step)


if __name__ == "__main__":
    chiplog.setup()
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(number,)) for number in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
