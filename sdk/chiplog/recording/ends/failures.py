"""Describe the exception that ends a process or thread: exit code, one line, the end of its traceback."""

import sys
import traceback
from typing import Any

from chiplog.safety.diagnostics import error_text
from chiplog.safety.text import clean_utf8
from chiplog_schemas.model.codes import EndCause
from chiplog_schemas.model.end_text import (
    INTERRUPTED_TYPES,
    PEER_LOST_TYPES,
    SIGNALLED_EXIT_CODES,
    cause_of_exception,
)

TRACEBACK_CHARS_MAX = 16_384  # its end has the error. It must fit into the journal's reserve
_FRAMES_MAX = 100  # the innermost frames of each chained exception: a recursion has too many
_CUDA = "CUDA out of memory"


def exit_status_of(error: BaseException) -> tuple[int, str]:
    """Return (exit code, reason) of a process that this exception ends, with the interpreter's exit code.

    For a sys.exit() during the handling of another exception, as in the children of torch.multiprocessing.spawn, the
    other exception is the reason.
    """
    if isinstance(error, SystemExit):
        code = error.code
        if code is None or isinstance(code, int):
            handled = _handled_exception(error) if code else None
            return int(code or 0), handled[0] if handled is not None else f"SystemExit: {code}"
    return 1, failure_reason(error)


def failure_reason(error: BaseException) -> str:
    """Return the line for `reason`."""
    reason = f"{type(error).__name__}: {error_text(error)}".removesuffix(": ")
    if _out_of_memory(error) == "cuda" and not reason.startswith(_CUDA):
        return f"{_CUDA}: {reason}"
    return reason


def failure_detail(error: BaseException) -> dict[str, Any]:
    """Return details beside the reason: the exception's type, its traceback, and whether memory ran out."""
    if isinstance(error, SystemExit):
        handled = _handled_exception(error) if error.code else None
        return handled[1] if handled is not None else {}
    detail: dict[str, Any] = {
        "exception": type(error).__qualname__,
        "traceback": traceback_of(error),
        "cause": cause_of(error).value,
    }
    memory = _out_of_memory(error)
    return detail | ({"out_of_memory": memory} if memory else {})


def cause_of(error: BaseException) -> EndCause:
    """Return why this exception ends a process: from its type, or from its text if the type is not specific."""
    if isinstance(error, SystemExit):
        handled = _handled_exception(error) if error.code else None
        if handled is not None:
            return EndCause(handled[1]["cause"])
        if isinstance(error.code, int):
            return EndCause.INTERRUPTED if error.code in SIGNALLED_EXIT_CODES else EndCause.EXIT_STATUS
    types = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, KeyboardInterrupt) or types & INTERRUPTED_TYPES:
        return EndCause.INTERRUPTED
    if types & PEER_LOST_TYPES:
        return EndCause.PEER_LOST
    if isinstance(error, ConnectionError):
        return EndCause.CONNECTION_LOST
    return cause_of_exception(failure_reason(error))


def traceback_of(error: BaseException) -> str:
    """Return the end of a traceback as the interpreter prints it; never raises."""
    try:
        text = "".join(traceback.format_exception(error, limit=-_FRAMES_MAX))
    except Exception as fault:  # a foreign exception's methods may raise anything
        text = f"{type(error).__name__}, whose traceback cannot be shown: {type(fault).__name__}"
    return clean_utf8(text)[-TRACEBACK_CHARS_MAX:]


def attach_context(left: SystemExit, raised: SystemExit) -> None:
    """Attach to the copy of a sys.exit() the text of the exception that was being handled.

    The exception itself would keep alive the frames that it passed, and all their variables.
    """
    if raised.code not in (None, 0) and (handled := _handled_exception(raised)) is not None:
        left._chiplog_reported = handled  # type: ignore[attr-defined]  # any attribute may be set


def _handled_exception(error: SystemExit) -> tuple[str, dict[str, Any]] | None:
    """Return reason and detail of the exception that was being handled during a sys.exit(), if any."""
    handled: tuple[str, dict[str, Any]] | None = getattr(error, "_chiplog_reported", None)
    context = error.__context__
    if handled is None and isinstance(context, Exception):
        handled = failure_reason(context), failure_detail(context)
    return handled


def _out_of_memory(error: BaseException) -> str:
    """Return which memory ran out according to an exception: `cuda`, `host` or ''."""
    if isinstance(error, MemoryError):
        return "host"
    torch = sys.modules.get("torch")
    kind = getattr(torch, "OutOfMemoryError", None)
    if isinstance(kind, type) and isinstance(error, kind):
        return "cuda"
    # torch has no separate type for these: the message of c10/cuda/CUDACachingAllocator.cpp before OutOfMemoryError,
    # and that of cudaErrorMemoryAllocation from cudaGetErrorString, in c10/cuda/CUDAException.cpp.
    text = error_text(error)
    return "cuda" if isinstance(error, RuntimeError) and (_CUDA in text or "CUDA error: out of memory" in text) else ""
