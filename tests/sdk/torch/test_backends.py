"""The calls to a device, as far as they can be tested without one; tests/gpu has the rest."""

from chiplog.torch.backends import BACKENDS
from chiplog.values.metrics import DEVICE_TYPES


def test_each_type_of_device_whose_tensors_are_read_later_has_a_backend() -> None:
    assert set(BACKENDS) == DEVICE_TYPES
