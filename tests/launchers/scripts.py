"""Training scripts that several launcher tests start. They log as users do; beside that they write down what."""

PLAIN = """
import chiplog
from tests.launchers.truth import Truth

truth = Truth()
run = chiplog.init(config={"lr": 0.1})
for step in range(20):
    truth.log(run, step)
run.finish()
"""

# A collective in every step: no rank is far ahead of the others.
RANKS = """
import torch
import torch.distributed as dist
import chiplog
from tests.launchers.truth import Truth, agree

run = chiplog.init(config={"lr": 0.1})
dist.init_process_group("gloo")
truth = Truth(dist.get_rank(), dist.get_world_size())
for step in range(20):
    total = torch.ones(1)
    dist.all_reduce(total)
    truth.log(run, step, {"total": total.item()})
agree(run)
run.finish()
dist.barrier()
dist.destroy_process_group()
"""
