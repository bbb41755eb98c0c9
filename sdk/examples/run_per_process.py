"""One run for each process, held together by a group.

Run: `torchrun --standalone --nproc-per-node 2 run_per_process.py`
"""

import os

import chiplog

rank, launch = os.environ["RANK"], os.environ["TORCHELASTIC_RUN_ID"]
run = chiplog.init(
    project="run_per_process",
    run_id=f"{launch}-{rank}",
    group=launch,
    job_type="worker",
    primary=True,
    config={"seed": int(rank)},
)
for step in range(20):
    run.log({"loss": 1.0 / (step + 1 + int(rank))}, step=step)
run.finish()
