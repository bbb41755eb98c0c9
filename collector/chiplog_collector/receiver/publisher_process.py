"""The publisher of a store as a child process of the collector: see chiplog_collector.store.publisher."""

import os
import subprocess
import sys
from pathlib import Path

from chiplog_collector.receiver.child_process import ChildProcess

_RESTART_MIN_S = 1.0
_STOP_S = 15.0  # for pieces that wait, if the store answers


def publisher_process(root: Path, url: str) -> ChildProcess:
    """Return the process that publishes what the index of a collector cuts.

    Args:
        root: The directory of the collector.
        url: The store.
    """
    command = [sys.executable, "-P", "-m", "chiplog_collector.store", str(root), url]

    def spawn() -> "subprocess.Popen[bytes]":
        variables = {"RUST_LOG": "error", **os.environ}  # else credentials that are not there are pages of warnings
        # A terminal's Ctrl-C is for the receiver, which then ends the publisher.
        return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=variables)

    return ChildProcess("the publisher", spawn, restart_min_s=_RESTART_MIN_S, stop_s=_STOP_S)
