"""multiprocessing: children that call `init()` join their parent's run. The argument is the start method.

Run: `python children.py fork`
"""

import multiprocessing
import sys

import chiplog


def work(number: int) -> None:
    """Run one child: it logs into the parent's run under its own label."""
    run = chiplog.init(label=f"worker{number}")
    for step in range(10):
        run.log({"value": float(step * number)}, step=step)


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with chiplog.init(project=f"children_{sys.argv[1]}", label="parent") as run:
        run.log({"children": 2})
        workers = [context.Process(target=work, args=(number,)) for number in (1, 2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
