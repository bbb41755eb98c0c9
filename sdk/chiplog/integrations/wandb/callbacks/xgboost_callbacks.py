"""W&B's callbacks for XGBoost: `from wandb.integration.xgboost import WandbCallback`."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xgboost.callback import TrainingCallback

from chiplog.integrations.wandb.callbacks.library_callbacks import (
    LibraryCallback,
    importance_chart,
    log_model,
    summary_word,
)
from chiplog.safety.boundary import never_raises

_SMALLER = ("error", "error@t", "merror", "rmse", "rmsle", "mae", "mape", "mphe")  # W&B's; losses, too
_LARGER = ("auc", "aucpr", "ndcg", "map", "ndcg@n", "map@n")


class WandbCallback(LibraryCallback, TrainingCallback):  # type: ignore[misc]  # mypy has no types of it
    """Log the metrics of each iteration as `DATA-METRIC`, and the booster's config, best score and importances.

    Args:
        log_model: Log the model as an artifact.
        log_feature_importance: Log the importance of features as a table.
        importance_type: gain, weight, cover, total_gain or total_cover; weight for linear models.
        define_metric: The summary has the best value of a metric, not the last one.

    """

    _library = "XGBoost"

    def __init__(
        self,
        log_model: bool = False,
        log_feature_importance: bool = True,
        importance_type: str = "gain",
        define_metric: bool = True,
    ) -> None:
        super().__init__()
        self._run()
        self.log_model = log_model
        self.log_feature_importance = log_feature_importance
        self.importance_type = importance_type
        self.define_metric = define_metric

    def before_training(self, model: Any) -> Any:
        """Record the config of the booster."""
        self._begin(model)
        return model

    @never_raises("before_training")
    def _begin(self, model: Any) -> None:
        run = self._run()
        if run is not None:
            run.config.update(json.loads(model.save_config()))

    @never_raises("after_iteration", lambda: False)
    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, Sequence[Any]]]) -> bool:
        """Log the metrics of an iteration."""
        run = self._run()
        if run is None:
            return False
        row: dict[str, Any] = {}
        for data, metrics in evals_log.items():
            for name, values in metrics.items():
                row[f"{data}-{name}"] = values[-1]
                word = summary_word(name, _SMALLER, _LARGER)
                if self.define_metric and word is not None:
                    run.define_metric(f"{data}-{name}", summary=word)
        self.define_metric = False  # once is enough
        run.log({**row, "epoch": epoch})
        return False

    def after_training(self, model: Any) -> Any:
        """Log the model, the importances, and the best score."""
        if self.log_model:
            self._log_model(model)
        if self.log_feature_importance:
            self._log_importances(model)
        self._log_best(model)
        return model

    @never_raises("log_model")
    def _log_model(self, model: Any) -> None:
        run = self._run()
        if run is not None:
            name = f"{run.id}_model.json"
            path = os.path.join(run.dir, name)
            model.save_model(path)
            log_model(run, name, path)

    @never_raises("log_feature_importance")
    def _log_importances(self, model: Any) -> None:
        run = self._run()
        if run is not None:
            scores = model.get_score(importance_type=self.importance_type)
            run.log(importance_chart([list(pair) for pair in scores.items()]))

    @never_raises("after_training")
    def _log_best(self, model: Any) -> None:
        run, score = self._run(), model.attr("best_score")
        if run is not None and score is not None:
            run.log({"best_score": float(score), "best_iteration": int(model.attr("best_iteration"))})


class _OlderCallback(LibraryCallback):
    _library = "XGBoost"

    @never_raises("wandb_callback")
    def __call__(self, env: Any) -> None:
        run = self._run()
        if run is not None:
            run.log(dict(env.evaluation_result_list))


def wandb_callback() -> Callable[[Any], None]:
    """Return W&B's older callback, for versions of XGBoost that take functions: it logs the results of an iteration."""
    return _OlderCallback()
