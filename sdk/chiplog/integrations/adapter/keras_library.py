"""What all callbacks for Keras need: its module, and the learning rate of a model."""

import sys
from importlib import import_module
from typing import Any


def keras() -> Any:
    """Return TensorFlow's Keras, where a script has loaded that, else `keras`. TF_USE_LEGACY_KERAS=1 makes them differ.

    Raises:
        ImportError: It is not installed.

    """
    of_tensorflow = getattr(sys.modules.get("tensorflow"), "keras", None)
    return import_module("keras") if of_tensorflow is None else of_tensorflow


def learning_rate(model: Any, step: int) -> float:
    """Return the learning rate of a model's optimizer. It raises whatever an optimizer raises.

    step: for schedules that are functions of it.
    """
    rate = model.optimizer.learning_rate
    return float(rate(step) if callable(rate) and not hasattr(rate, "shape") else rate)
