"""chiplog's callback for Ray Train on two nodes: a rank fails once, and Ray retries from the checkpoint."""

import json
import os
import tempfile

import ray
import ray.train
import torch
from expected import Expected
from local_ray import two_nodes
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

import chiplog
from chiplog.integrations.ray import ChiplogCallback

N_STEPS, N_SAVED = 5, 2  # the failure comes after the second report, which has a checkpoint


def train(config):
    """Write down what each rank reports, in a file of its own."""
    rank = ray.train.get_context().get_world_rank()
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    first, checkpoint = 0, ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory, open(os.path.join(directory, "step")) as file:
            first = int(file.read())
    for step in range(first, N_STEPS):
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        metrics = {"loss": loss.item() + rank, "nested": {"rank": rank, "first": first}}
        chiplog.log({"batch": 100 * rank + step}, step=1000 + step)
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "step"), "w") as file:
                print(step + 1, file=file)
            saves = rank == 0 and step + 1 == N_SAVED
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(directory) if saves else None)
        with open(os.path.join(config["written"], f"rank{rank}"), "a") as file:
            print(json.dumps([step, rank, metrics]), file=file)
        if not first and step + 1 == N_SAVED:
            if rank == 1:
                raise ValueError("a rank that fails")
            torch.distributed.barrier()  # for the rank that is gone


if __name__ == "__main__":
    expected = Expected("ray")
    written = os.path.abspath("written")
    os.mkdir(written)
    with two_nodes():
        result = TorchTrainer(
            train,
            train_loop_config={"lr": 0.1, "written": written},
            scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
            run_config=RunConfig(
                name="tiny",
                storage_path=os.path.abspath("results"),
                failure_config=FailureConfig(max_failures=1),
                callbacks=[ChiplogCallback(tags=["tiny"])],
            ),
        ).fit()
    for name in os.listdir(written):
        with open(os.path.join(written, name)) as file:
            for step, rank, metrics in map(json.loads, file):
                nested = {f"nested/{key}": value for key, value in metrics["nested"].items()}
                expected.add(step, {"loss": metrics["loss"], **nested})
                expected.add(1000 + step, {"batch": 100 * rank + step})
    assert result.checkpoint is not None
    expected.note(config={"lr": 0.1}, tags=["tiny"], ranks=2, events={"checkpoint": 1, "traceback": 1})
    expected.note(states=["failed", "finished"])
    expected.write()
