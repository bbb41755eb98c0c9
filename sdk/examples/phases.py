"""Phases show where the time of a step goes: with a `with` block or a decorator. Waiting for data is a phase too.

Run: `python phases.py`
"""

import time

import chiplog

run = chiplog.init(project="phases")


@run.phase("eval")
def evaluate() -> None:
    """Take some time."""
    time.sleep(0.01)


for step, number in enumerate(run.data(range(10))):
    with run.phase("forward"):
        time.sleep(0.001)
    if step == 9:
        evaluate()
    run.log({"loss": 1.0 / (number + 1)}, step=step)
    run.step()  # phases since the last step() belong to this one
run.finish()
