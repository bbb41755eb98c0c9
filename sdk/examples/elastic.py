"""An elastic restart: rank 1 dies once, torchrun starts both ranks again, and each label has two attempts.

Run: `torchrun --standalone --nproc-per-node 2 --max-restarts 1 elastic.py`
"""

import os
import signal
import time
from pathlib import Path
from tempfile import gettempdir

import chiplog

run = chiplog.init(project="elastic")
meeting = Path(gettempdir(), f"elastic-{run.id}")  # rank 1 must not die before rank 0 has started
for step in range(10):
    run.log({"loss": 1.0 / (step + 1)}, step=step)
    if run.rank == 0:
        meeting.touch()
    elif run.restart_count == 0 and step == 4:
        while not meeting.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)  # an out-of-memory kill looks like this
    time.sleep(0.02)
run.finish()
if run.restart_count:
    meeting.unlink(missing_ok=True)
