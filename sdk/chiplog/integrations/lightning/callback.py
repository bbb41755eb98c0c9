"""The callback for Lightning's Trainer: phases, and what each rank trains on, without a line in the training."""

import logging
import os
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from chiplog.integrations.adapter.batches import batch_size
from chiplog.integrations.adapter.framework_run import FrameworkRun
from chiplog.integrations.adapter.hook_phases import HookPhases
from chiplog.integrations.adapter.object_methods import unwrap_method, wrap_method
from chiplog.integrations.lightning.library import package
from chiplog.safety.boundary import never_raises

_Callback = package().Callback
_OF_TRAINER = ("_is_active", "_is_in_batch", "_has_stepped", "_began", "_n_samples", "_loss")  # attributes
_log = logging.getLogger("chiplog")


class ChiplogCallback(_Callback):  # type: ignore[misc,valid-type]  # Lightning need not be installed
    """Record phases, loss and throughput of every rank, and paths of checkpoints.

    Each optimizer step is a row `rank/loss`, `rank/samples_per_s` at the step that Lightning gives its loggers, which
    is the number of optimizer steps before it. Phases are data, forward, backward, optimizer, eval and checkpoint.

    Args:
        **arguments: Of `chiplog.init`, if no run is open and no ChiplogLogger opens it.

    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self._run = FrameworkRun(**arguments)
        self._phases = HookPhases(self._run)
        self._trainers: list[
            tuple[int, dict[str, Any]]
        ] = []  # that use it, and its state before: one may run in another
        self._is_active = False
        self._is_in_batch = False  # a callback that a trainer has twice is called twice
        self._has_stepped = False  # the optimizer, since the last row; trainer.global_step costs more to read
        self._began: float | None = None  # start of the step, with the wait for its first batch
        self._n_samples: int | None = 0  # of the step; None if a batch has no size
        self._loss: Any = None  # of the step's batches so far, which Lightning divides by their number

    # -- Lightning's hooks; other versions give some of them more arguments --

    @never_raises("setup")
    def setup(self, trainer: Any, pl_module: Any, stage: str, *more: Any) -> None:
        """Begin to record, unless another callback of this class does."""
        first = next((callback for callback in trainer.callbacks if isinstance(callback, ChiplogCallback)), self)
        if [of for of, _ in self._trainers[-1:]] != [id(trainer)]:  # else the trainer has it twice
            self._trainers.append((id(trainer), {name: getattr(self, name) for name in _OF_TRAINER}))
            self._is_in_batch = False
            self._reset()
        self._is_active = first is self
        if not self._is_active:
            _log.warning("chiplog: the trainer has several ChiplogCallbacks; the first one records")
            return
        wrap_method(trainer, "save_checkpoint", self._save_checkpoint)
        if stage == "fit":
            wrap_method(_epoch_loop(trainer), "_on_before_fetch", self._fetch)

    @never_raises("teardown")
    def teardown(self, trainer: Any, pl_module: Any, stage: str, *more: Any) -> None:
        """End to record."""
        self._stop(trainer)

    @never_raises("on_exception")
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException, *more: Any) -> None:
        """End to record. Of Ctrl-C, after which Lightning exits with a code, note it as the cause of the end."""
        self._stop(trainer)
        if not isinstance(exception, Exception):
            self._run.open()._end.mark_exit(exception)

    @never_raises("on_train_start")
    def on_train_start(self, trainer: Any, pl_module: Any, *more: Any) -> None:
        """Forget the batches of a training that failed."""
        self._reset()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, *more: Any) -> None:
        """Begin the forward pass."""
        if self._is_active:
            if self._began is None:
                self._began = perf_counter()
            self._is_in_batch = True
            self._phases.begin("forward")

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any, *more: Any) -> None:
        """Begin the backward pass."""
        if self._is_active:
            self._phases.begin("backward")

    def on_after_backward(self, trainer: Any, pl_module: Any, *more: Any) -> None:
        """End the backward pass."""
        self._phases.end()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any, *more: Any) -> None:
        """Begin the optimizer's step."""
        if self._is_active:
            self._has_stepped = True
            self._phases.begin("optimizer")

    @never_raises("on_train_batch_end")
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *more: Any
    ) -> None:
        """End the step, if the optimizer has stepped; else add a batch to it."""
        if not (self._is_active and self._is_in_batch):
            return
        self._is_in_batch = False
        self._phases.end()
        self._add_batch(outputs, batch)
        if self._has_stepped:
            self._log_step(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any, *more: Any) -> None:
        """End the phase data: the loader had no more batches."""
        self._phases.end()

    def on_validation_start(self, trainer: Any, pl_module: Any, *more: Any) -> None:
        """Begin an evaluation."""
        self._begin("eval")

    def on_validation_end(self, trainer: Any, pl_module: Any, *more: Any) -> None:
        """End an evaluation."""
        self._phases.end()

    on_test_start = on_validation_start
    on_test_end = on_validation_end

    # -- what has no hook --

    def _fetch(self, fetch: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Begin to wait for a batch. The ranks' waiting for each other before is in no phase."""
        self._begin_data()
        return fetch(*given, **named)

    def _save_checkpoint(self, save: Callable[..., Any], filepath: Any, *given: Any, **named: Any) -> Any:
        """Save a checkpoint as a phase, on all ranks, and note its path, on one."""
        self._begin("checkpoint")
        saved = save(filepath, *given, **named)
        self._note_checkpoint(save, filepath)
        return saved

    def _begin_data(self) -> None:
        if self._began is None:
            self._began = perf_counter()
        self._phases.begin("data")

    def _begin(self, name: str) -> None:
        if self._is_active:
            self._phases.begin(name)

    @never_raises("checkpoint")
    def _note_checkpoint(self, save: Any, filepath: Any) -> None:
        self._phases.end()
        trainer = save.__self__
        if trainer.is_global_zero:
            self._run.open()._notices.emit("checkpoint", os.fspath(filepath), {"step": trainer.global_step}, "info")

    # -- the step --

    def _add_batch(self, outputs: Any, batch: Any) -> None:
        size = batch_size(batch)
        self._n_samples = None if size is None or self._n_samples is None else self._n_samples + size
        loss = outputs if not isinstance(outputs, Mapping) else outputs.get("loss")
        if loss is not None:
            try:
                self._loss = loss if self._loss is None else self._loss + loss
            except (TypeError, RuntimeError):  # no number, or of another shape: `log()` reports it
                self._loss = loss

    def _log_step(self, trainer: Any) -> None:
        row: dict[str, Any] = {}
        loss = self._loss
        if loss is not None:  # a number, if that needs no wait: it is the cheaper one to log
            row["rank/loss"] = loss.item() if getattr(loss, "is_cpu", False) and loss.numel() == 1 else loss
        if self._n_samples is not None and self._began is not None:
            row["rank/samples_per_s"] = self._n_samples / (perf_counter() - self._began)
        step = getattr(_epoch_loop(trainer), "_batches_that_stepped", None)  # what loggers get
        self._phases.log_step(row, trainer.global_step - 1 if step is None else step)
        self._reset()

    def _reset(self) -> None:
        self._began = self._loss = None
        self._n_samples = 0
        self._has_stepped = False

    def _stop(self, trainer: Any) -> None:
        if id(trainer) in [of for of, _ in self._trainers]:
            if self._is_active:
                self._phases.end()
                unwrap_method(trainer, "save_checkpoint")
                unwrap_method(_epoch_loop(trainer), "_on_before_fetch")
            while self._trainers:
                of, before = self._trainers.pop()
                self.__dict__.update(before)
                if of == id(trainer):
                    break

    def _report_internal_error(self, where: str, error: Exception) -> None:
        self._run.open()._report_internal_error(where, error)


def _epoch_loop(trainer: Any) -> Any:
    """Return the loop over the batches of an epoch; the trainer, in a version of Lightning that has none."""
    return getattr(getattr(trainer, "fit_loop", None), "epoch_loop", trainer)
