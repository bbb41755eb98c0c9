"""Arrays of any library as numpy arrays."""

from typing import Any

import numpy as np
import pytest
import torch

from chiplog.media.encoding.arrays import host_array, is_tensor
from chiplog.values.media_value import MediaError


class Sharded(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        raise NotImplementedError


class Eager:
    def numpy(self) -> np.ndarray:
        return np.ones(2)


class Protocol:
    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return np.zeros(3)


def test_arrays_tensors_and_lists_are_read() -> None:
    array = np.arange(3)
    assert host_array(array) is array
    assert host_array([[1, 2]]).shape == (1, 2)
    assert host_array(Eager()).tolist() == [1, 1]
    assert host_array(Protocol()).tolist() == [0, 0, 0]
    assert host_array(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    assert host_array(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]
    assert host_array(torch.full((2,), 0.5, dtype=torch.bfloat16)).tolist() == [0.5, 0.5]


def test_anything_else_is_none() -> None:
    assert [host_array(value) for value in (None, 1, "text", {}, lambda: 1, Eager)] == [None] * 6


def test_a_tensor_whose_values_are_elsewhere_is_refused() -> None:
    fake = torch.Tensor._make_wrapper_subclass(Sharded, (2,))  # type: ignore[attr-defined]
    with pytest.raises(MediaError, match=r"it is a Sharded, whose values are not all here; log its full_tensor\(\)"):
        host_array(fake)
    with pytest.raises(MediaError, match="it is a tensor on the device meta, which has no values; log one that has"):
        host_array(torch.zeros(2, device="meta"))
    assert is_tensor(fake) and not is_tensor(np.ones(2))
