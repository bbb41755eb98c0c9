"""Only rank 0 is recorded: one argument, and the same code on all ranks.

Run: `torchrun --standalone --nproc-per-node 2 rank0_only.py`
"""

import chiplog

run = chiplog.init(project="rank0_only", mode="rank0")
for step in range(20):
    run.log({"loss": 1.0 / (step + 1)}, step=step)
run.finish()
