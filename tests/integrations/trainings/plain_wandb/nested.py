"""Dicts in dicts, lists, numbers of numpy, and odd names."""

import numpy as np
import wandb

with wandb.init(config={"lr": 0.1}) as run:
    run.log({"train": {"loss": 0.5, "by": {"class/a": 1, "b.c": 2}}, "eval": {}})
    run.log(
        {"np": np.float32(0.1), "np64": np.float64(0.1), "int": np.int64(7), "zero": np.array(3.5), "bool": np.bool_(1)}
    )
    run.log({"list": [1, 2, 3], "tuple": (1.5, "a"), "none": None, "array": np.arange(3)})
    run.log({"": 1, " ": 2, "a b": 3, "ä": 4, "x" * 300: 5, "a/b/": 6})
    run.log({"text": "a" * 2000, "empty": "", "line": "a\nb"})
    run.log({"big": 2**70, "int": 2**60 + 1})
