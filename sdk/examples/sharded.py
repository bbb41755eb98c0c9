"""AMP with ZeRO or FSDP: nothing changes for chiplog. The argument is `zero` or `fsdp`.

Run: `torchrun --standalone --nproc-per-node 2 sharded.py fsdp`
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import chiplog

dist.init_process_group("gloo")
run = chiplog.init(project=f"sharded_{sys.argv[1]}")
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
if sys.argv[1] == "fsdp":
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
else:
    model = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
for step in range(10):
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.ones(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log({"train/loss": loss.detach()}, step=step)
run.finish()
dist.destroy_process_group()
