"""Alerts, and a training that ends by an exception: nothing has to be caught.

Run: `python alerts.py`
"""

import math

import chiplog

run = chiplog.init(project="alerts")
for step in range(10):
    loss = 1.0 / step if step else math.nan
    run.log({"loss": loss}, step=step)
    if math.isnan(loss):
        run.alert("loss is NaN", f"at step {step}", level="error")
raise RuntimeError("the training stops here")
