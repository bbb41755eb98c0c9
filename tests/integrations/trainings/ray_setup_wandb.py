"""Ray's setup_wandb() in the trials of Ray Tune: a run for each, written by the trial itself."""

import os

import ray.tune
from expected import Expected
from local_ray import local_ray
from ray.air.integrations.wandb import setup_wandb

N_STEPS = 3


def objective(config):
    run = setup_wandb(config, project=os.environ["WANDB_PROJECT"], tags=["tiny"])
    for step in range(N_STEPS):
        run.log({"loss": config["x"] + step})
        ray.tune.report({"loss": config["x"] + step})
    run.finish()


if __name__ == "__main__":
    expected = Expected("ray")
    with local_ray():
        ray.tune.Tuner(
            objective,
            param_space={"x": ray.tune.grid_search([1.0, 2.0]), "layers": 2},
            run_config=ray.tune.RunConfig(storage_path=os.path.abspath("results")),
        ).fit()
    for x in (1.0, 2.0):
        for step in range(N_STEPS):
            expected.add(step, {"loss": x + step})
    expected.note(runs=2, config={"layers": 2}, tags=["tiny"])
    expected.write()
