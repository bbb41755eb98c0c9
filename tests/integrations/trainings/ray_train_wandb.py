"""Ray Train: each of two workers, on a node of its own, calls `wandb.init()` twice. Each run has both labels."""

import os

import ray
import torch
import wandb
from expected import Expected
from local_ray import two_nodes
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

N_RUNS, N_STEPS = 2, 3


def values(rank, step):
    return {"loss": 100 * rank + step / 3, "step_of": step}


def train():
    rank = ray.train.get_context().get_world_rank()
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(N_RUNS):
        wandb.init(config={"lr": 0.1}, tags=["tiny"])
        for step in range(N_STEPS):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            wandb.log(values(rank, step))
        wandb.finish()
    ray.train.report({"done": 1})


if __name__ == "__main__":
    expected = Expected("ray")
    with two_nodes():
        TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
            run_config=RunConfig(storage_path=os.path.abspath("results")),
        ).fit()
    for rank in range(2):
        for step in range(N_STEPS):
            for _ in range(N_RUNS):
                expected.add(step, values(rank, step))
    labels = ["rank0", "rank1"]
    expected.note(runs=N_RUNS, config={"lr": 0.1}, tags=["tiny"], labels=sorted(labels * N_RUNS), ranks=2)
    expected.write()
