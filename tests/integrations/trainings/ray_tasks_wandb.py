"""Ray's tasks and actors: a run for each `init()`, one run of actors in shared mode, a run that is passed to a task."""

import os

import ray
import wandb
from expected import Expected
from local_ray import local_ray

N_STEPS = 3


@ray.remote
def task(n):
    run = wandb.init(config={"kind": "ray"}, tags=["tiny"])
    for step in range(N_STEPS):
        run.log({"task": 100 * n + step})
    wandb.finish()


@ray.remote
class Actor:
    """Logs into the run that another one logs into, too."""

    def __init__(self, n):
        self.n = n
        settings = wandb.Settings(mode="shared", x_label=f"actor-{n}", x_primary=n == 0)
        self.run = wandb.init(id=f"{os.environ['WANDB_PROJECT']}-actors", settings=settings, tags=["tiny"])

    def work(self):
        for step in range(N_STEPS):
            self.run.log({"actor": 100 * self.n + step})
        self.run.finish()


@ray.remote
def passed(run):
    run.log({"passed": 1})
    run.finish()


if __name__ == "__main__":
    expected = Expected("ray")
    with local_ray():
        ray.get([task.remote(n) for n in range(4)])
        actors = [Actor.remote(n) for n in range(2)]
        ray.get([actor.work.remote() for actor in actors])
        run = wandb.init(tags=["tiny"])
        run.log({"driver": 1})
        ray.get(passed.remote(run))
        run.finish()
    for step in range(N_STEPS):
        for n in range(4):
            expected.add(step, {"task": 100 * n + step})
        for n in range(2):
            expected.add(step, {"actor": 100 * n + step})
    expected.add(0, {"driver": 1, "passed": 1})
    expected.note(runs=4 + 1 + 1, config={"kind": "ray"}, tags=["tiny"])
    expected.write()
