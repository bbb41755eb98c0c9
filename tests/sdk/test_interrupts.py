"""Which exceptions are a signal handler's: handlers of every shape, and what looks like one."""

import functools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chiplog.interrupts import is_interrupt
from chiplog.values.metrics import Bad, Histogram, flatten


def plain(signum: int, frame: object) -> None:
    raise TimeoutError("plain")


def deep(signum: int, frame: object) -> None:
    def helper() -> None:
        raise ValueError("deep")

    helper()


def careless(signum: int, frame: object) -> None:
    del frame
    raise TimeoutError("careless")


def with_more(limit: int, signum: int, frame: object) -> None:
    raise TimeoutError(limit)


class Handlers:
    def method(self, *arguments: object) -> None:
        raise TimeoutError("method")

    def __call__(self, signum: int, frame: object) -> None:
        raise TimeoutError("callable")


class Dropping:
    def __call__(self, *given: object) -> None:
        del given
        raise TimeoutError("dropping")


HANDLERS: dict[str, Callable[..., Any]] = {
    "function": plain,
    "deep": deep,
    "careless": careless,
    "lambda": lambda *given: plain(*given),
    "method": Handlers().method,
    "callable": Handlers(),
    "dropping": Dropping(),
    "partial": functools.partial(with_more, 3),
    "wrapped": functools.wraps(plain)(lambda *given, **named: plain(*given, **named)),
}


@pytest.fixture(params=HANDLERS)
def handled(request: pytest.FixtureRequest) -> Iterator[None]:
    previous = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    yield
    signal.signal(signal.SIGUSR1, previous)


def interrupted() -> None:
    signal.raise_signal(signal.SIGUSR1)


def test_what_a_handler_raises_is_an_interrupt_wherever_it_comes(handled) -> None:
    with pytest.raises(Exception) as caught:
        interrupted()
    assert is_interrupt(caught.value)


class Interrupted:
    """A value and a dict whose methods a signal interrupts."""

    def __float__(self) -> float:
        signal.raise_signal(signal.SIGUSR1)
        return 1.0

    __repr__ = __str__ = lambda self: str(float(self))


class InterruptedDict(dict):
    def items(self):
        signal.raise_signal(signal.SIGUSR1)
        return super().items()


@pytest.mark.parametrize(
    "call",
    [
        lambda: list(flatten({"a": Interrupted()})),
        lambda: list(flatten({Interrupted(): 1.0})),
        lambda: list(flatten({"a": InterruptedDict(b=1.0)})),
        lambda: list(flatten(InterruptedDict(b=1.0))),
        lambda: Histogram.of([Interrupted()]),
    ],
)
def test_what_a_handler_raises_while_a_value_is_read_passes(handled, call) -> None:
    with pytest.raises((TimeoutError, ValueError)) as caught:
        call()
    assert is_interrupt(caught.value)


class Broken:
    def __float__(self) -> float:
        raise TimeoutError("of the value itself")


class BrokenDict(dict):
    def items(self):
        yield "fine", 1.0
        raise TimeoutError("of the dict itself")


def test_what_a_value_raises_is_a_bad_value(handled) -> None:
    [bad] = flatten({"a": Broken()})
    assert isinstance(bad, Bad)
    found = list(flatten({"a": BrokenDict(), "b": 2.0}))
    assert [entry for entry in found if not isinstance(entry, Bad)] == [("a/fine", 1.0), ("b", 2.0)]
    [bad] = [entry for entry in found if isinstance(entry, Bad)]
    assert (bad.kind, "'a'" in bad.message, "TimeoutError" in bad.message) == ("unreadable", True, True)


def test_what_no_handler_raised_is_no_interrupt(handled) -> None:
    def raise_with(frame_like: object) -> None:
        raise OSError(frame_like)

    for call in (lambda: raise_with(1), lambda: int("x"), lambda: {}["x"]):
        with pytest.raises((OSError, ValueError, KeyError)) as caught:
            call()
        assert not is_interrupt(caught.value)
