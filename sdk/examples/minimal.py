"""The smallest program that chiplog records: three lines around a loop, and nothing to configure or start first.

Run: `python minimal.py`
"""

import math
import random

import chiplog

run = chiplog.init(project="first", config={"lr": 0.1})
for step in range(100):
    loss = math.exp(-step / 30) + 0.02 * random.random()
    run.log({"train/loss": loss, "train/lr": 0.1}, step=step)
run.finish()
print("recorded; to look at it: chiplog show latest")
