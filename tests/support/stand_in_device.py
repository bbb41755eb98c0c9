"""A device for machines that have none: it copies on request, in the order of the calls.

The outermost edge only: tensors, packing and rings are the real ones, in host memory.
"""

import time
from collections import deque
from contextlib import nullcontext
from typing import Any

import torch

from chiplog.native.loader import hot_path
from chiplog.torch.backends import BACKENDS
from chiplog.values.metrics import DEVICE_TYPES, FLOAT_TYPES
from tests.support.waiting import WAIT_S


class Mark:
    """An event: it completes when the device reaches it."""

    def __init__(self) -> None:
        self.happened = False
        self.error: Exception | None = None

    def query(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.happened


class StandIn:
    """One device. `advance` lets it do what waits."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Any, Any, Mark]] = deque()
        self.capturing = False
        self.error: Exception | None = None  # that each launch meets
        self.allocated = 0

    def allocate(self, n_bytes: int) -> tuple[Any, Any]:
        self.allocated += 1
        return torch.empty(n_bytes, dtype=torch.uint8).fill_(255), torch.empty(n_bytes, dtype=torch.uint8).fill_(255)

    def is_capturing(self) -> bool:
        return self.capturing

    def event(self) -> Mark:
        return Mark()

    def copy(self, host: Any, staged: Any, done: Mark) -> None:
        if self.error is not None:
            raise self.error
        done.happened = False
        self.waiting.append((host, staged, done))

    def poll_context(self) -> Any:
        return nullcontext()

    def advance(self, count: int = 1 << 30) -> None:
        while self.waiting and count:
            host, staged, done = self.waiting.popleft()
            host.copy_(staged)
            done.happened = True
            count -= 1


def install(device: StandIn) -> None:
    """Make every tensor of this process one on that device."""
    BACKENDS["cpu"] = lambda torch, where: device
    DEVICE_TYPES.add("cpu")
    if hot_path is not None:
        hot_path.set_value_types(FLOAT_TYPES, None, None)  # C reads tensors on the host at once


def uninstall() -> None:
    """Make them host tensors again."""
    BACKENDS.pop("cpu", None)
    DEVICE_TYPES.discard("cpu")


def resolve(run) -> None:
    """Do now what the sender thread does at its next poll."""
    deadline = time.monotonic() + WAIT_S
    while run._devices.deferred.pending and time.monotonic() < deadline:
        run._devices.deferred.poll()
