"""How many samples a batch has."""

from collections.abc import Mapping
from typing import Any

_DEPTH_MAX = 4  # a dict of tuples of tensors has 2
_TEXTS, _SEQUENCES = (str, bytes), (list, tuple)


def batch_size(batch: Any, depth: int = _DEPTH_MAX) -> int | None:
    """Return the first dimension of the first tensor in a batch; None if it has none."""
    shape = getattr(batch, "shape", None)
    if isinstance(shape, tuple):
        return int(shape[0]) if len(shape) else 1
    if not depth or isinstance(batch, _TEXTS):
        return None
    parts = batch if isinstance(batch, _SEQUENCES) else batch.values() if isinstance(batch, Mapping) else ()
    for part in parts:
        if (size := batch_size(part, depth - 1)) is not None:
            return size
    return None
