"""A stand-in for Lightning, whose trainer calls hooks in Lightning's order; tests/integrations has the real one."""

from types import SimpleNamespace
from typing import Any


class Logger:
    """Lightning's base class."""


class Callback:
    """Lightning's base class."""


class EpochLoop:
    """Lightning's loop over the batches of an epoch."""

    _batches_that_stepped = 0

    def _on_before_fetch(self) -> None:
        pass


class Trainer:
    """One optimizer, of which each step has `accumulate` batches."""

    is_global_zero = True

    def __init__(self, *callbacks: Any, accumulate: int = 1) -> None:
        self.callbacks = callbacks
        self.accumulate = accumulate
        self.global_step = 0
        self.saved: list[Any] = []
        self.fit_loop = SimpleNamespace(epoch_loop=EpochLoop())

    def save_checkpoint(self, filepath: Any) -> None:
        self.saved.append(filepath)

    def call(self, hook: str, *given: Any, **named: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, None, *given, **named)

    def fit(self, batches: list[Any], loss: Any = 1.0) -> None:
        self.call("setup", stage="fit")
        self.call("on_train_start")
        loop = self.fit_loop.epoch_loop
        for index, batch in enumerate(batches):
            loop._on_before_fetch()
            self.call("on_train_batch_start", batch, index)
            self.call("on_before_backward", loss)
            self.call("on_after_backward")
            if is_last := (index + 1) % self.accumulate == 0:
                self.call("on_before_optimizer_step", None)
                self.global_step += 1
            self.call("on_train_batch_end", {"loss": loss}, batch, index)
            loop._batches_that_stepped += is_last
        self.call("on_validation_start")
        self.call("on_validation_end")
        self.save_checkpoint("last.ckpt")
        self.call("on_train_epoch_end")
        self.call("teardown", stage="fit")
