"""Training loops as people write them, logging from every rank: DDP, AMP, ZeRO and FSDP, each under torchrun."""

import pytest

from tests.launchers.training import TORCHRUN, Launched, finished

pytestmark = pytest.mark.xdist_group("loops")

# Ten steps of a tiny model; the variants replace the marks. Losses are 0-dim tensors, and no step is given.
LOOP = """
import contextlib
import torch
import torch.distributed as dist
from torch import nn
import chiplog
from tests.launchers.truth import Truth

dist.init_process_group("gloo")
truth = Truth(dist.get_rank(), dist.get_world_size())
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
precision = contextlib.nullcontext()
{model}
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
{optimizer}
run = chiplog.init(config={{"lr": 0.01}})
torch.manual_seed(dist.get_rank())
for step in range(10):
    x = torch.randn(32, 8)
    with precision:
        loss = nn.functional.mse_loss(model(x).float(), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    values = {{"train/loss": loss.detach(), "train/lr": optimizer.param_groups[0]["lr"]}}
    with truth.of(step, values):
        run.log(values)
run.finish()
dist.barrier()
dist.destroy_process_group()
"""

DDP = "model = nn.parallel.DistributedDataParallel(model)"
AMP = f'{DDP}\nprecision = torch.autocast("cpu", dtype=torch.bfloat16)'
FSDP = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
"""
ZERO = """
from torch.distributed.optim import ZeroRedundancyOptimizer
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
"""


@pytest.mark.parametrize(
    ("name", "model", "optimizer"),
    [
        ("DDP", DDP, ""),
        pytest.param("AMP", AMP, "", marks=pytest.mark.full),
        pytest.param("ZeRO", DDP, ZERO, marks=pytest.mark.full),
        pytest.param("FSDP", FSDP, "", marks=pytest.mark.full),
    ],
    ids=["DDP", "AMP", "ZeRO", "FSDP"],
)
def test_each_rank_of_a_training_loop_logs_its_own_losses(launched: Launched, name, model, optimizer) -> None:
    training = launched(f"torchrun, {name}")
    script = training.script(LOOP.format(model=model, optimizer=optimizer))
    training.run([*TORCHRUN, "--standalone", "--nproc-per-node", "2", script])
    training.check(finished(2))
