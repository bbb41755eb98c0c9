"""W&B's callbacks for Keras, of any backend: `from wandb.integration.keras import WandbMetricsLogger`."""

import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any

from chiplog.artifacts.artifact import Artifact
from chiplog.integrations.adapter.keras_library import keras, learning_rate
from chiplog.integrations.wandb.errors import warn
from chiplog.integrations.wandb.start import current
from chiplog.media.table import Table
from chiplog.safety.diagnostics import error_line
from chiplog.values.metrics import Histogram

_callbacks = keras().callbacks


class WandbMetricsLogger(_callbacks.Callback):  # type: ignore[misc,name-defined]  # Keras has no types
    """Log what Keras reports of each epoch as `epoch/*`, and of batches as `batch/*`, with the learning rate.

    Args:
        log_freq: epoch, batch, or the number of batches from one row of a batch to the next.
        initial_global_step: Batches before this training, for schedules of the learning rate.
        *given: Accepted.
        **named: Accepted.

    """

    def __init__(self, log_freq: str | int = "epoch", initial_global_step: int = 0, *given: Any, **named: Any) -> None:
        super().__init__()
        self.log_freq = 1 if log_freq == "batch" else log_freq if isinstance(log_freq, int) else None
        self.logging_batch_wise = self.log_freq is not None
        self.global_batch = 0
        self.global_step = initial_global_step
        kind, axis = ("batch", "batch_step") if self.logging_batch_wise else ("epoch", "epoch")
        run = current()
        if run is not None:
            run.define_metric(f"{kind}/{axis}")
            run.define_metric(f"{kind}/*", step_metric=f"{kind}/{axis}")

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log an epoch."""
        self._log_row("epoch", "epoch", epoch, logs)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log a batch, if it is one of those to log."""
        self.global_step += 1
        if self.log_freq and batch % self.log_freq == 0:
            self._log_row("batch", "batch_step", self.global_batch, logs)
            self.global_batch += self.log_freq

    def _log_row(self, kind: str, axis: str, number: int, logs: Mapping[str, Any] | None) -> None:
        row = {f"{kind}/{name}": value for name, value in (logs or {}).items()}
        row[f"{kind}/{axis}"] = number
        rate = self._learning_rate()
        if rate is not None:
            row[f"{kind}/learning_rate"] = rate
        _log(row)

    def _learning_rate(self) -> float | None:
        try:
            return learning_rate(self.model, self.global_step)
        except Exception as error:  # whatever an optimizer has there
            warn(f"WandbMetricsLogger cannot read the learning rate, which is left out: {error_line(error)}")
            return None


class WandbModelCheckpoint(_callbacks.ModelCheckpoint):  # type: ignore[misc,name-defined]
    """Keras's ModelCheckpoint, which also logs each file as a version of the artifact `run_ID_model`.

    Args:
        filepath: Where Keras saves the model, as of ModelCheckpoint.
        **named: Arguments of ModelCheckpoint; `options` of older ones is left out where Keras lacks it.

    """

    def __init__(self, filepath: Any, *given: Any, **named: Any) -> None:
        if named.get("options") is None:
            named.pop("options", None)
        super().__init__(filepath, *given, **named)

    def _save_model(self, epoch: int, *given: Any, **named: Any) -> None:
        # Of Keras 2 and 3: (epoch, batch, logs). It alone decides whether a file is written.
        path = os.fspath(self._get_file_path(epoch, *given, **named))
        before = _written_at(path)
        super()._save_model(epoch, *given, **named)
        if _written_at(path) != before:
            batch = given[0] if given else named.get("batch")
            alias = f"epoch_{epoch}" if batch is None else f"epoch_{epoch}_batch_{batch}"
            _log_model(path, ["latest", alias, *(["best"] if self.save_best_only else [])])


class WandbEvalCallback(_callbacks.Callback):  # type: ignore[misc,name-defined]
    """Log a table of the truth, and one of predictions for each epoch: subclasses fill them.

    A subclass has `add_ground_truth(logs)`, which adds rows to `data_table`, and `add_model_predictions(epoch, logs)`,
    which adds rows to `pred_table` and may read `data_table_ref`.

    Args:
        data_table_columns: Names of the columns of the truth.
        pred_table_columns: Names of the columns of predictions.
        *given: Accepted.
        **named: Accepted.

    """

    def __init__(
        self, data_table_columns: Sequence[str], pred_table_columns: Sequence[str], *given: Any, **named: Any
    ) -> None:
        super().__init__()
        self.data_table_columns = data_table_columns
        self.pred_table_columns = pred_table_columns

    def on_train_begin(self, logs: Any = None) -> None:
        """Log the truth."""
        self.init_data_table(self.data_table_columns)
        self.add_ground_truth(logs)
        self.log_data_table()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log predictions."""
        self.init_pred_table(self.pred_table_columns)
        self.add_model_predictions(epoch, logs)
        self.log_pred_table()

    def add_ground_truth(self, logs: Any = None) -> None:
        """Add rows to `data_table`."""
        raise NotImplementedError(f"{type(self).__name__}.add_ground_truth")

    def add_model_predictions(self, epoch: int, logs: Any = None) -> None:
        """Add rows to `pred_table`."""
        raise NotImplementedError(f"{type(self).__name__}.add_model_predictions")

    def init_data_table(self, column_names: Sequence[str]) -> None:
        """Begin the table of the truth."""
        self.data_table = Table(columns=list(column_names), allow_mixed_types=True)

    def init_pred_table(self, column_names: Sequence[str]) -> None:
        """Begin a table of predictions."""
        self.pred_table = Table(columns=list(column_names))

    def log_data_table(self, name: str = "val", type: str = "dataset", table_name: str = "val_data") -> None:
        """Log the truth as a table of the run. name, type: of W&B's artifact; accepted."""
        _log({table_name: self.data_table}, commit=False)
        self.data_table_ref = self.data_table

    def log_pred_table(self, type: str = "evaluation", table_name: str = "eval_data", aliases: Any = None) -> None:
        """Log predictions as a table of the run. type, aliases: of W&B's artifact; accepted."""
        _log({table_name: self.pred_table}, commit=False)


class WandbCallback(_callbacks.Callback):  # type: ignore[misc,name-defined]
    """W&B's older callback: log what Keras reports of each epoch, and keep the best model.

    Args:
        monitor: The metric that decides which model is the best.
        verbose: Accepted.
        mode: min, max or auto.
        save_weights_only: Keep the weights alone.
        log_weights: Log histograms of the weights: `parameters/*`.
        log_gradients: Not available: one line.
        save_model: Keep the best model as an artifact.
        *given: Accepted.
        log_batch_frequency: Batches from one row to the next; None: none.
        log_best_prefix: Of names in the summary: the best value and its epoch; None: none.
        log_evaluation: Not available: one line.
        **named: Accepted.

    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_weights_only: bool = False,
        log_weights: bool = False,
        log_gradients: bool = False,
        save_model: bool = True,
        *given: Any,
        log_batch_frequency: int | None = None,
        log_best_prefix: str | None = "best_",
        log_evaluation: bool = False,
        **named: Any,
    ) -> None:
        super().__init__()
        self.monitor = monitor
        self.save_weights_only = save_weights_only
        self.log_weights = log_weights
        self.save_model = save_model
        self.log_batch_frequency = log_batch_frequency
        self.log_best_prefix = log_best_prefix
        is_up = mode == "max" or (mode != "min" and ("acc" in monitor or monitor.startswith("fmeasure")))
        self.monitor_op = operator.gt if is_up else operator.lt
        self.best = float("-inf" if is_up else "inf")
        for name, is_asked in (("log_gradients", log_gradients), ("log_evaluation", log_evaluation)):
            if is_asked:
                warn(f"WandbCallback({name}=) is not available in chiplog: nothing of it is recorded")

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log a batch, if it is one of those to log."""
        if self.log_batch_frequency and batch % self.log_batch_frequency == 0:
            _log(dict(logs or {}))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log an epoch, and keep its model if it is the best."""
        row: dict[str, Any] = {"epoch": epoch, **(logs or {})}
        if self.log_weights:
            for weight in self.model.weights:
                name = getattr(weight, "path", None) or weight.name
                row[f"parameters/{name}"] = Histogram.of(_to_numpy(weight))
        _log(row)
        value = (logs or {}).get(self.monitor)
        if value is None or not self.monitor_op(value, self.best):
            return
        self.best = value
        run = current()
        if run is None:
            return
        if self.log_best_prefix:
            run.summary.update({f"{self.log_best_prefix}{self.monitor}": value, f"{self.log_best_prefix}epoch": epoch})
        if self.save_model:
            self._save(os.path.join(run.dir, "model-best"), epoch)

    def _save(self, path: str, epoch: int) -> None:
        path += ".weights.h5" if self.save_weights_only else ".keras"
        try:
            (self.model.save_weights if self.save_weights_only else self.model.save)(path)
        except Exception as error:  # W&B says it and continues, too
            warn(f"WandbCallback cannot save the model, which is not kept: {error_line(error)}")
            return
        _log_model(path, ["latest", "best", f"epoch_{epoch}"])


def _log(row: dict[str, Any], commit: bool | None = None) -> None:
    run = current()
    if run is None:
        warn("W&B's callbacks for Keras record nothing without a run; call wandb.init() first")
    else:
        run.log(row, commit=commit)


def _log_model(path: str, aliases: list[str]) -> None:
    run = current()
    if run is None:
        return
    model = Artifact(f"run_{run.id}_model", type="model")
    (model.add_dir if os.path.isdir(path) else model.add_file)(path)
    run.log_artifact(model, aliases=aliases)


def _written_at(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _to_numpy(weight: Any) -> Any:
    value = weight.numpy() if hasattr(weight, "numpy") else weight
    return value.detach().cpu() if hasattr(value, "detach") else value
