"""Ray Tune with Ray's own WandbLoggerCallback: a run for each trial, written by an actor of Ray."""

import os
import tempfile
from numbers import Number

import numpy
import ray.tune
from expected import Expected
from local_ray import local_ray
from ray.air.integrations.wandb import WandbLoggerCallback
from ray.tune.logger import LoggerCallback
from ray.tune.utils import flatten_dict

N_STEPS = 3
NOT_LOGGED = {"done", "should_checkpoint", "pid"}  # by the callback: the last one goes into the config


class Recorder(LoggerCallback):
    """Writes down what Tune reports to its callbacks."""

    def log_trial_result(self, iteration, trial, result):
        rest = {name: value for name, value in result.items() if name not in NOT_LOGGED | {"config"}}
        numbers = {name: value for name, value in flatten_dict(rest).items() if isinstance(value, Number)}
        expected.add(result["training_iteration"], numbers)


def objective(config):
    for step in range(N_STEPS):
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "weights"), "w") as file:
                print(config["x"], step, file=file)
            image = numpy.full((3, 8, 3), step, numpy.uint8)
            checkpoint = ray.tune.Checkpoint.from_directory(directory)
            ray.tune.report(
                {"loss": config["x"] + step, "nested": {"value": step}, "image": image}, checkpoint=checkpoint
            )


if __name__ == "__main__":
    expected = Expected("ray")
    report = WandbLoggerCallback(project=os.environ["WANDB_PROJECT"], tags=["tiny"], upload_checkpoints=True)
    with local_ray():
        ray.tune.Tuner(
            objective,
            param_space={"x": ray.tune.grid_search([1.0, 2.0]), "layers": 2},
            run_config=ray.tune.RunConfig(storage_path=os.path.abspath("results"), callbacks=[report, Recorder()]),
        ).fit()
    expected.note(runs=2, config={"layers": 2}, tags=["tiny"], media=["image"], artifacts=2 * N_STEPS)
    expected.write()
