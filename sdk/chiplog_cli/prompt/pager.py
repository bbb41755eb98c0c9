"""Long output through a pager: less, or what PAGER names."""

import os
import shlex
import shutil
import signal
import subprocess
import sys

_LESS = "less -R -F -X"  # colours; no pager if it fits; the text stays on the screen


def show_text(text: str, *, height: int) -> None:
    """Write a text to the terminal, through a pager if it has more lines than the terminal.

    Ctrl-C then belongs to the pager. Without a pager the text is written as it is.
    """
    command = shlex.split(os.environ.get("PAGER") or _LESS)
    if text.count("\n") < height or not command or shutil.which(command[0]) is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    environ = {"LESS": "-R", **os.environ} if command[0] == "less" else dict(os.environ)
    pager = subprocess.Popen(command, stdin=subprocess.PIPE, env=environ)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # after the start: the pager does not inherit it
    try:
        pager.communicate(text.encode(errors="replace"))  # a pager that is left early has closed the pipe
    finally:
        signal.signal(signal.SIGINT, before)
