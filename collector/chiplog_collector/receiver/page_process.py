"""The page as a child process of the collector: `chiplog ui`.

It is a client like every other one: it asks the index over the private socket, so it cannot delay the receiver.
"""

import subprocess
import sys
from pathlib import Path

from chiplog_collector.receiver.child_process import ChildProcess

_RESTART_MIN_S = 1.0
_STOP_S = 5.0  # for open answers


def page_process(root: Path, host: str, port: int) -> ChildProcess:
    """Return the process that serves the page of a collector.

    Args:
        root: The directory of the collector.
        host: Address to listen on.
        port: Port; 0 for any that is free.
    """
    command = [sys.executable, "-P", "-m", "chiplog_cli", "ui", "--until-stdin-ends", "--of-collector"]
    command += ["--dir", str(root), "--host", host, "--port", str(port)]

    def spawn() -> "subprocess.Popen[bytes]":
        # A terminal's Ctrl-C is for the receiver, which then ends the page.
        return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    return ChildProcess("the page", spawn, restart_min_s=_RESTART_MIN_S, stop_s=_STOP_S)
