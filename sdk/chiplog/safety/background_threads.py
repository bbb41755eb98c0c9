"""Background threads that the exit of the process waits for.

When the interpreter ends, it unwinds a daemon thread at the point where the thread next takes the GIL. Native code of
DuckDB, Arrow and torch cannot be unwound: the process aborts, and a training that ended well has exit code 134. Since
Python 3.14 such a thread sleeps instead (gh-87135).
"""

import atexit
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from chiplog_schemas.interrupts import handlers_held, unless_interrupt

EXIT_WAIT_S = 0.5  # for all: native calls are short; a query that waits for a network is in ZeroMQ, which is safe
is_exiting = threading.Event()  # set at exit: threads use it for their waits
_threads: list[threading.Thread] = []
_is_registered = False
_T = TypeVar("_T")


def wait_at_exit() -> None:
    """Have the exit of the process wait for the threads, after all that is registered with atexit from now on."""
    global _is_registered
    if not _is_registered:
        _is_registered = True
        atexit.register(_wait_for_all)  # safeguard: exit-waits-for-native-threads


def start_thread(target: Callable[..., object], *args: Any, name: str) -> bool:
    """Start a daemon thread. Return False if the system is out of threads, or the exit has waited for the others."""
    if is_exiting.is_set():  # safeguard: no-native-thread-after-exit-wait
        return False
    wait_at_exit()
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        with handlers_held():  # Thread.start() makes a KeyError of what a handler raises in it, of a thread that runs
            thread.start()
            _threads[:] = [other for other in _threads if other.is_alive()] + [thread]
    except unless_interrupt(RuntimeError):
        return False
    return True


def result_within(
    timeout_s: float, work: Callable[[], _T], *, name: str, drop: Callable[[_T], object] = lambda late: None
) -> _T:
    """Return what a function returns, or raise what it raises. It runs here if no thread can be started.

    name: of the thread. drop: called with a result that comes too late.

    Raises:
        TimeoutError: It takes longer; it is not stopped.

    """
    from concurrent.futures import Future  # not with chiplog: a training that reads nothing does not need it

    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)  # for the thread that waits

    if not start_thread(run, name=name):
        run()
    try:
        return outcome.result(timeout_s)
    except TimeoutError:
        outcome.add_done_callback(lambda late: None if late.exception() else drop(late.result()))
        raise


def _wait_for_all() -> None:
    is_exiting.set()
    for thread in _threads:
        thread.join(EXIT_WAIT_S / len(_threads))
