"""One run for each process, held together by a group.

Run: `torchrun --standalone --nproc-per-node 2 run_per_process.py`
"""

import os

import chiplog

seed = int(os.environ["RANK"])
run = chiplog.init(
    project="run_per_process", one_run_per_process=True, group="exp1", job_type="worker", config={"seed": seed}
)
for step in range(20):
    run.log({"loss": 1.0 / (step + 1 + seed)}, step=step)
run.finish()
