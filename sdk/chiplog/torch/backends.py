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
        """Copy to the host in a side stream, after the current stream's work so far; then record the mark `done`."""
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
        self._side: Any = None
        self._reached: Any = None  # one event for all calls: a waiting stream keeps the state at wait_event()

    def allocate(self, n_bytes: int) -> tuple[Any, Any]:
        """Return `n_bytes` on the GPU and page-locked on the host: without page-locking a copy would block."""
        torch = self._torch
        self._side = self._cuda.Stream(self._device)
        self._reached = self._cuda.Event()
        staging = torch.empty(n_bytes, dtype=torch.uint8, device=self._device)
        return staging, torch.empty(n_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def is_capturing(self) -> bool:
        """Return True if the current stream is being captured into a graph."""
        return bool(self._cuda.is_current_stream_capturing())

    def event(self) -> Any:
        """Return an event without timing."""
        return self._cuda.Event()

    def copy(self, host: Any, staged: Any, done: Any) -> None:
        """Copy in the side stream, which waits for the current one's work so far. The current one does not wait."""
        self._reached.record(self._cuda.current_stream(self._device))
        self._side.wait_event(self._reached)
        with self._cuda.stream(self._side):
            host.copy_(staged, non_blocking=True)
        done.record(self._side)

    def poll_context(self) -> AbstractContextManager[object]:
        """Return a context in which querying an event cannot break a graph capture of another thread."""
        return relaxed_capture()


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
