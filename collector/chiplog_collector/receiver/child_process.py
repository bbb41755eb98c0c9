"""A child process of the receiver: started, restarted with back-off, and stopped by closing its standard input."""

import contextlib
import logging
import subprocess
from collections.abc import Callable

from chiplog_schemas.backoff import Backoff
from chiplog_schemas.limits import BACKOFF_MAX_S

_TERMINATED_S = 2.0  # from SIGTERM to SIGKILL
_log = logging.getLogger("chiplog.collector")


class ChildProcess:
    """Keeps one process running. It must end with its standard input: so it ends with a receiver that is killed, too.

    Args:
        name: What logged lines call it, such as "index".
        spawn: Starts it with a pipe as its standard input. Raises OSError.
        restart_min_s: The first wait before it is started again.
        stop_s: How long it may take to end by itself.

    Attributes:
        ended_with: Its last exit status, -n after signal n; 0 at first.
        n_restarts: How often it ended by itself.
    """

    def __init__(
        self, name: str, spawn: Callable[[], "subprocess.Popen[bytes]"], *, restart_min_s: float, stop_s: float
    ) -> None:
        self.ended_with = 0
        self.n_restarts = 0
        self._name = name
        self._spawn = spawn
        self._stop_s = stop_s
        self._process: subprocess.Popen[bytes] | None = None
        self._backoff = Backoff(min_s=restart_min_s)
        self._started_at = self._start_after = 0.0
        self._is_refused = False  # by the system: no process, memory or descriptor is available

    def tick(self, now: float) -> None:
        """Start it if it does not run; log with which status it ended."""
        if self._process is not None and (code := self._process.poll()) is not None:
            if now - self._started_at > 2 * BACKOFF_MAX_S:
                self._backoff.reset()
            again_s = self._backoff.next_s()
            _log.error("%s ended with exit status %s; starting it again in %.1f s", self._name, code, again_s)
            _close_input(self._process)
            self._process = None
            self.ended_with = code
            self.n_restarts += 1
            self._start_after = now + again_s
        if self._process is None and now >= self._start_after:
            self.start(now)

    def start(self, now: float) -> None:
        """Start it now. If that fails, `mind` tries again."""
        self._started_at = now
        try:
            self._process = self._spawn()
        except OSError as error:  # safeguard: failed-spawn-retried
            if not self._is_refused:
                _log.error("%s cannot be started: %s; trying again, events are still received", self._name, error)
            self._is_refused = True
            self._start_after = now + self._backoff.next_s()
        else:
            if self._is_refused:
                _log.info("%s could be started again", self._name)
            self._is_refused = False

    def stop(self) -> None:
        """Let it end, and wait for that; after its time, end it by signals."""
        process = self._process
        if process is None:
            return
        _close_input(process)
        try:
            process.wait(self._stop_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_TERMINATED_S)
            if process.poll() is None:
                process.kill()
                process.wait()
        self._process = None


def _close_input(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
