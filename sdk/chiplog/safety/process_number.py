"""The number of this process: a forked child has another one, whichever way it was forked.

It is in a page that the kernel fills with zeros in a child (MADV_WIPEONFORK). So a child knows what it is before any
hook of Python has run, and also if none runs, as after fork(2) in C code or a bare clone(2). A child of vfork(2) shares
the memory of its parent and is no other process here; only exec and _exit are allowed in it.
"""

import mmap
import os
import threading  # noqa: F401  # before the hook below: its own hook runs first

from chiplog.native.loader import hot_path

_MADV_WIPEONFORK = 18  # Linux 4.14


def _new_page() -> memoryview:
    try:
        memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(_MADV_WIPEONFORK)
    except (OSError, ValueError):  # an older kernel, gVisor, or too many mappings: only forks by Python count then
        page = memoryview(bytearray(8)).cast("Q")
        os.register_at_fork(after_in_child=lambda: page.__setitem__(0, 0))
        return page
    return memoryview(memory).cast("Q")


PAGE = _new_page()  # its first number is that of this process; 0 in a child that has not asked yet
_known = 0  # the last number that this process, or the one that forked it, knew


def process_number() -> int:
    """Return the number of this process, which none of its ancestors has."""
    global _known
    before = _known  # read first: threads that ask at the same time find the same number
    if not PAGE[0]:
        PAGE[0] = before + 1
    _known = PAGE[0]
    return _known


_complete = process_number()  # the process in which the hooks of Python's modules have run


def _note_hooks() -> None:
    global _complete
    _complete = process_number()


os.register_at_fork(after_in_child=_note_hooks)
if hot_path is not None:
    hot_path.set_process_page(PAGE)


def may_start_threads() -> bool:
    """Return False in a forked child before the hooks of Python's modules have run; if C code forked it, they never do.

    The locks of `threading` may be held there by threads that do not exist.
    """
    return process_number() == _complete
