"""The few calls to a device: its streams, its events, its pinned memory. Nothing in here waits for it."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

_CAPTURE_MODE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED of cuda.h


class Event(Protocol):
    """A mark in a stream."""

    def query(self) -> bool:
        """Tell whether everything in front of the mark is done."""
        ...


class Backend(Protocol):
    """One device."""

    def allocate(self, n_bytes: int) -> tuple[Any, Any]:
        """Return so many bytes on the device and in pinned host memory, as tensors of uint8. May wait; called once."""
        ...

    def is_capturing(self) -> bool:
        """Tell whether the current stream is captured into a graph, so that nothing may be launched."""
        ...

    def event(self) -> Event:
        """Return a mark for `copy`."""
        ...

    def copy(self, host: Any, staged: Any, done: Any) -> None:
        """Copy to the host, beside the current stream and behind what is in it now; then comes the mark `done`."""
        ...

    def poll_context(self) -> AbstractContextManager[object]:
        """Return what a thread has to be in while it asks marks."""
        ...


class CudaBackend:
    """One GPU of torch.cuda."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._cuda = torch.cuda
        self._device = device
        self._side: Any = None
        self._reached: Any = None  # one event for all calls: a stream that waits keeps the moment it was told

    def allocate(self, n_bytes: int) -> tuple[Any, Any]:
        """Return so many bytes on the GPU, and page-locked on the host: without that a copy would wait."""
        torch = self._torch
        self._side = self._cuda.Stream(self._device)
        self._reached = self._cuda.Event()
        staging = torch.empty(n_bytes, dtype=torch.uint8, device=self._device)
        return staging, torch.empty(n_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def is_capturing(self) -> bool:
        """Tell whether the current stream is captured into a graph."""
        return bool(self._cuda.is_current_stream_capturing())

    def event(self) -> Any:
        """Return an event without timing."""
        return self._cuda.Event()

    def copy(self, host: Any, staged: Any, done: Any) -> None:
        """Copy on the side stream, which waits for what the current one has now. The current one waits for nothing."""
        self._reached.record(self._cuda.current_stream(self._device))
        self._side.wait_event(self._reached)
        with self._cuda.stream(self._side):
            host.copy_(staged, non_blocking=True)
        done.record(self._side)

    def poll_context(self) -> AbstractContextManager[object]:
        """Return a context in which asking an event cannot break the capture of a graph in another thread."""
        return relaxed_capture()


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Let this thread ask about events while another thread captures a graph.

    By default a capture is spoilt by any thread that asks the driver something (cuThreadExchangeStreamCaptureMode).
    """
    import ctypes  # importing chiplog must not cost it

    exchange = _exchange()
    mode = ctypes.c_int(_CAPTURE_MODE_RELAXED)
    if exchange is not None:
        exchange(ctypes.byref(mode))  # leaves in `mode` what was before
    try:
        yield
    finally:
        if exchange is not None:
            exchange(ctypes.byref(mode))


_driver: list[Any] = []  # the function, or None, once it was looked for


def _exchange() -> Any:
    if not _driver:
        import ctypes

        found = None
        with contextlib.suppress(OSError, AttributeError):  # ROCm has another driver, and no such rule
            found = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
        _driver.append(found)
    return _driver[0]


# What makes the backend of a device, by the device's type: values.metrics.DEVICE_TYPES names the same types.
BACKENDS: dict[str, Callable[[Any, Any], Backend]] = {"cuda": CudaBackend}
