"""A sweep in one process, or the cells of a notebook: one run after the other, in one group.

Run: `python sweep.py`
"""

import chiplog

for lr in (0.1, 0.01):
    with chiplog.init(project="sweep", group="lr", name=f"lr={lr}", config={"lr": lr}) as run:
        for step in range(20):
            run.log({"loss": (1 - lr) ** step}, step=step)
