"""Which of a collector's threads go first where cores are short: the receiver, then the index, then what can wait.

Lowered threads take a core that nothing else wants. Where all are taken, such as by a training, they still get a share.
"""

import contextlib
import os
import sys
import threading
from pathlib import Path

BACKGROUND = 5  # a third of the time of a thread that competes with it; of 19 the 64th part would publish nothing
_NICE_MAX = 19
_GROUP = Path("/proc/self/autogroup")  # of a session, where the kernel shares cores among sessions first


def lower_thread(steps: int = BACKGROUND) -> None:
    """Lower the priority of the calling thread, and of those that it starts. Does nothing but on Linux."""
    if sys.platform != "linux":
        return  # there a priority is one of the whole process
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # a sandbox that refuses it: the work is done at the usual priority
        os.setpriority(os.PRIO_PROCESS, thread, min(_NICE_MAX, os.getpriority(os.PRIO_PROCESS, thread) + steps))


def lower_process(steps: int = BACKGROUND) -> None:
    """Lower the priority of this process. Call it before it has threads."""
    lower_thread(steps)
    if os.getsid(0) == os.getpid():  # else other processes would be lowered, too
        with contextlib.suppress(OSError):  # most kernels of containers have no such groups
            _GROUP.write_text(str(steps))
