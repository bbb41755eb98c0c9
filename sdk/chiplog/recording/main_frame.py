"""Find out from the outermost frame whether the program ran to its end or an exception ended it.

No hook sees a SystemExit, and code that caught it may keep it forever. But the last instruction of a frame that
returned is a return. The exit status of the process shows less: nothing reads it offline, and a kernel before Linux
6.15 may have forgotten it. Then only the instruction separates a normal end from `raise SystemExit(4)`.
"""

import sys
import threading
from types import FrameType

_OPTIMIZED = 0x1  # CO_OPTIMIZED of inspect: a function. Its frame would keep its variables alive
_RETURNS = ("RETURN_VALUE", "RETURN_CONST")
_frame: FrameType | None = None  # of the main thread


def remember_main_frame() -> None:
    """Remember the main thread's outermost frame, unless it would keep objects of the training alive."""
    global _frame
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    is_harmless = frame is not None and (
        not frame.f_code.co_flags & _OPTIMIZED or frame.f_globals.get("__name__") == "runpy"  # python -m
    )
    _frame = frame if is_harmless else None


def main_frame_returned() -> bool:
    """Return True if the program ran to its end; False if unknown. Call this at the exit of the process."""
    if _frame is None:
        return False
    import opcode  # imported late: few processes need it

    at = _frame.f_lasti
    return at >= 0 and opcode.opname[_frame.f_code.co_code[at]] in _RETURNS
