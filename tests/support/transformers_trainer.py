"""A stand-in for Transformers, whose Trainer calls hooks in its order; tests/integrations has the real one."""

from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any


class TrainerCallback:
    """Transformers' base class: each hook does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *given, **named: None
        raise AttributeError(name)


class CallbackHandler:
    """Transformers' list of callbacks."""

    def __init__(self, callbacks: list[Any]) -> None:
        self.callbacks: list[Any] = []
        for callback in callbacks:
            self.add_callback(callback)

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback() if isinstance(callback, type) else callback)


class Trainer:
    """One optimizer, of which each step has `accumulate` batches."""

    def __init__(self, *callbacks: Any, accumulate: int = 1, **arguments: Any) -> None:
        self.args = SimpleNamespace(output_dir="output", run_name=None, to_dict=lambda: {"lr": 1, "local_rank": 3})
        vars(self.args).update(arguments)
        self.state = SimpleNamespace(global_step=0, is_hyper_param_search=False)
        self.accumulate = accumulate
        self.model: Any = SimpleNamespace(config={"width": 4})
        self.callback_handler = CallbackHandler(list(callbacks))
        self.call("on_init_end")

    def call(self, hook: str, **named: Any) -> None:
        for callback in self.callback_handler.callbacks:
            getattr(callback, hook)(self.args, self.state, None, model=self.model, **named)

    def train(self, batches: list[Any], loss: Any = 1.0, fails: BaseException | None = None, restarts: int = 0) -> str:
        for _ in range(restarts):  # each out of memory in the forward pass
            self.call("on_train_begin")
            self.get_batch_samples(iter(batches), self.accumulate)
            with suppress(MemoryError):
                self.training_step(self.model, batches[0], MemoryError())
        self.call("on_train_begin")
        left = iter(batches)
        while samples := self.get_batch_samples(left, self.accumulate):
            for batch in samples:
                self.training_step(self.model, batch, loss)
            if fails is not None:
                raise fails
            self.call("on_pre_optimizer_step")
            self.call("on_optimizer_step")
            self.state.global_step += 1
            self.call("on_step_end")
            self.call("on_log", logs={"loss": 0.5})
        self.evaluate()
        self._save_checkpoint(self.model, None)
        self.call("on_train_end")
        return "trained"

    def get_batch_samples(self, batches: Iterator[Any], number: int) -> list[Any]:
        return [batch for _, batch in zip(range(number), batches, strict=False)]

    def training_step(self, model: Any, inputs: Any, loss: Any) -> Any:
        return self.compute_loss(model, inputs, loss)

    def compute_loss(self, model: Any, inputs: Any, loss: Any) -> Any:
        if isinstance(loss, MemoryError):
            raise loss
        return loss

    def evaluate(self) -> None:
        self.compute_loss(self.model, None, 2.0)
        self.call("on_log", logs={"eval_loss": 2.0})

    def predict(self) -> None:
        self.call("on_predict", metrics={"test_loss": 3.0})

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        pass

    def _get_output_dir(self, trial: Any) -> str:
        return "output"

    def is_world_process_zero(self) -> bool:
        return True
