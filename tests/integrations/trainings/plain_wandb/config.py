"""A config as a namespace, with updates, by attribute and by item, nested, and with values of other types."""

import argparse
import enum
import pathlib

import numpy as np
import wandb


class Color(enum.Enum):
    RED = 1


run = wandb.init(config=argparse.Namespace(lr=0.1, layers=[1, 2], name="net", deep={"a": {"b": 1}}, none=None))
run.config.update({"batch": 32, "lr": 0.2}, allow_val_change=True)
run.config.epochs = 3
run.config["flag"] = True
wandb.config.update({"seen": (1, 2)})
run.config.setdefaults({"epochs": 9, "default": "yes"})
run.config.update({"np": np.float64(0.25), "np32": np.float32(0.1), "int": np.int64(3), "array": np.arange(3)})
run.config.update({"nan": float("nan"), "inf": float("inf"), "path": pathlib.Path("/a/b"), "color": Color.RED})
run.config.update({"a.b": 1, "a/b": 2, "deep": {"c": 3}}, allow_val_change=True)
run.config.update({"type": int, "function": len, "set": {1}, "bytes": b"ab"})
run.name = "renamed"
run.notes = "later"
run.tags += ("c",)
run.log({"x": 1})
run.finish()
