"""An exception that nothing catches."""

import wandb

run = wandb.init(tags=["a"])
run.log({"loss": 1.0})
run.summary["seen"] = 1
run.log({"loss": 2.0}, commit=False)
raise ValueError("diverged")
