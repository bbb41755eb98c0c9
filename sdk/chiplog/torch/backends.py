"""Calls to a device: streams, events and pinned memory. Nothing here waits for the device."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

_CAPTURE_MODE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED of cuda.h


class Event(Protocol):
    """A mark in a stream."""

    def query(self) -> bool:
        """Return True if everything before the mark is done."""
        ...


class Backend(Protocol):
    """One device."""

    def allocate(self, n_bytes: int) -> tuple[Any, Any]:
        """Return `n_bytes` on the device and in pinned host memory, as uint8 tensors. May block; called once."""
        ...

    def is_capturing(self) -> bool:
        """Return True if the current stream is being captured into a graph, so that nothing may be launched."""
        ...

    def event(self) -> Event:
        """Return a mark for `copy`."""
        ...

    def copy(self, host: Any, staged: Any, done: Any) -> None:
        """Copy to the host in the current stream, after its work so far; then record the mark `done`."""
        ...

    def poll_context(self) -> AbstractContextManager[object]:
        """Return the context for a thread that queries marks."""
        ...


class CudaBackend:
    """One GPU of torch.cuda."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._cuda = torch.cuda
        self._device = device

    def allocate(self, n_bytes: int) -> tuple[Any, Any]:
        """Return `n_bytes` on the GPU and page-locked on the host: without page-locking a copy would block."""
        torch = self._torch
        staging = torch.empty(n_bytes, dtype=torch.uint8, device=self._device)
        return staging, torch.empty(n_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def is_capturing(self) -> bool:
        """Return True if the current stream is being captured into a graph."""
        return bool(self._cuda.is_current_stream_capturing())

    def event(self) -> Any:
        """Return an event without timing."""
        return new_event(self._torch)

    def copy(self, host: Any, staged: Any, done: Any) -> None:
        """Copy in the current stream: a side stream would cost the host three times as much, to spare the GPU 5 µs."""
        host.copy_(staged, non_blocking=True)
        if self._cuda.current_device() == self._device.index:
            done.record()
        else:
            with self._cuda.device(self._device):
                done.record()

    def poll_context(self) -> AbstractContextManager[object]:
        """Return a context in which querying an event cannot break a graph capture of another thread."""
        return relaxed_capture()


def new_event(torch: Any, *, with_timing: bool = False) -> Any:
    """Return an event of CUDA whose `record()` takes the current stream of the current device.

    `torch.Event` looks that stream up in C++, in 2 µs. `torch.cuda.Event` does it in Python, in 10 µs.
    """
    if (event := getattr(torch, "Event", None)) is None:  # before torch 2.4
        return torch.cuda.Event(enable_timing=with_timing)
    return event("cuda", enable_timing=with_timing)


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Allow this thread to query events while another thread captures a graph.

    By default a query of any thread invalidates a capture (cuThreadExchangeStreamCaptureMode).
    """
    import ctypes  # importing chiplog must not cost it

    exchange = _exchange()
    mode = ctypes.c_int(_CAPTURE_MODE_RELAXED)
    if exchange is not None:
        exchange(ctypes.byref(mode))  # sets `mode` to the previous mode
    try:
        yield
    finally:
        if exchange is not None:
            exchange(ctypes.byref(mode))


_driver: list[Any] = []  # the function, or None if the driver lacks it; empty before the lookup


def _exchange() -> Any:
    if not _driver:
        import ctypes

        found = None
        with contextlib.suppress(OSError, AttributeError):  # ROCm has another driver, without this rule
            found = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
        _driver.append(found)
    return _driver[0]


# Constructors of backends by device type: values.metrics.DEVICE_TYPES lists the same types.
BACKENDS: dict[str, Callable[[Any, Any], Backend]] = {"cuda": CudaBackend}
