"""Which exceptions are a signal handler's: handlers of every kind, similar functions, and deferred handlers."""

import functools
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import chiplog
from chiplog.integrations import wandb
from chiplog.safety.diagnostics import Diagnostic
from chiplog.values.metrics import Histogram, flatten
from chiplog_schemas.interrupts import handlers_held, is_interrupt, raise_interrupt, unless_interrupt
from tests.support.safeguard import proves
from tests.support.signals import handling

N_INITS = 40


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


def test_a_clause_catches_its_kinds_unless_a_handler_raised_the_exception(handled) -> None:
    def caught_in(call, *kinds) -> bool:
        try:
            call()
        except unless_interrupt(*kinds) as error:
            assert isinstance(error, kinds)
            return True
        return False

    assert caught_in(lambda: {}["absent"], KeyError, ValueError)
    with pytest.raises(KeyError):
        caught_in(lambda: {}["absent"], ValueError)
    with pytest.raises((TimeoutError, ValueError)) as caught:
        caught_in(interrupted, Exception)
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
    assert isinstance(bad, Diagnostic)
    found = list(flatten({"a": BrokenDict(), "b": 2.0}))
    assert [entry for entry in found if not isinstance(entry, Diagnostic)] == [("a/fine", 1.0), ("b", 2.0)]
    [bad] = [entry for entry in found if isinstance(entry, Diagnostic)]
    assert (bad.kind, "'a'" in bad.message, "TimeoutError" in bad.message) == ("unreadable", True, True)


def test_what_no_handler_raised_is_no_interrupt(handled) -> None:
    def raise_with(frame_like: object) -> None:
        raise OSError(frame_like)

    for call in (lambda: raise_with(1), lambda: int("x"), lambda: {}["x"]):
        with pytest.raises((OSError, ValueError, KeyError)) as caught:
            call()
        assert not is_interrupt(caught.value)


# -- handlers that wait --


@pytest.fixture
def calls() -> Iterator[list[str]]:
    """Install handlers of two signals that note their call; the second one's raises."""
    noted: list[str] = []

    def raising(signum: int, frame: object) -> None:
        noted.append("alarm")
        raise TimeoutError("late")

    previous = [
        signal.signal(signal.SIGUSR1, lambda *given: noted.append("user")),
        signal.signal(signal.SIGALRM, raising),
    ]
    yield noted
    for number, handler in zip((signal.SIGUSR1, signal.SIGALRM), previous, strict=True):
        signal.signal(number, handler)


def test_handlers_are_called_behind_the_block_each_of_them(calls) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeoutError, match="late") as caught, handlers_held():
        signal.raise_signal(signal.SIGALRM)
        signal.raise_signal(signal.SIGUSR1)
        assert calls == []
    assert calls == ["alarm", "user"]
    assert is_interrupt(caught.value)
    assert signal.getsignal(signal.SIGALRM) is before


@proves(
    "handlers-held-without-except",
    "what a signal handler raises while handlers are deferred or restored is not dropped",
    new="import signal",
)
def test_what_a_handler_raises_at_any_point_of_the_block_reaches_the_training() -> None:
    """A signal arrives at each operation of the interpreter in turn, in chiplog and in the library that it uses."""
    n_points = 0
    for was_interrupted in interrupt_at_each_point(lambda: calls.append("inside"), deep):
        assert was_interrupted
        n_points += 1
    assert n_points > 100


def test_what_a_handler_raises_while_handlers_are_restored_leaves_none_behind_and_no_signal(calls) -> None:
    alarm, n_points = signal.getsignal(signal.SIGALRM), 0
    for was_interrupted in interrupt_at_each_point(lambda: signal.raise_signal(signal.SIGALRM), deep, "_restore"):
        assert was_interrupted
        assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGALRM)) == (deep, alarm)
        n_points += 1
        assert calls == ["alarm"] * n_points
    assert n_points > 50


def interrupt_at_each_point(
    inside: Callable[[], object], handler: Callable[..., object], function: str | None = None
) -> Iterator[bool]:
    """Run a block with deferred handlers, each time with SIGUSR1 at the next operation of the interpreter.

    Args:
        inside: What the block does.
        handler: Of SIGUSR1; it raises a ValueError.
        function: Count only operations of this one of chiplog, and not those of all functions.

    Yields:
        Whether an exception left the block.

    """

    def block() -> None:
        with handlers_held():
            inside()

    def trace(frame: Any, event: str, argument: object) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode" and function in (None, frame.f_code.co_name):
            count[0] += 1
            if count[0] == n:
                signal.raise_signal(signal.SIGUSR1)
        return trace

    n, count, before, previous = 1, [0], sys.gettrace(), signal.getsignal(signal.SIGUSR1)
    try:
        while True:
            count[0], raised = 0, []
            signal.signal(signal.SIGUSR1, handler)
            try:
                sys.settrace(trace)
                block()
            except Exception as error:
                raised = [type(error), type(error.__context__)]
            finally:
                sys.settrace(before)
            if count[0] < n:
                return
            yield ValueError in raised
            n += 1
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_what_took_the_place_of_a_handlers_exception_is_that_exception(calls) -> None:
    class Unlocked:
        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None:
            raise RuntimeError("release unlocked lock")

    def call(inner: Callable[[], object]) -> None:
        try:
            inner()
        except RuntimeError as error:
            raise_interrupt(error)

    def wait() -> None:
        with Unlocked():
            signal.raise_signal(signal.SIGALRM)

    def fail() -> None:
        raise RuntimeError

    with pytest.raises(TimeoutError):
        call(wait)
    try:
        signal.raise_signal(signal.SIGALRM)
    except TimeoutError:
        call(fail)  # the training handles it: no reason to raise it again


def test_a_signal_that_comes_twice_is_handled_at_once(calls) -> None:
    with pytest.raises(TimeoutError), handlers_held():
        signal.raise_signal(signal.SIGALRM)
        with pytest.raises(TimeoutError):
            signal.raise_signal(signal.SIGALRM)
        assert calls == ["alarm"]
    assert calls == ["alarm", "alarm"]


def test_a_handler_that_was_installed_inside_stays(calls) -> None:
    def other(signum: int, frame: object) -> None:
        calls.append("other")

    with handlers_held():
        signal.signal(signal.SIGUSR1, other)
    assert signal.getsignal(signal.SIGUSR1) is other


def test_another_thread_leaves_handlers_alone(calls) -> None:
    def run() -> None:
        with handlers_held():
            found.append(signal.getsignal(signal.SIGUSR1))

    found: list[Any] = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGUSR1)]


@proves(
    "interrupt-passes-init", "what a signal handler raises passes through init()", new="return _init(environ, given)"
)
@proves(
    "interrupt-passes-wandb-init",
    "what a signal handler raises passes through wandb.init()",
    new="return _init_leniently(given)",
)
@pytest.mark.parametrize(
    "init",
    [
        lambda run_id: chiplog.init(run_id=run_id, mode="offline", capture_console=False),
        lambda run_id: wandb.init(id=run_id, mode="offline", settings={"console": "off"}),
    ],
    ids=["chiplog", "wandb"],
)
def test_what_a_handler_raises_during_init_reaches_the_training_behind_a_run_that_is_whole(
    chiplog_dir, init: Callable[[str], object]
) -> None:
    def expire(signum: int, frame: object) -> None:
        raised.append(signum)
        raise TimeoutError("the training's own")

    raised: list[int] = []
    n_seen = n_whole = 0
    chooser = random.Random(7)
    with handling(signal.SIGALRM, expire):
        for number in range(N_INITS):
            try:
                signal.setitimer(signal.ITIMER_REAL, chooser.uniform(1e-5, 5e-3))
                init(f"r{number}")
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.sigtimedwait([], 0)  # nothing is waited for: what came just now is handled here at the latest
            except TimeoutError:
                n_seen += 1
            run = chiplog.run
            if run and run.id == f"r{number}":  # else it was interrupted before it began
                n_whole += 1
                run.log({"a": 1.0})
                run.finish()
    assert n_seen == len(raised)
    assert n_whole > N_INITS - n_seen, "some were interrupted in the middle"
