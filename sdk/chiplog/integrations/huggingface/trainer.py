"""What the Trainer has no hooks for: its table of trackers, and where training and evaluation begin and end.

Callbacks are not told when a training ends by an exception, nor when an evaluation or a checkpoint begins. So three of
the Trainer's methods tell a chiplog callback of it; a Trainer without one is as before.
"""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from transformers import Trainer, trainer_callback
from transformers.integrations import integration_utils

_log = logging.getLogger("chiplog")
_NAME = "chiplog"
_EVALUATIONS = ("evaluate", "predict")


def prepare(callback: type[Any]) -> None:
    """Let `report_to="chiplog"` mean a callback, and the Trainer's methods tell it when they begin and end."""
    table = getattr(integration_utils, "INTEGRATION_TO_CALLBACK", None)
    if table is None:
        _log.warning(
            'chiplog: this version of transformers takes no report_to="chiplog"; pass callbacks=[ChiplogCallback()]'
        )
    else:
        table[_NAME] = callback

    def of(trainer: Any) -> Any:
        return next((each for each in trainer.callback_handler.callbacks if isinstance(each, callback)), None)

    _replace(Trainer, "train", lambda method: _train(method, of))
    for name in _EVALUATIONS:
        _replace(Trainer, name, lambda method: _evaluate(method, of))
    _replace(trainer_callback.CallbackHandler, "add_callback", lambda method: _add(method, callback))


def _replace(cls: Any, name: str, replacement: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    setattr(cls, name, wraps(getattr(cls, name))(replacement(getattr(cls, name))))


def _train(method: Callable[..., Any], of: Callable[[Any], Any]) -> Callable[..., Any]:
    def train(self: Any, *given: Any, **named: Any) -> Any:
        callback = of(self)
        if callback is None:
            return method(self, *given, **named)
        callback.begin_training(self)
        try:
            ended = method(self, *given, **named)
        except BaseException as error:  # in no variable afterwards: its traceback has the tensors of the training
            callback.end_training(self, error)
            raise
        callback.end_training(self, None)
        return ended

    return train


def _evaluate(method: Callable[..., Any], of: Callable[[Any], Any]) -> Callable[..., Any]:
    def evaluate(self: Any, *given: Any, **named: Any) -> Any:
        callback = of(self)
        if callback is None:
            return method(self, *given, **named)
        callback.begin_evaluation(self)
        try:
            return method(self, *given, **named)
        finally:
            callback.end_phase()

    return evaluate


def _add(method: Callable[..., Any], cls: type[Any]) -> Callable[..., Any]:
    def add_callback(self: Any, callback: Any) -> Any:
        """Add a callback. Of chiplog's, a Trainer has one: one with arguments replaces that of `report_to`."""
        if not (isinstance(callback, cls) or callback is cls):
            return method(self, callback)
        before = [each for each in self.callbacks if isinstance(each, cls)]
        if before and isinstance(callback, type):
            return None
        for each in before:
            _log.warning("chiplog: the Trainer has several ChiplogCallbacks; the last one records")
            self.callbacks.remove(each)
        return method(self, callback)

    return add_callback
