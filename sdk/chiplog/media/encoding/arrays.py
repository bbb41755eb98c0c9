"""Arrays and tensors of any library as numpy arrays on the host."""

import sys
from typing import Any

from chiplog.media.encoding.libraries import load_library
from chiplog.values.media_value import MediaError
from chiplog_schemas.interrupts import raise_interrupt


def is_tensor(value: Any) -> bool:
    """Return True if a value is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def host_array(value: Any) -> Any:
    """Return the numbers of an array, tensor or list as a numpy array. It may share the memory of the value.

    A tensor on a GPU is copied: the call waits until the GPU has computed it.
    """
    np = load_library("numpy", "numpy", "an array")
    if is_tensor(value):
        return _host_tensor(value)
    if isinstance(value, np.ndarray):
        return value
    if callable(getattr(value, "numpy", None)) and not isinstance(value, type):  # an eager tensor of TensorFlow
        return np.asarray(value.numpy())
    has_protocol = hasattr(value, "__array__") or hasattr(value, "__array_interface__")
    if has_protocol or isinstance(value, list | tuple | range | memoryview):
        return np.asarray(value)
    return None


def _host_tensor(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # sharded, fake, asynchronous …
        what = type(tensor).__name__
        raise MediaError(f"it is a {what}, whose values are not all here; log its full_tensor(), or a plain tensor")
    if tensor.is_meta:
        raise MediaError("it is a tensor on the device meta, which has no values; log one that has some")
    held = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        return held.numpy()
    except TypeError as error:  # numpy lacks bfloat16 and the types of 8 bits
        raise_interrupt(error)
        return held.float().numpy()
