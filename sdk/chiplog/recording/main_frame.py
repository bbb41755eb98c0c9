"""Whether the program ran to its end, or an exception ended it: its outermost frame tells, once that is over.

Of a SystemExit nobody is told, and who caught it may keep it for ever. But a frame that returned stands at its return.
"""

import sys
import threading
from types import FrameType

_OPTIMIZED = 0x1  # CO_OPTIMIZED, of inspect: a function's code. Its frame would keep alive what its variables hold
_RETURNS = ("RETURN_VALUE", "RETURN_CONST")
_frame: FrameType | None = None  # of the main thread


def remember_main_frame() -> None:
    """Remember the frame that the main thread began with, where that holds nothing that is the training's."""
    global _frame
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    is_harmless = frame is not None and (
        not frame.f_code.co_flags & _OPTIMIZED or frame.f_globals.get("__name__") == "runpy"  # python -m
    )
    _frame = frame if is_harmless else None


def main_frame_returned() -> bool:
    """Tell, at the exit of the process, whether the program ran to its end. False where nobody can tell."""
    if _frame is None:
        return False
    import opcode  # here: few processes have to know

    at = _frame.f_lasti
    return at >= 0 and opcode.opname[_frame.f_code.co_code[at]] in _RETURNS
