"""An elastic restart: rank 1 dies once, torchrun starts both ranks again, and each label has two attempts.

Run: `torchrun --standalone --nproc-per-node 2 --max-restarts 1 elastic.py`
"""

import os
import signal
import time

import chiplog

run = chiplog.init(project="elastic")
for step in range(10):
    run.log({"loss": 1.0 / (step + 1)}, step=step)
    if run.rank == 1 and run.attempt == 0 and step == 4:
        os.kill(os.getpid(), signal.SIGKILL)  # an out-of-memory kill looks like this
    time.sleep(0.05)
run.finish()
