"""Capture the console of a run's process: everything written to descriptors, or what Python writes to other streams."""

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from chiplog.console.lines import ByteSplitter, LineLimiter
from chiplog.console.python_streams import STDERR, STDOUT, PythonStreamCapture
from chiplog.console.redirect import StreamRedirect
from chiplog.console.relay import CHUNK_BYTES
from chiplog.console.shared_targets import TargetServer, adopt_targets
from chiplog.identity.process_info import node_name
from chiplog.settings import RunSettings
from chiplog_schemas._version import __version__
from chiplog_schemas.transport.dealer import require_free_fds

FINISH_WAIT_S = 0.3  # part of finish()'s one second; the helper needs a few milliseconds


class ConsoleCapture:
    """The console of one run, captured from construction to `close`. Never raises.

    producer: the run's producer; the lines belong to its label. on_line, on_lost, has_room: as in `LineLimiter`.
    warn: called once if descriptors cannot be captured. journal: the run's journal directory if it is on disk; the
    helper writes there how this process ended. is_supervised: whether `tick` will be called.
    """

    def __init__(
        self,
        settings: RunSettings,
        producer: bytes,
        on_line: Callable[[int, int, str], None],
        on_lost: Callable[[str, dict[str, int]], None],
        has_room: Callable[[], bool],
        warn: Callable[[str], object],
        journal: Path | None = None,
        *,
        is_supervised: bool = True,
    ) -> None:
        rate, burst = settings.limits.console_lines_per_s, settings.limits.console_burst_lines
        self._new_limiter = partial(LineLimiter, on_line, on_lost, has_room, rate, burst)
        self._on_lost = on_lost
        self._warn = warn
        self._redirect: StreamRedirect | None = None
        self._console: PythonStreamCapture | None = None
        self._targets: TargetServer | None = None
        adopt_targets(os.environ)
        captured = [stream for stream in (STDOUT, STDERR) if writes_to_fd(stream)]
        if captured:
            try:
                # safeguard: pid-1-without-helper
                if os.getpid() == 1:  # the kernel would kill the helper with it, and unrecorded lines
                    raise OSError("this process is PID 1 of a container; start it under an init: `docker run --init`")
                # safeguard: helper-needs-supervisor
                if not is_supervised:  # a pipe without a reader would stop the training once it is full
                    raise OSError("no thread can be started to replace a helper that ends")
                require_free_fds()
                config = {**helper_config(settings, producer), "journal": "" if journal is None else str(journal)}
                callbacks = self._declare_killed_helper, self._fall_back_to_python, self._record_leftover
                self._redirect = StreamRedirect(captured, settings.places, config, *callbacks)
            except Exception as error:
                self._warn_limited(str(error))
                captured = []
        rest = [stream for stream in (STDOUT, STDERR) if stream not in captured]
        if rest:
            self._console = PythonStreamCapture(self._new_limiter(), rest)

    @property
    def helper(self) -> int:
        """The PID of the helper that drains descriptors; 0 when there is none."""
        return 0 if self._redirect is None else self._redirect.helper

    def share_targets(self) -> None:
        """Let processes that this one starts print past this capture, each into its own. Raises OSError."""
        if self._redirect is not None:
            self._targets = TargetServer(self._redirect.targets)

    def tick(self) -> None:
        """Check the helper and restart it if necessary. The sender thread calls this."""
        pipes, console = self._redirect, self._console
        if pipes is not None:
            pipes.tick()
        if console is not None:
            console.tick()

    def close(self) -> None:
        """Restore the streams and record what was printed."""
        if self._targets is not None:
            self._targets.close()
        if self._console is not None:
            self._console.close()
        pipes, self._redirect = self._redirect, None
        if pipes is not None:
            _flush()
            pipes.finish(FINISH_WAIT_S)

    def close_in_child(self) -> None:
        """Stop capturing in a forked child. It keeps printing into its parent's pipes."""
        if self._console is not None:
            self._console.release_in_child()
        pipes, self._redirect = self._redirect, None
        if pipes is not None:
            pipes.close_in_child()

    def _fall_back_to_python(self, why: str, unrecorded: dict[int, bytes], last_line_no: int) -> None:
        """Capture what Python prints, and record what no helper has recorded."""
        self._warn_limited(why)
        streams = sorted({*unrecorded} | ({STDOUT, STDERR} if self._console is not None else set()))
        if self._console is not None:
            self._console.close()
        limiter = self._new_limiter(last_line_no)
        self._console = PythonStreamCapture(limiter, streams)
        _replay(limiter, unrecorded)

    def _record_leftover(self, unrecorded: dict[int, bytes], last_line_no: int) -> int:
        """Record what was printed while no helper was running; return the number of the last line."""
        limiter = self._new_limiter(last_line_no)
        _replay(limiter, unrecorded)
        limiter.declare()
        return limiter.line_no

    def _declare_killed_helper(self) -> None:
        message = f"up to {CHUNK_BYTES} bytes, and the lines in hand: the helper that records the console was killed"
        self._on_lost(message, {"bytes": CHUNK_BYTES})

    def _warn_limited(self, why: str) -> None:
        self._warn(f"the console is captured only as far as Python prints, not C code and subprocesses: {why}")


def _replay(limiter: LineLimiter, unrecorded: dict[int, bytes]) -> None:
    """Record bytes as lines."""
    for stream, data in unrecorded.items():
        splitter = ByteSplitter()
        limiter.take(stream, [*splitter.feed_bytes(data, 0.0), *splitter.flush()], time.monotonic())


def helper_config(settings: RunSettings, producer: bytes) -> dict[str, Any]:
    """Build a helper's configuration, without its descriptors."""
    places = settings.places
    return {
        "places": [str(path) for path in (places.root, places.local, places.run)],
        "mode": settings.mode,
        "agent": settings.agent_address,
        "limits": dataclasses.asdict(settings.limits),
        "identity": {"node": node_name(), "sdk": __version__, "of": producer.hex()},
    }


def writes_to_fd(stream: int) -> bool:
    """Return True if what Python prints to a standard stream reaches its descriptor, so the descriptor can be captured.

    A notebook's or a test runner's stream goes elsewhere. A wrapper around the original stream still reaches it.
    """
    try:
        os.fstat(stream)
    except OSError:
        return False  # the descriptor was closed before this process started
    python = sys.stdout if stream == STDOUT else sys.stderr
    if python is None or _fileno(python) == stream:
        return True
    return any(_fileno(part) == stream for part in getattr(python, "__dict__", {}).values())


def _fileno(stream: Any) -> int:
    try:
        return int(stream.fileno())
    except Exception:  # no file, or no descriptor: a foreign object may raise anything
        return -1


def _flush() -> None:
    """Flush Python's and C's buffers into the pipes."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # no reader: the next print() or the exit reports it
            stream.flush()
    with contextlib.suppress(Exception):
        import ctypes  # imported late: few processes need it before they exit

        libc = ctypes.CDLL(None)
        for name in ("stdout", "stderr"):
            libc.fflush(ctypes.c_void_p.in_dll(libc, name))
