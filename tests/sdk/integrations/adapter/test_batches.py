"""How many samples a batch has."""

from typing import Any

import pytest
import torch

from chiplog.integrations.adapter.batches import batch_size


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(5, 2), 5),
        (torch.tensor(1.0), 1),
        ({"meta": "name", "x": [torch.zeros(3)]}, 3),
        ((None, "text", b"bytes"), None),
        ([[[[[[torch.zeros(3)]]]]]], None),
        (None, None),
    ],
)
def test_the_size_of_a_batch_is_that_of_its_first_tensor(batch: Any, size: int | None) -> None:
    assert batch_size(batch) == size
