"""chiplog's callback for Ray Tune: four trials side by side, of which one fails twice, beside Ray's JSON logger."""

import glob
import json
import os
import tempfile
from numbers import Number

import ray.tune
from expected import Expected
from local_ray import local_ray
from ray.tune.utils import flatten_dict

from chiplog.integrations.ray import ChiplogLoggerCallback

N_STEPS = 3
NOT_LOGGED = {
    "checkpoint_dir_name",
    "config",
    "date",
    "done",
    "experiment_tag",
    "hostname",
    "node_ip",
    "pid",
    "should_checkpoint",
    "trial_id",
}


def objective(config):
    for step in range(N_STEPS):
        if config["x"] == 3.0 and step == N_STEPS - 1:
            raise ValueError("a trial that fails")
        with tempfile.TemporaryDirectory() as directory:
            metrics = {"loss": config["x"] + step, "nested": {"value": step}, "phase": "train"}
            ray.tune.report(metrics, checkpoint=ray.tune.Checkpoint.from_directory(directory))


if __name__ == "__main__":
    expected = Expected("ray")
    with local_ray():
        ray.tune.Tuner(
            objective,
            param_space={"x": ray.tune.grid_search([1.0, 2.0, 3.0, 4.0]), "layers": 2},
            run_config=ray.tune.RunConfig(
                name="tiny",
                storage_path=os.path.abspath("results"),
                failure_config=ray.tune.FailureConfig(max_failures=1),
                callbacks=[ChiplogLoggerCallback()],
            ),
        ).fit()
    results = glob.glob("results/tiny/*/result.json")
    for path in results:
        with open(path) as file:
            for result in map(json.loads, file):
                kept = {name: value for name, value in result.items() if name not in NOT_LOGGED}
                numbers = {key: value for key, value in flatten_dict(kept).items() if isinstance(value, Number)}
                expected.add(result["training_iteration"], numbers)
    names = [path.split("/")[2] for path in results]
    assert len(names) == 4
    expected.note(runs=5, config={"layers": 2}, states=["failed", "finished"], groups=["tiny", None])
    expected.note(texts=["phase"], events={"checkpoint": 3 * N_STEPS + 2 * (N_STEPS - 1), "traceback": 2})
    expected.write()
