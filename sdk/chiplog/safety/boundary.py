"""The boundary between a training and chiplog: what fails inside of chiplog is reported, not raised."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class _Reporter(Protocol):
    def _report_internal_error(self, where: str, error: Exception) -> None: ...


_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S", bound=_Reporter)
_Method = Callable[Concatenate[_S, _P], _R]


def never_raises(
    where: str, otherwise: Callable[[], Any] = lambda: None
) -> Callable[[_Method[_S, _P, _R]], _Method[_S, _P, _R]]:
    """Make a method report an exception to its object as one of `where`, and return `otherwise()`.

    What a signal handler raised passes through, because the report raises it again; so does what is not an Exception.
    The wrapper costs a call: `log()`, `phase()` and the end of a step have their guards in their own bodies.
    """

    def decorate(method: _Method[_S, _P, _R]) -> _Method[_S, _P, _R]:
        @wraps(method)
        def wrapper(self: _S, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                self._report_internal_error(where, error)
                return otherwise()  # type: ignore[no-any-return]  # of the method's type, as its author declares

        return wrapper  # type: ignore[return-value]  # callers give self by name or by place

    return decorate
