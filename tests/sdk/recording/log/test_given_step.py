"""Each object that a script gives as a step is a number, or the label's own count with one message."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from chiplog.recording.log.given_step import parse_step
from chiplog.safety.diagnostics import Diagnostic

ON_DEVICE = SimpleNamespace(device=SimpleNamespace(type="cuda"))


@pytest.mark.parametrize(
    ("given", "step", "n_reported"),
    [
        (None, None, 0),
        (7, 7, 0),
        (np.int64(-3), -3, 0),
        (np.uint8(7), 7, 0),
        (torch.tensor(7), 7, 0),
        (2.0, 2, 0),
        (2.5, 2, 1),
        ("x", None, 1),
        (float("nan"), None, 1),
        (1 << 63, None, 1),
        (ON_DEVICE, None, 1),
    ],
)
def test_a_step_is_a_64_bit_integer_or_the_own_count(given: Any, step: int | None, n_reported: int) -> None:
    reported: list[Diagnostic] = []
    assert parse_step(given, reported.append) == step
    assert [bad.kind for bad in reported] == ["bad_step"] * n_reported
