"""`sync()`: what SummaryWriters of torch and tensorboardX are given goes also into the run, until the run finishes."""

from typing import Any

from chiplog.integrations.adapter.framework_run import FrameworkRun
from chiplog.integrations.tensorboard.patch import Sync
from chiplog.recording.run import current_run
from chiplog.recording.run.run import Run

_active: "RunSync | None" = None


class RunSync:
    """The patch of SummaryWriters that `sync()` made. As a context manager it ends with its block."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._framework_run = FrameworkRun(**arguments)
        self._sync = Sync(self._log, self._configure, self._report_internal_error, has_step_key=False)
        self._watched: Run | None = None  # the run whose finish ends this

    def end(self) -> None:
        """Log no more. The classes are as they were; calling it again does nothing."""
        global _active
        self._sync.end()
        if _active is self:
            _active = None

    def __enter__(self) -> "RunSync":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _begin(self) -> None:
        run = current_run.current()
        if run is not None and not run._finished:
            self._follow(run)
        self._sync.begin()

    def _run(self) -> Run:
        run = self._framework_run.open()
        if run is not self._watched:
            self._follow(run)
        return run

    def _follow(self, run: Run) -> None:
        """End this when a run finishes; what another integration does then stays."""
        self._watched = run
        others = run._end.before_finish

        def finish() -> None:
            if self._watched is run:
                self.end()
            if others is not None:
                others()

        run._end.before_finish = finish

    def _log(self, data: dict[str, Any], step: Any) -> None:
        self._run().log(data, step)

    def _configure(self, values: dict[str, Any]) -> None:
        self._run().config.update(values)

    def _report_internal_error(self, where: str, error: Exception) -> None:
        self._run()._report_internal_error(where, error)


def sync(**arguments: Any) -> RunSync:
    """Log what SummaryWriters of torch and tensorboardX are given, also those that exist already.

    Event files are written as before. They have numbers as float32, the log has them as they were given. The values go
    into the current run; without one, a run is opened at the first value. The patch ends when that run finishes. A call
    while a patch is active returns that one.

    Args:
        **arguments: Of `chiplog.init`, for a run that is opened here: project, name, group, config, tags and others.

    Returns:
        The patch, whose `end()` undoes it. It is a context manager.

    Examples:
        >>> from chiplog.integrations import tensorboard
        >>> tensorboard.sync(project="mnist")

    """
    global _active
    with current_run.opening():
        if _active is None:
            _active = RunSync(arguments)
            _active._begin()
        return _active
