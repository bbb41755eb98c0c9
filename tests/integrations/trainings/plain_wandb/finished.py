"""A run that is finished with a code, and the next one of the process, which leaves its code to the end."""

import wandb

with wandb.init(name="first") as run:
    run.log({"loss": 1.0})
    run.finish(exit_code=4)
second = wandb.init(name="second", settings=wandb.Settings(run_notes="by settings", run_group="g"))
second.log({"loss": 2.0})
