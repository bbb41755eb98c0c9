"""A sampler as a thread of an embedded agent, for machines without a GPU driver that could hang.

It has the frames, the pipes and the part of `subprocess.Popen` that the agent's end uses for the sampler process, which
costs 8 MiB and 0.05 s of CPU more.
"""

import os
import subprocess
import threading

from chiplog_agent.stats.frames import encode_failure
from chiplog_agent.stats.gpu.threads import AbsentGpus
from chiplog_agent.stats.sampler import Sampler


class SamplerThread:
    """A sampler that runs from its construction on. `stdin` and `stdout` are the agent's ends of its pipes.

    Like the process it ends with its input, or when its output is closed. Raises OSError without descriptors.
    """

    def __init__(self) -> None:
        input_fd, stdin_fd = os.pipe2(os.O_CLOEXEC)
        try:
            stdout_fd, output_fd = os.pipe2(os.O_CLOEXEC)
        except OSError:
            os.close(input_fd)
            os.close(stdin_fd)
            raise
        self.pid = os.getpid()
        self.returncode: int | None = None
        self._gpus = AbsentGpus()
        self.stdin = os.fdopen(stdin_fd, "wb", buffering=0)
        self.stdout = os.fdopen(stdout_fd, "rb", buffering=0)
        self._thread = threading.Thread(
            target=self._run, args=(input_fd, output_fd), name="chiplog-sampler", daemon=True
        )
        self._thread.start()

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""
        return None if self._thread.is_alive() else self.returncode

    def kill(self) -> None:
        """Do nothing: a thread ends at its next access to a pipe that the agent has closed."""

    def wait(self, timeout_s: float) -> None:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("sampler thread", timeout_s)

    def _run(self, input_fd: int, output_fd: int) -> None:
        code = 0
        try:
            Sampler(input_fd, output_fd, self._gpus).run()
        except BrokenPipeError:
            code = 1  # the agent has closed the pipe
        except Exception as error:  # the agent logs the line and starts another
            code = 1
            try:
                os.write(output_fd, encode_failure(error))
            except OSError:
                pass  # the agent has closed the pipe
        finally:
            self.returncode = code
            self._gpus.box.close()
            for descriptor in (input_fd, output_fd):
                os.close(descriptor)
