"""Distinguish an exception that a signal handler raised inside chiplog from one of chiplog or of a value's method.

A time-out is an ordinary exception: `signal.alarm` and a handler that raises TimeoutError. It belongs to the training,
so every `except` in a call from the training leaves it out by `unless_interrupt`. CPython calls a handler with the
signal's number and the frame that it interrupts: no other function gets that frame.

Calls that are made once and contain many `except` clauses defer the handlers until they are done.
"""

# The functions of `signal` are wrappers with `except ValueError`, which drops what a handler raises in them.
import _signal as signal  # type: ignore[import-not-found] # safeguard: handlers-held-without-except
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, TypeVar

_E = TypeVar("_E", bound=BaseException)
_UNWRAP_MAX = 8  # partials within partials


def is_interrupt(error: BaseException, caller: FrameType | None = None) -> bool:
    """Return True if a signal handler raised the exception.

    caller: the frame that called C code, which has no frame, if the exception comes from there.
    """
    traceback = error.__traceback__
    outer = caller
    handlers: set[CodeType] | None = None
    while traceback is not None:
        frame = traceback.tb_frame
        if outer is not None:
            if _is_given(frame, outer):
                return True
            if handlers is None:
                handlers = set(_codes())
            if frame.f_code in handlers:  # a handler that has deleted its arguments
                return True
        outer, traceback = frame, traceback.tb_next
    return False


def unless_interrupt(*kinds: type[_E]) -> tuple[type[_E], ...]:
    """Return what an `except` clause catches: these kinds, or nothing if a signal handler raised the exception.

    For the clause itself, `except unless_interrupt(OSError):`. It is evaluated only when there is an exception.
    """
    error = sys.exception()
    return () if isinstance(error, kinds) and is_interrupt(error) else kinds


def raise_interrupt(error: BaseException) -> None:
    """Raise what a signal handler raised, if that is the error, what the error was made from, or what it replaced."""
    cause: BaseException | None = error
    while cause is not None:
        if is_interrupt(cause):
            raise cause
        cause = cause.__cause__ or _replaced(cause)


def _replaced(error: BaseException) -> BaseException | None:
    """Return the exception that was leaving a call when this one took its place there.

    An example is a `with` on a lock that a handler's exception left unlocked. None if the training is handling the
    other exception: that one has left all the calls that this one comes from.
    """
    before, traceback = error.__context__, error.__traceback__
    reached = before.__traceback__ if before is not None else None
    while traceback is not None and reached is not None:
        if traceback.tb_frame is reached.tb_frame:
            return before
        traceback = traceback.tb_next
    return None


@contextmanager
def handlers_held() -> Iterator[None]:
    """Defer the training's signal handlers until after this block, so that no `except` of chiplog catches their errors.

    A signal that comes a second time is handled at once: if the block hangs, Ctrl-C twice still ends it. In threads
    other than the main one, where no handler runs, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    is_over = False

    def note(number: int, frame: FrameType | None) -> None:
        if is_over or number in came:
            held[number](number, frame)
        else:
            came.append(number)

    installed = ((number, signal.getsignal(number)) for number in signal.valid_signals())
    held: dict[int, Callable[[int, FrameType | None], Any]] = {n: call for n, call in installed if callable(call)}
    try:
        for number in held:
            signal.signal(number, note)
        yield
    finally:
        try:
            _restore(list(held), note, held)
        finally:
            is_over = True  # note() still calls a handler, if what was in the block installs it again
            _handle(came, held)


def _restore(numbers: list[int], note: object, handlers: dict[int, Callable[[int, FrameType | None], Any]]) -> None:
    """Restore the handler of each signal that has `note`, even after a handler that raises in here."""
    try:
        while numbers:
            if signal.getsignal(numbers[-1]) is note:
                signal.signal(numbers[-1], handlers[numbers[-1]])
            numbers.pop()
    finally:
        if numbers:
            _restore(numbers, note, handlers)


def _handle(came: list[int], handlers: dict[int, Callable[[int, FrameType | None], Any]]) -> None:
    """Call the handler of each received signal, even after one that raises."""
    if came:
        try:
            number = came.pop(0)
            handlers[number](number, sys._getframe())
        finally:
            _handle(came, handlers)


def _is_given(frame: FrameType, outer: FrameType) -> bool:
    """Return True if a function has the frame that called it as an argument."""
    code, found = frame.f_code, frame.f_locals
    n_named = code.co_argcount + code.co_kwonlyargcount
    # `*args` and `**kwargs` follow the named arguments.
    for name in code.co_varnames[: n_named + 2]:
        value = found.get(name)
        if value is outer or (type(value) is tuple and any(entry is outer for entry in value)):
            return True
    return False


def _codes() -> Iterator[CodeType]:
    """Yield the code of each signal handler that is installed."""
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        for _ in range(_UNWRAP_MAX):
            if hasattr(handler, "func"):  # a partial
                handler = handler.func
            elif hasattr(handler, "__func__"):  # a method
                handler = handler.__func__
            else:
                break
        if not hasattr(handler, "__code__"):
            handler = vars(type(handler)).get("__call__")  # an object that can be called
        code = getattr(handler, "__code__", None)
        if isinstance(code, CodeType):
            yield code
