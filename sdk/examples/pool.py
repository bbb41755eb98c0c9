"""A Pool whose workers open one run for each task, in one group.

Run: `python pool.py`
"""

from multiprocessing import Pool

import chiplog


def trial(lr: float) -> float:
    """Train once, in a separate run."""
    with chiplog.init(
        project="pool", group="trials", job_type="trial", config={"lr": lr}, one_run_per_process=True
    ) as run:
        loss = 1.0
        for step in range(20):
            loss *= 1 - lr
            run.log({"loss": loss}, step=step)
    return loss


if __name__ == "__main__":
    with Pool(2) as pool:
        print("best", min(pool.map(trial, [0.4, 0.2, 0.1])))
