"""Handlers of signals, as a training installs them."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def handling(number: signal.Signals, handler: Handler) -> Iterator[None]:
    """Have a handler, and no timer and the handler before behind the block."""
    previous = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(number, previous)


def raising(error: BaseException) -> Handler:
    """Return a handler that raises."""

    def handler(number: int, frame: FrameType | None) -> NoReturn:
        raise error

    return handler
