"""`define_metric` and `run.summary`: words, patterns, step metrics, NaN, nested and deleted entries."""

import math

import wandb

run = wandb.init()
run.define_metric("epoch")
run.define_metric("val/*", step_metric="epoch")
run.define_metric("least", summary="min")
run.define_metric("most", summary="max")
run.define_metric("both", summary="min,max,mean,last")
run.define_metric("first", summary="first")
run.define_metric("none", summary="none")
run.define_metric("copy", summary="copy")
run.define_metric("twice", summary="min")
run.define_metric("twice", step_metric="epoch")
run.define_metric("again", summary="min")
run.define_metric("again", summary="max", overwrite=True)
run.define_metric("val/*", summary="max")
run.define_metric("hidden", hidden=True)
run.define_metric("deep.inner", summary="max")
run.define_metric("nans", summary="min,mean")
run.define_metric("nan", summary="max")
for i, x in enumerate((2.0, 1.0, 3.0, 2.5)):
    run.log(
        {
            "least": x,
            "most": x,
            "both": x,
            "first": x,
            "none": x,
            "copy": x,
            "twice": x,
            "again": x,
            "plain": x,
            "hidden": x,
        }
    )
    run.log({"deep": {"inner": x, "other": x}, "nans": math.nan if i == 2 else x, "nan": math.nan, "all_nan": math.nan})
    run.log({"epoch": i, "val/loss": x})
    run.log({"val/acc": -x})
run.summary["assigned"] = 7
run.summary["plain"] = "replaced"
run.summary["nested"] = {"a": {"b": 1}, "c": [1, 2]}
run.summary.update({"updated": 0.5, "text": "words", "none_at_all": None, "true": True})
run.summary["nested"]["a"]["d"] = 2
run.summary["gone"] = 1
del run.summary["gone"]
run.summary["infinite"] = math.inf
run.summary["not_a_number"] = math.nan
run.log({"updated": 0.75})
