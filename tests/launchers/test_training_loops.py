"""Training loops as people write them, logging from every rank: DDP, AMP, ZeRO and FSDP, each under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launchers.training import END_S, STARTUP, TORCHRUN, Launched, finished
from tests.support.failed_output import ended_with

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

# A thread that has the name of gloo's, and is in native code when the interpreter ends.
BUSY_THREAD = """
import ctypes, sys, threading, zlib

def work():
    ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop")  # PR_SET_NAME
    has_begun.set()
    zlib.compress(bytes(1 << 27), 9)
    print("has ended", flush=True)

sys.modules["torch"] = sys
has_begun = threading.Event()
threading.Thread(target=work, daemon=True).start()
has_begun.wait()
"""
# Both ranks are on one CPU, where the threads of gloo get time only when nothing else wants it.
LATE_THREADS = """
import os
import torch
import torch.distributed as dist

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
model(torch.ones(4, 8)).sum().backward()
names = {task: open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")}
late = [int(task) for task, name in names.items() if name == "pt_gloo_runloop"]
assert late, names
for task in late:
    os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
model(torch.ones(4, 8)).sum().backward()
dist.destroy_process_group()
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


def test_a_training_ends_after_the_threads_of_gloo() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BUSY_THREAD],
        env={**os.environ, "PYTHONPATH": STARTUP},
        capture_output=True,
        text=True,
        timeout=END_S,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "has ended\n", "")


@pytest.mark.full  # without torch_exit.py it fails two times of three, so that it shows a new name of the threads, too
def test_a_training_loop_ends_well_although_threads_of_torch_are_late(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LATE_THREADS)
    ended = subprocess.run(
        [*TORCHRUN, "--standalone", "--nproc-per-node", "2", str(script)],
        env={**os.environ, "PYTHONPATH": STARTUP, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=END_S,
    )
    assert ended.returncode == 0, ended_with(ended.returncode, ended.stdout)
