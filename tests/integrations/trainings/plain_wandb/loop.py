"""A loop with steps, open and closed: `step=`, `commit=`, values of several calls in one step."""

import wandb

run = wandb.init(name="a loop", notes="of steps", tags=["b", "a"], group="g", job_type="train")
for i in range(5):
    run.log({"loss": 1 / (i + 1), "n": i})
run.log({"a": 0.1}, commit=False)
run.log({"b": 2**53, "text": "words"})
run.log({"c": 1.5}, step=20)
run.log({"d": -0.0})
run.log({"e": 1e-300})
run.log({"f": 1}, step=30, commit=True)
run.log({"f": 2})
wandb.log({"t": True, "inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}, step=40)
wandb.log({"last": 3}, commit=False)
wandb.finish()
