"""What fails inside of a guarded method is reported; what a signal handler raises there belongs to the training."""

import inspect
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import Diagnostics
from tests.support.signals import handling, raising


class Guarded:
    def __init__(self) -> None:
        self.diagnostics = Diagnostics(lambda *event: None)
        self.reports: list[tuple[str, str]] = []

    def _report_internal_error(self, where: str, error: Exception) -> None:
        self.diagnostics.report_internal_error(where, error)
        self.reports.append((where, repr(error)))

    @never_raises("names", list)
    def names(self, error: BaseException | None = None, *, signalled: bool = False) -> list[str]:
        """Return the names."""
        if signalled:
            signal.raise_signal(signal.SIGALRM)
        if error is not None:
            raise error
        return ["a"]

    @never_raises("tick")
    def tick(self) -> None:
        raise ZeroDivisionError


@pytest.fixture
def alarm() -> Iterator[None]:
    with handling(signal.SIGALRM, raising(TimeoutError("the training's own limit"))):
        yield


def test_what_a_method_returns_is_returned() -> None:
    assert Guarded().names() == ["a"]


def test_an_exception_is_reported_under_the_given_name_and_not_raised() -> None:
    guarded = Guarded()
    assert guarded.names(ValueError("x")) == []
    assert guarded.tick() is None  # type: ignore[func-returns-value]
    assert guarded.reports == [("names", "ValueError('x')"), ("tick", "ZeroDivisionError()")]
    assert guarded.diagnostics.counts["internal_error"] == 2


def test_two_failed_calls_return_two_objects() -> None:
    guarded = Guarded()
    assert guarded.names(ValueError()) is not guarded.names(ValueError())


def test_what_a_signal_handler_raises_passes_through(alarm: None) -> None:
    guarded = Guarded()
    with pytest.raises(TimeoutError, match="own limit"):
        guarded.names(signalled=True)
    assert guarded.reports == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), GeneratorExit()])
def test_what_is_not_an_exception_passes_through(error: BaseException) -> None:
    guarded = Guarded()
    with pytest.raises(type(error)):
        guarded.names(error)
    assert guarded.reports == []


def test_name_signature_and_docstring_stay() -> None:
    method: Any = Guarded.names
    assert (method.__name__, method.__doc__) == ("names", "Return the names.")
    assert list(inspect.signature(method).parameters) == ["self", "error", "signalled"]
