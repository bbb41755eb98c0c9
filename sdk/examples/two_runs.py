"""Two runs to compare: the same training with two learning rates, each with phases.

Run: `python two_runs.py`
"""

import time

import chiplog

for lr in (0.5, 0.1):
    with chiplog.init(project="two-runs", run_id=f"lr-{lr}", label="rank0", config={"lr": lr, "steps": 40}) as run:
        loss = 4.0
        for step in range(40):
            with run.phase("forward"):
                time.sleep(0.002)
            loss -= lr * loss * 0.1
            run.log({"loss": loss}, step=step)
            run.step()
