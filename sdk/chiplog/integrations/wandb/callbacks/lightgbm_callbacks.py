"""W&B's callback for LightGBM: `from wandb.integration.lightgbm import wandb_callback, log_summary`."""

import os
from collections.abc import Callable
from typing import Any

from lightgbm import Booster

from chiplog.integrations.wandb.callbacks.library_callbacks import (
    LibraryCallback,
    importance_chart,
    log_model,
    summary_word,
)
from chiplog.integrations.wandb.errors import warn
from chiplog.safety.boundary import never_raises

_SMALLER = ("l1", "l2", "rmse", "mape", "huber", "fair", "poisson", "gamma")  # W&B's; losses, too
_LARGER = ("map", "auc", "average_precision")


class _Callback(LibraryCallback):
    _library = "LightGBM"
    order = 20  # after LightGBM's own record of results, before early stopping; W&B's
    before_iteration = False

    def __init__(self, log_params: bool = True, define_metric: bool = True) -> None:
        self.log_params = log_params
        self.define_metric = define_metric

    @never_raises("wandb_callback")
    def __call__(self, env: Any) -> None:
        run = self._run()
        if run is None:
            return
        is_first = env.iteration == env.begin_iteration
        if is_first and self.log_params:
            run.config.update(env.params)
        values: dict[tuple[str, str], float] = {}
        for result in env.evaluation_result_list:
            values |= _values(*result)
        for data, metric in values if is_first and self.define_metric else ():
            word = summary_word(metric, _SMALLER, _LARGER)
            if word is not None:
                run.define_metric(f"{data}_{metric}", summary=word)
        row = {f"{data}_{metric}": value for (data, metric), value in values.items()}
        run.log({**row, "iteration": env.iteration})

    @never_raises("log_summary")
    def log_summary(self, model: Any, feature_importance: bool, save_model_checkpoint: bool) -> None:
        """Record what is known of a model after its training."""
        run = self._run()
        if run is None:
            return
        if not isinstance(model, Booster):
            warn(f"wandb's log_summary() takes a lightgbm.Booster, not a {type(model).__name__}; it records nothing")
            return
        run.summary.update({"best_iteration": model.best_iteration, "best_score": model.best_score})
        if feature_importance:
            importances = zip(model.feature_name(), model.feature_importance().tolist(), strict=True)
            run.log(importance_chart([list(pair) for pair in importances]), commit=False)
        if save_model_checkpoint:
            path = os.path.join(run.dir, f"model_ckpt_{model.best_iteration}.txt")
            model.save_model(path, num_iteration=model.best_iteration)
            log_model(run, f"model_{run.id}", path, ["best"])


def _values(data: str, metric: str, value: float, _: bool, deviation: float | None = None) -> dict[Any, float]:
    """Return a result of LightGBM by data and metric: of cv() the mean and the standard deviation of folds."""
    if deviation is None:
        return {(data, metric): value}
    if data == "cv_agg":  # LightGBM before 4.7 has both names in one text
        data, _name, metric = metric.partition(" ")
    return {(data, f"{metric}-mean"): value, (data, f"{metric}-stdv"): deviation}


def wandb_callback(log_params: bool = True, define_metric: bool = True) -> Callable[[Any], None]:
    """Return a callback of LightGBM that logs the metrics of each iteration as `DATA_METRIC`.

    Args:
        log_params: Record the parameters as config.
        define_metric: The summary has the best value of a metric, not the last one.

    """
    return _Callback(log_params, define_metric)


def log_summary(model: Any, feature_importance: bool = True, save_model_checkpoint: bool = False) -> None:
    """Record the best iteration and score of a trained model in the summary.

    Args:
        model: A lightgbm.Booster.
        feature_importance: Log the importance of features as a table.
        save_model_checkpoint: Log the model as an artifact with the alias `best`.

    """
    _Callback().log_summary(model, feature_importance, save_model_checkpoint)
