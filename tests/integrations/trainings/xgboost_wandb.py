"""W&B's callback for XGBoost, with early stopping: the best score, importances and the model."""

import numpy
import wandb
import xgboost
from expected import Expected
from wandb.integration.xgboost import WandbCallback

expected = Expected("xgboost-cpu")
chosen = numpy.random.default_rng(0)
x, noise = chosen.normal(size=(80, 3)), chosen.normal(size=80)
y = x[:, 0] + noise > 0
train, test = xgboost.DMatrix(x[:60], y[:60]), xgboost.DMatrix(x[60:], y[60:])
wandb.init(tags=["tiny"])
found = {}
booster = xgboost.train(
    {"objective": "binary:logistic", "eval_metric": ["auc", "logloss"], "max_depth": 2},
    train,
    num_boost_round=40,
    evals=[(train, "train"), (test, "test")],
    early_stopping_rounds=3,
    evals_result=found,
    verbose_eval=False,
    callbacks=[WandbCallback(log_model=True)],
)
wandb.finish()
values = {f"{data}-{metric}": found[data][metric] for data in found for metric in found[data]}
n_rows = len(values["test-auc"])
for epoch in range(n_rows):
    expected.add(epoch, {"epoch": epoch, **{key: column[epoch] for key, column in values.items()}})
best = {"best_score": booster.best_score, "best_iteration": booster.best_iteration}
expected.add(n_rows + 1, best)  # the table of importances has the step before
best |= {key: min(column) if "loss" in key else max(column) for key, column in values.items()}
expected.note(
    config={"version": [int(part) for part in xgboost.__version__.split(".")]},  # of save_config()
    tags=["tiny"],
    summary=best,
    media=["Feature Importance_table"],
    artifacts=1,
)
expected.write()
