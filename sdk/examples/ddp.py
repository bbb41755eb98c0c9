"""DDP under torchrun: every rank calls `init()`, unchanged, and logs into one run.

Run: `torchrun --standalone --nproc-per-node 2 ddp.py`
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import chiplog

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
run = chiplog.init(config={"lr": 0.1})
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    with run.phase("forward"):
        loss = model(torch.full((16, 8), 1.0 + dist.get_rank())).square().mean()
    with run.phase("backward"):  # waits here for the slowest rank
        optimizer.zero_grad()
        loss.backward()
    optimizer.step()
    run.log({"train/loss": loss.detach()}, step=step)
run.finish()
dist.destroy_process_group()
