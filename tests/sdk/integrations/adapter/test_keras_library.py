"""What callbacks for Keras need, on a stand-in for Keras; tests/integrations has the real one."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from chiplog.integrations.adapter.keras_library import keras, learning_rate


def test_tensorflows_keras_is_taken_where_a_script_has_loaded_it(monkeypatch: pytest.MonkeyPatch) -> None:
    of_tensorflow, alone = SimpleNamespace(), SimpleNamespace()
    monkeypatch.setitem(sys.modules, "keras", alone)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert keras() is alone
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(keras=of_tensorflow))
    assert keras() is of_tensorflow


@pytest.mark.parametrize("rate", [np.float32(0.5), 0.5, lambda step: step / 4])
def test_the_learning_rate_is_a_number_or_a_schedule(rate: object) -> None:
    assert learning_rate(SimpleNamespace(optimizer=SimpleNamespace(learning_rate=rate)), 2) == 0.5
