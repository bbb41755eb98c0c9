"""W&B's callback for LightGBM, and its summary of the model."""

import lightgbm
import numpy
import wandb
from expected import Expected
from wandb.integration.lightgbm import log_summary, wandb_callback

expected = Expected("lightgbm")
chosen = numpy.random.default_rng(0)
x = chosen.normal(size=(80, 3))
y = x[:, 0] + chosen.normal(size=80)
train = lightgbm.Dataset(x[:60], y[:60])
valid = lightgbm.Dataset(x[60:], y[60:], reference=train)
parameters = {"objective": "regression", "metric": ["l2", "l1"], "min_data_in_leaf": 4, "verbose": -1, "num_threads": 1}
wandb.init(tags=["tiny"])
found = {}
booster = lightgbm.train(
    parameters,
    train,
    num_boost_round=40,
    valid_sets=[train, valid],
    valid_names=["train", "valid_0"],
    callbacks=[
        wandb_callback(),
        lightgbm.record_evaluation(found),
        lightgbm.early_stopping(3, verbose=False),
    ],
)
log_summary(booster, save_model_checkpoint=True)
wandb.finish()
values = {f"{data}_{metric}": found[data][metric] for data in found for metric in found[data]}
for iteration in range(len(values["valid_0_l2"])):
    expected.add(iteration, {"iteration": iteration, **{key: column[iteration] for key, column in values.items()}})
expected.note(
    config={"objective": "regression", "min_data_in_leaf": 4},
    tags=["tiny"],
    summary={
        "best_iteration": booster.best_iteration,
        "best_score/valid_0/l2": booster.best_score["valid_0"]["l2"],
        **{key: min(column) for key, column in values.items()},
    },
    media=["Feature Importance_table"],
    artifacts=1,
)
expected.write()
