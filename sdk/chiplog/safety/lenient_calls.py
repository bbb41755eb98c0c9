"""Calls with arguments that they have not, as other loggers' users write them: said, and done without these.

A TypeError would end the training. Type checkers still see the call as it is declared.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from chiplog.safety.interrupts import is_interrupt
from chiplog.values.metrics import Diagnostic, clean_utf8, short_repr

_P = ParamSpec("_P")
_R = TypeVar("_R")
_SHOWN_CHARS = 100
_PLAIN = (bool, int, float, str, type(None))
# Of other loggers' `log()`: none of them is a metric.
_OPTIONS_ELSEWHERE = frozenset(("commit", "sync", "on_step", "on_epoch", "prog_bar", "logger"))
NO_DATA: Mapping[str, Any] = MappingProxyType({})  # where log() was given no dict
_log = logging.getLogger("chiplog")


def ignore_unknown_arguments(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have a function leave out arguments that it has not, and take None for those that it is not given.

    Said by the run: the method's, or the one that is returned. Costs some microseconds: not for every step.
    """
    declared = signature(call)

    @wraps(call)
    def wrapper(*given: _P.args, **named: _P.kwargs) -> _R:
        try:
            declared.bind(*given, **named)
        except TypeError as error:
            if is_interrupt(error):
                raise
            return _call_with_known(call, declared, given, named)
        return call(*given, **named)

    return wrapper


def split_unknown(
    data: Mapping[str, Any], more: tuple[Any, ...], unknown: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Diagnostic]:
    """Return what a `log()` with arguments that it has not is to log, and what is said of them."""
    if data is NO_DATA and not more and not _OPTIONS_ELSEWHERE.issuperset(unknown):
        data = {name: value for name, value in unknown.items() if name not in _OPTIONS_ELSEWHERE}
        remedy = "is logged as if in a dict; log({'name': value})"
    else:
        remedy = "is left out; pass the values of a step in one dict, or with the same step="
    return data, unknown_argument_diagnostic("log", more, unknown, remedy)


def unknown_argument_diagnostic(call: str, more: tuple[Any, ...], unknown: Iterable[str], remedy: str) -> Diagnostic:
    """Return what is said of arguments that a call has not: values at a place, and names."""
    names = [f"{name}=" for name in unknown]
    what = clean_utf8(", ".join([*map(_shown, more), *names]))[:_SHOWN_CHARS]
    key = clean_utf8(f"{call}({', '.join(['_' for _ in more] + names)})")[:_SHOWN_CHARS]  # of many values once
    return Diagnostic("unknown_argument", key, f"{call}() has no argument {what}, which {remedy}")


def _shown(value: Any) -> str:
    """Return a value of a plain type, of others the type: a tensor's text would wait for its device."""
    return short_repr(value) if type(value) in _PLAIN else f"<{type(value).__name__}>"


def _call_with_known(
    call: Callable[..., _R], declared: Signature, given: tuple[Any, ...], named: Mapping[str, Any]
) -> _R:
    has = declared.parameters
    at_a_place = [name for name in has if has[name].kind is not Parameter.KEYWORD_ONLY]
    fitting = dict(zip(at_a_place, given, strict=False))
    fits = {name: value for name, value in named.items() if name in has and name not in fitting}
    extra_args, extra_kwargs = given[len(at_a_place) :], named.keys() - fits.keys()
    fitting |= fits
    takes = ", ".join(name for name in has if name != "self") or "none"
    bad = unknown_argument_diagnostic(call.__name__, extra_args, sorted(extra_kwargs), f"is left out; it takes {takes}")
    is_method, is_bad = "self" in fitting, bool(extra_args or extra_kwargs)
    if is_bad and is_method:
        fitting["self"].complain(bad)
    for name in has:
        if has[name].default is Parameter.empty:
            fitting.setdefault(name, None)  # the call itself says what it is to be
    returned = call(**fitting)
    if is_bad and not is_method:
        complain = getattr(returned, "complain", None)
        complain(bad) if complain is not None else _log.warning("chiplog: %s", bad.message)
    return returned
