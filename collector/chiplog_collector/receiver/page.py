"""The page as a child process of the collector: `chiplog ui`, started, restarted with back-off, ended with it.

The page is a client like every other one: it asks the index over the private socket, so it cannot delay the receiver.
"""

import contextlib
import logging
import subprocess
import sys
from pathlib import Path

from chiplog_schemas.backoff import Backoff
from chiplog_schemas.limits import BACKOFF_MAX_S

STOP_S = 5.0  # for open answers, then it is killed
_RESTART_MIN_S = 1.0
_log = logging.getLogger("chiplog.collector")


class PageSupervisor:
    """Keeps one `chiplog ui` running.

    It ends when its standard input ends, so also with a collector that is killed.

    Args:
        root: The directory of the collector.
        host: Address to listen on.
        port: Port; 0 for any that is free.
    """

    def __init__(self, root: Path, host: str, port: int) -> None:
        self._command = [sys.executable, "-P", "-m", "chiplog.cli", "ui", "--until-stdin-ends", "--dir", str(root)]
        self._command += ["--host", host, "--port", str(port)]
        self._process: subprocess.Popen[bytes] | None = None
        self._backoff = Backoff(min_s=_RESTART_MIN_S)
        self._started_at = self._start_after = 0.0

    def mind(self, now: float) -> None:
        """Start the page if it does not run; log with which status it ended."""
        if self._process is not None and (code := self._process.poll()) is not None:
            if now - self._started_at > 2 * BACKOFF_MAX_S:
                self._backoff.reset()
            _log.error("the page ended with exit status %s; starting it again in %.1f s", code, self._backoff.wait_s)
            self._close_input()
            self._process = None
            self._start_after = now + self._backoff.next_s()
        if self._process is None and now >= self._start_after:
            self._start(now)

    def stop(self) -> None:
        """End the page and wait for its end."""
        if self._process is None:
            return
        self._close_input()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _start(self, now: float) -> None:
        self._started_at = now
        try:
            # A terminal's Ctrl-C is for the receiver, which then ends the page.
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            _log.error("the page cannot be started: %s; trying again, events are still received", error)
            self._start_after = now + self._backoff.next_s()

    def _close_input(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
