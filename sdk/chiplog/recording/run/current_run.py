"""The runs of this process, and the functions of the package that act on the current one."""

import logging
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from chiplog.recording.run.run import Run
from chiplog.safety.dynamo import dynamo_disable
from chiplog.safety.lenient_calls import NO_DATA, hide_unknown_arguments, ignore_unknown_arguments
from chiplog.safety.process_number import process_number

_log = logging.getLogger("chiplog")
_lock = threading.Lock()
_opening = threading.RLock()  # init() in a handler of a signal that came twice
_process = process_number()  # whose lock and runs these are
_current: Run | None = None
_earlier: list[Run] = []  # opened by init() before the current one, and still open
_secondary_runs: list[Run] = []  # unpickled while another run was the current one
opened_ids: set[str] = set()  # first IDs of runs that this process opened, before any agreement


def open_runs() -> list[Run]:
    """Return the open runs of `init`, the latest last."""
    return [run for run in (*_earlier, _current) if run is not None and not run._finished]


def all_runs() -> list[Run]:
    """Return the runs that may be open, the current one last."""
    return [run for run in (*_secondary_runs, *_earlier, _current) if run is not None]


def opening() -> AbstractContextManager[Any]:
    """Return the lock of whoever looks for an open run and opens one if there is none.

    Without it two threads would open one run twice: the second under a label of its own, whose config is not the
    run's.
    """
    follow_fork()
    return _opening


def enter(run: Run) -> None:
    """Make a run of `init` the current one. Open runs stay open."""
    global _current
    with _lock:
        _earlier[:] = open_runs()
        _current = run


def enter_unpickled(run: Run) -> None:
    """Make an unpickled run the current one, unless another one is open."""
    global _current
    with _lock:
        if _current is None or _current._finished:
            _current = run
        else:
            _secondary_runs[:] = [client for client in _secondary_runs if not client._finished]
            _secondary_runs.append(run)


def follow_fork() -> None:
    """Detach the runs of a forked child from those of its parent, once."""
    global _lock, _opening, _process
    if _process == (number := process_number()):
        return
    _process = number
    opened_ids.clear()
    _lock = threading.Lock()  # another thread of the parent may have held them
    _opening = threading.RLock()
    for run in all_runs():
        run._follow_fork()


def current() -> Run | None:
    """Return the latest run of this process that is open, else the latest; None before `init`."""
    global _current
    if _earlier and _current is not None and _current._finished and (opened := open_runs()):
        _current = opened.pop()
        _earlier[:] = opened
    return _current


@dynamo_disable
@hide_unknown_arguments
def log(data: Mapping[str, Any] = NO_DATA, step: int | None = None, *more: Any, **unknown: Any) -> None:
    """Log a dict of values to the current run; see `Run.log`. Never raises; without a run it does nothing.

    Args:
        data: Values by key: int, float, bool, str, `Histogram`, numpy scalars, tensors of one element, and nested
            dicts, whose keys are joined with `/`.
        step: int64, in any order. Default: one more than the largest step that this label has logged; 0 in the first
            call.

    Examples:
        >>> chiplog.log({"train/loss": loss, "opt": {"lr": 3e-4}}, step=step)
    """
    run = current() if _earlier else _current
    if run is None:
        _warn_no_run()
    elif unknown or more:
        run.log(data, step, *more, **unknown)
    else:
        run.log(data, step)


@ignore_unknown_arguments
def finish(exit_code: int = 0) -> None:
    """Finish the current run, if there is one. Queries see its last events a moment later; see `Run.finish`.

    Args:
        exit_code: 0 marks the label as finished, any other number as failed.

    Examples:
        >>> chiplog.finish()
    """
    run = current()
    if run is not None:
        run.finish(exit_code)


_warned_no_run = False


def _warn_no_run() -> None:
    global _warned_no_run
    if not _warned_no_run:
        _warned_no_run = True
        _log.warning("chiplog: log() without a run; call chiplog.init() first")
