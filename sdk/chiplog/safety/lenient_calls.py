"""Accept calls with unknown arguments, such as those of other loggers: report the arguments and ignore them.

A TypeError would end the training. Type checkers still see the declared signature.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import singledispatch, wraps
from inspect import Parameter, Signature, signature
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.text import clean_utf8, short_repr
from chiplog_schemas.interrupts import unless_interrupt

_P = ParamSpec("_P")
_R = TypeVar("_R")
_C = TypeVar("_C", bound=Callable[..., Any])
_SHOWN_CHARS = 100
_PLAIN = (bool, int, float, str, type(None))
# Options of other loggers' `log()`, which are not metrics.
_OPTIONS_ELSEWHERE = frozenset(("commit", "sync", "on_step", "on_epoch", "prog_bar", "logger"))
NO_DATA: Mapping[str, Any] = MappingProxyType({})  # log() got no dict
_log = logging.getLogger("chiplog")


@singledispatch
def report_unknown(owner: object, bad: Diagnostic) -> None:
    """Report an unknown argument. owner: the object whose call it is; a class registers how its objects report."""
    _log.warning("chiplog: %s", bad.message)


def hide_unknown_arguments(call: _C) -> _C:
    """Leave `*more` and `**unknown`, and the default for no data, out of the signature that `help()` shows.

    For calls that take unknown arguments themselves, because a wrapper would cost too much for every step.
    """
    declared = signature(call)
    shown = [
        parameter.replace(default=Parameter.empty) if parameter.default is NO_DATA else parameter
        for parameter in declared.parameters.values()
        if parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    call.__signature__ = declared.replace(parameters=shown)  # type: ignore[attr-defined]  # any attribute may be set
    return call


def ignore_unknown_arguments(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function ignore unknown arguments, and use None for missing ones.

    The run of the method, or the returned run, reports them. This costs some microseconds: do not use it per step.
    """
    declared = signature(call)

    @wraps(call)
    def wrapper(*given: _P.args, **named: _P.kwargs) -> _R:
        try:
            declared.bind(*given, **named)
        except unless_interrupt(TypeError):
            return _call_with_known(call, declared, given, named)
        return call(*given, **named)

    return wrapper


def split_unknown(
    data: Mapping[str, Any], more: tuple[Any, ...], unknown: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Diagnostic]:
    """Return the data that a `log()` with unknown arguments must log, and the diagnostic."""
    if data is NO_DATA and not more and not _OPTIONS_ELSEWHERE.issuperset(unknown):
        data = {name: value for name, value in unknown.items() if name not in _OPTIONS_ELSEWHERE}
        remedy = "is logged as if in a dict; log({'name': value})"
    else:
        remedy = "is left out; pass the values of a step in one dict, or with the same step="
    return data, unknown_argument_diagnostic("log", more, unknown, remedy)


def unknown_argument_diagnostic(call: str, more: tuple[Any, ...], unknown: Iterable[str], remedy: str) -> Diagnostic:
    """Build the diagnostic of unknown arguments: positional values and names."""
    names = [f"{name}=" for name in unknown]
    what = clean_utf8(", ".join([*map(_shown, more), *names]))[:_SHOWN_CHARS]
    # The same for all values, so it is reported once.
    key = clean_utf8(f"{call}({', '.join(['_' for _ in more] + names)})")[:_SHOWN_CHARS]
    return Diagnostic("unknown_argument", key, f"{call}() has no argument {what}, which {remedy}")


def _shown(value: Any) -> str:
    """Return the repr of a plain value, or the type of any other: a tensor's repr would wait for its device."""
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
        report_unknown(fitting["self"], bad)
    for name in has:
        if has[name].default is Parameter.empty:
            fitting.setdefault(name, None)  # the call itself reports what is missing
    returned = call(**fitting)
    if is_bad and not is_method:
        report_unknown(returned, bad)
    return returned
