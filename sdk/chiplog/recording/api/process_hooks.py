"""End the runs of this process with it: hooks for uncaught exceptions, sys.exit, exit, fork and multiprocessing."""

import atexit
import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

from chiplog.identity import process_info
from chiplog.recording.ends.failures import attach_context, exit_status_of
from chiplog.recording.run import current_run
from chiplog.recording.run.current_run import all_runs, open_runs
from chiplog.safety.background_threads import wait_at_exit
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.process.pool_owners import note_good_end
from chiplog_schemas.process.recording_dir import recording_dir

_OPTIMIZED = 0x1  # CO_OPTIMIZED of inspect: a function. Its frame would keep its variables alive
_RETURNS = ("RETURN_VALUE", "RETURN_CONST")
_installed = threading.Lock()  # held from the first install() on
_hooks: list[Any] = [None, None]  # chiplog's latest sys.excepthook and threading.excepthook
_noting = threading.local()  # .error: the exception of this thread that is being noted
_prints_exceptions = False
_main_frame: FrameType | None = None  # the outermost one of the main thread
_pending_exit: SystemExit | None = None  # the last uncaught sys.exit() since init()
# The process with a registered finalizer, and the one that registered it for the time after its start.
_finalizer_pid = _bootstrap_pid = 0


def install() -> None:
    """Install the hooks once, those for exceptions again if other code has replaced them."""
    _hook_exceptions()
    if not _installed.acquire(blocking=False):
        return
    _remember_main_frame()
    wait_at_exit()  # safeguard: runs-end-before-the-exit-waits
    atexit.register(_at_exit)  # it runs first: the end of a run may start threads
    os.register_at_fork(after_in_child=_after_fork)  # safeguard: fork-detaches-journal
    original_exit = sys.exit

    def exit_hook(status: Any = None, /) -> NoReturn:
        global _pending_exit
        try:
            original_exit(status)
        except SystemExit as error:
            # In another thread it ends only the thread. In atexit, after the main thread, it ends nothing.
            if threading.current_thread() is threading.main_thread() and threading.main_thread().is_alive():
                _pending_exit = SystemExit(*error.args)
                _remember_main_frame()  # in a REPL or embedded, the frame that called init() has returned
                attach_context(_pending_exit, error)
                error._chiplog_departure = _ExitMarker(_pending_exit)  # type: ignore[attr-defined]  # any attribute may be set
            raise

    sys.exit = exit_hook  # no hook sees a SystemExit; one raised without sys.exit goes unseen


def _hook_exceptions() -> None:
    """Note uncaught exceptions before the hooks that are installed now, and then call these."""
    if sys.excepthook is not _hooks[0]:
        previous = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if _prints_exceptions and previous is not sys.__excepthook__ and open_runs():
                traceback.print_exception(kind, error, trace)
            for run in all_runs():  # safeguard: exception-ends-all-runs
                run._end.mark_exit(error)
            previous(kind, error, trace)

        sys.excepthook = _hooks[0] = hook
    if threading.excepthook is not _hooks[1]:
        previous_of_threads = threading.excepthook

        def thread_hook(arguments: threading.ExceptHookArgs) -> None:
            error = arguments.exc_value
            is_noted = error is getattr(_noting, "error", None)  # by a later hook, which reached this one
            if error is not None and arguments.exc_type is not SystemExit and not is_noted:
                name = arguments.thread.name if arguments.thread is not None else "?"
                for run in open_runs():
                    run._notices.note_thread(name, error)
            _noting.error = error
            try:
                previous_of_threads(arguments)
            finally:
                _noting.error = None

        threading.excepthook = _hooks[1] = thread_hook


def print_exceptions() -> None:
    """Print an uncaught exception while a run is open, as W&B does, also if the hook of another library may hide it."""
    global _prints_exceptions
    _prints_exceptions = True


class _ExitMarker:
    """Attached to the SystemExit of a sys.exit(). If it is deleted while code runs, the exit was caught.

    The interpreter deletes the one that ends the process after the last frame.
    """

    def __init__(self, left: SystemExit) -> None:
        self._left = left  # a copy: the raised one must be deleted when its handler drops it

    def __del__(self, frame: Callable[[], FrameType] = sys._getframe) -> None:
        global _pending_exit
        if _pending_exit is self._left and frame().f_back is not None:  # safeguard: caught-exit-is-no-end
            _pending_exit = None

    def __reduce__(self) -> tuple[type[str], tuple[()]]:
        return str, ()  # a pickled exception does not carry the marker


def _remember_main_frame() -> None:
    """Remember the main thread's outermost frame, unless it would keep objects of the training alive."""
    global _main_frame
    frame = _frame_of_main_thread()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    is_harmless = frame is not None and (
        not frame.f_code.co_flags & _OPTIMIZED or frame.f_globals.get("__name__") == "runpy"  # python -m
    )
    _main_frame = frame if is_harmless else None


def _frame_of_main_thread() -> FrameType | None:
    main = threading.main_thread().ident or 0
    if threading.get_ident() == main:
        return sys._getframe()
    # It allocates while it holds the lock of the list of threads. A collection amid that may free a threading.local,
    # which waits for the same lock: forever. See https://github.com/python/cpython/issues/106883.
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(main)
    finally:
        if is_enabled:
            gc.enable()


def _main_frame_returned() -> bool:
    """Return True if the program ran to its end; False if unknown. Call this at the exit of the process.

    No hook sees a SystemExit, and code that caught it may keep it forever. But the last instruction of a frame that
    returned is a return. The exit status of the process shows less: nothing reads it offline, and a kernel before Linux
    6.15 may have forgotten it. Then only the instruction separates a normal end from `raise SystemExit(4)`.
    """
    if _main_frame is None:
        return False
    import opcode  # imported late: few processes need it

    at = _main_frame.f_lasti
    return at >= 0 and opcode.opname[_main_frame.f_code.co_code[at]] in _RETURNS


def forget_exit() -> None:
    """Forget a sys.exit() that did not end the process."""
    global _pending_exit
    _pending_exit = None


def _at_exit(*, is_seen: bool = False) -> None:
    """End the runs of this process. is_seen: an exception that ends it, if any, is being handled."""
    runs = all_runs()
    returned = is_seen or _main_frame_returned()  # safeguard: kept-exit-is-no-end
    if returned:
        forget_exit()  # it was caught, and the handler keeps it
    # A child of multiprocessing exits while its exception is being handled, without calling the excepthook.
    error = sys.exc_info()[1] or _pending_exit  # safeguard: child-exception-seen
    if returned if error is None else not exit_status_of(error)[0]:
        here = runs[-1]._settings.places if runs else paths_for_root(recording_dir(None))
        note_good_end(here.owners)  # safeguard: pool-worker-ends-well
    for run in runs:
        if error is not None:
            run._end.mark_exit(error)
        elif not returned:  # safeguard: unseen-exit-is-not-normal
            run._end.leave(run._settings)  # `raise SystemExit(4)`: no hook gets the exit code
        run.finish()


def _at_exit_of_child() -> None:
    forget_exit()  # an exception that ends it is being handled; any other one was caught
    _at_exit(is_seen=True)


def _after_fork() -> None:
    forget_exit()
    _remember_main_frame()
    current_run.follow_fork()
    for run in all_runs():
        run._run_journal.start_sender()
    if all_runs():
        register_child_finalizer()


def register_child_finalizer() -> None:
    """Register the finalizer of a child that multiprocessing has not marked as a child yet.

    multiprocessing clears its finalizers right after this, and then calls what is registered here.
    """
    global _bootstrap_pid
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _bootstrap_pid != os.getpid():
        _bootstrap_pid = os.getpid()
        util.register_after_fork(_at_exit, _finish_with_multiprocessing)


def _finish_with_multiprocessing(_: object = None) -> None:
    """Finish the run at the end of a child of multiprocessing: it exits without atexit, but runs its finalizers."""
    sys.modules["multiprocessing.util"].Finalize(None, _at_exit_of_child, exitpriority=100)


def finalize_with_multiprocessing() -> None:
    """Register once that a child of multiprocessing finishes its run."""
    global _finalizer_pid
    if (
        _finalizer_pid != os.getpid()
        and process_info.is_multiprocessing_child()
        and "multiprocessing.util" in sys.modules
    ):
        _finalizer_pid = os.getpid()
        _finish_with_multiprocessing()
