"""Find the CUDA device of the calling thread. Nothing here initialises CUDA: that would break a later fork."""

import sys
from typing import Any, NamedTuple


class CurrentDevice(NamedTuple):
    """A device: its number in this process, and its UUID without prefix, if torch knows it."""

    number: int
    uuid: str


def current_device() -> CurrentDevice | None:
    """Return the device that torch uses in this thread; None before the training code has initialised CUDA."""
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is None or not getattr(cuda, "is_initialized", bool)():  # safeguard: torch-asked-when-initialised
        return None
    number = cuda.current_device()
    return CurrentDevice(number, str(getattr(cuda.get_device_properties(number), "uuid", "")))
