"""Only rank 0 is recorded: the others have `mode="disabled"`, and the same code.

Run: `torchrun --standalone --nproc-per-node 2 rank0_only.py`
"""

import os

import chiplog

run = chiplog.init(project="rank0_only", mode="online" if os.environ["RANK"] == "0" else "disabled")
for step in range(20):
    run.log({"loss": 1.0 / (step + 1)}, step=step)
run.finish()
