"""The callback for Keras: metrics, phases, checkpoints and the model's config, on every process that has it."""

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from chiplog.integrations.adapter.framework_run import FrameworkRun
from chiplog.integrations.adapter.hook_phases import HookPhases
from chiplog.integrations.adapter.keras_library import keras, learning_rate
from chiplog.safety.boundary import never_raises
from chiplog_schemas.interrupts import unless_interrupt

_SAVES = ("save", "save_weights")  # methods of a model; ModelCheckpoint and BackupAndRestore call them, too
_EVALUATES = "_chiplog_evaluates"  # attribute of a model: the callback that records its evaluation
_SCHEDULE_EVERY = 10  # batches: to compute a schedule takes 50 to 100 µs, to read a constant rate 3 µs
_log = logging.getLogger("chiplog")
_keras = keras()


class ChiplogCallback(_keras.callbacks.Callback):  # type: ignore[misc,name-defined]  # Keras has no types
    """Record a training, an evaluation, or both.

    Each batch is a row `batch/*` at the number of batches before it, each epoch a row `epoch/*` at the step of its last
    batch, with what Keras reports and the learning rate. An `evaluate()` is a row `eval/*`. Phases are train, eval,
    checkpoint and, with the PyTorch backend, data.

    Args:
        log_model: Log each saved model, or its weights, as a version of the artifact `model-<run ID>`. Without it its
            path is an event.
        **arguments: Of `chiplog.init`, if no run is open: project, name, config, tags and others.

    Examples:
        >>> model.fit(x, y, callbacks=[ChiplogCallback(project="mnist")])

    """

    def __init__(self, *, log_model: bool = False, **arguments: Any) -> None:
        super().__init__()
        self._run = FrameworkRun(**arguments)
        self._phases = HookPhases(self._run)
        self._log_model = log_model
        self._trained: Any = None  # the model, during fit()
        self._step: int | None = None  # batches so far; None before the first one
        self._batch = -1  # the last batch of this epoch
        self._epoch = -1  # the last epoch of this fit()
        self._is_second = False  # another callback of the model records
        self._rate_every = 1
        self._waits_apart = False  # Keras waits for data between batches, not in them

    # -- Keras's hooks --

    @never_raises("set_model")
    def set_model(self, model: Any) -> None:
        """Begin a `fit()` or an `evaluate()`. The one before may have raised an exception."""
        super().set_model(model)
        self._stop()
        _unwrap(model)

    @never_raises("on_train_begin")
    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to record, unless another callback of this class does."""
        model = self.model
        self._is_second = self._trained is None and _is_wrapped(model, _SAVES[0])
        if self._is_second:
            _log.warning("chiplog: the model has several ChiplogCallbacks; the first one records")
            return
        self._trained, self._epoch = model, -1
        for name in _SAVES:
            if name not in model.__dict__:
                model.__dict__[name] = partial(_save, self, getattr(model, name))
        self._waits_apart = hasattr(_keras, "backend") and _keras.backend.backend() == "torch"
        rate = getattr(model.optimizer, "learning_rate", None)
        self._rate_every = 1 if hasattr(rate, "assign") or isinstance(rate, float | int) else _SCHEDULE_EVERY
        self._run.open().config.update({"keras": _description(model, self.params)})

    @never_raises("on_epoch_begin")
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin an epoch, and to wait for its first batch."""
        if self._trained is not None:
            self._batch = -1
            self._await_data()

    @never_raises("on_train_batch_begin")
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begin a batch: forward, backward and optimizer, which Keras does in one call."""
        if self._trained is not None:
            self._phases.begin("train")
        elif not self._is_second:
            self._is_second = True
            _log.warning(
                "chiplog: this ChiplogCallback was in a fit() inside of this one, whose rest it leaves out; use another"
            )

    @never_raises("on_train_batch_end")
    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log a batch, or several that are one call, by `steps_per_execution`."""
        if self._trained is None or batch <= self._batch:  # the second: it is twice in the list of callbacks
            return
        self._phases.end()
        if self._step is None:  # after a restored checkpoint it is not 0
            self._step = self._batches_before(batch - self._batch)
        self._step += batch - self._batch
        row = {f"batch/{name}": value for name, value in (logs or {}).items()}
        if (self._batch + 1) % self._rate_every == 0:
            self._add_rate(row, "batch")
        self._batch = batch
        self._phases.log_step(row, self._step - 1)
        self._await_data()

    @never_raises("on_epoch_end")
    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log an epoch."""
        if self._trained is None or epoch <= self._epoch:
            return
        self._epoch = epoch
        self._phases.end()
        row = {"epoch": epoch, **{f"epoch/{name}": value for name, value in (logs or {}).items()}}
        self._add_rate(row, "epoch")
        self._run.open().log(row, step=self._last_step())

    @never_raises("on_train_end")
    def on_train_end(self, logs: Any = None) -> None:
        """End to record."""
        self._stop()

    @never_raises("on_test_begin")
    def on_test_begin(self, logs: Any = None) -> None:
        """Begin an evaluation, unless another callback of this class does."""
        if self._trained is None and _is_wrapped(self.model, _SAVES[0]):
            return
        if self.model.__dict__.setdefault(_EVALUATES, self) is self:
            self._phases.begin("eval")

    @never_raises("on_test_end")
    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """End an evaluation. The epoch has its values, if it is of one."""
        if self.model.__dict__.get(_EVALUATES) is not self:
            return
        del self.model.__dict__[_EVALUATES]
        self._phases.end()
        if self._trained is None:
            row = {f"eval/{name}": value for name, value in (logs or {}).items()}
            self._run.open().log(row, step=self._last_step())

    # -- the parts of a row --

    def _await_data(self) -> None:
        if self._waits_apart:
            self._phases.begin("data")

    def _batches_before(self, done: int) -> int:
        """Return how many batches the model was trained on before this `fit()`, by its optimizer."""
        optimizer = self._trained.optimizer
        each = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        return max(int(optimizer.iterations) * each - done, 0)

    def _last_step(self) -> int | None:
        return None if not self._step else self._step - 1

    def _add_rate(self, row: dict[str, Any], kind: str) -> None:
        try:
            row[f"{kind}/learning_rate"] = learning_rate(self._trained, self._step or 0)
        except Exception as error:  # whatever an optimizer has there: the other values are logged
            self._report_internal_error("learning_rate", error)

    # -- checkpoints --

    @never_raises("checkpoint")
    def _begin_save(self) -> None:
        self._phases.begin("checkpoint")

    @never_raises("checkpoint")
    def _end_save(self, path: Any) -> None:
        self._phases.end()
        run, step = self._run.open(), self._last_step()
        run._notices.emit("checkpoint", os.fspath(path), {"step": step}, "info")
        if self._log_model:
            run.log_model(path, name=f"model-{run.id}", aliases=["latest"])

    def _stop(self) -> None:
        self._phases.end()
        if self._trained is not None:
            _unwrap(self._trained)
            self._trained = None

    def _report_internal_error(self, where: str, error: Exception) -> None:
        self._run.open()._report_internal_error(where, error)


def _save(callback: ChiplogCallback, save: Callable[..., Any], filepath: Any, *given: Any, **named: Any) -> Any:
    """Save a model as a phase, and note its path."""
    callback._begin_save()
    saved = save(filepath, *given, **named)
    callback._end_save(filepath)
    return saved


def _is_wrapped(model: Any, name: str) -> bool:
    return getattr(model.__dict__.get(name), "func", None) is _save


def _unwrap(model: Any) -> None:
    model.__dict__.pop(_EVALUATES, None)
    for name in _SAVES:
        if _is_wrapped(model, name):
            del model.__dict__[name]


def _description(model: Any, params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the config has of a model. What a model cannot tell of itself is left out."""
    described: dict[str, Any] = dict(params or {})
    described.pop("verbose", None)
    parts: dict[str, Callable[[], Any]] = {
        "backend": lambda: _keras.backend.backend(),
        "parameters": lambda: model.count_params(),
        "optimizer": lambda: model.optimizer.get_config(),
        "model": lambda: model.get_config(),
    }
    for name, read in parts.items():
        try:
            described[name] = read()
        except unless_interrupt(Exception):  # the user's own model may have no config, an unbuilt one no parameters
            pass
    return described
