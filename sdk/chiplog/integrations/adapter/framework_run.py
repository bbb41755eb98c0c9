"""The run that a logger or callback of a framework records into: opened when it is first used, left out of pickles."""

from typing import Any

from chiplog.recording.api.start import init
from chiplog.recording.run import current_run
from chiplog.recording.run.run import Run


class FrameworkRun:
    """The current run of this process; without one, a run that is opened when it is first used.

    So the `init()` of a script and the loggers of several frameworks share a run. It ends with the process, as a run of
    `init()` does, because trainers are used again after they ended: `fit`, then `test`. A pickle has the arguments.
    What a given config has in addition goes into a run that was open, too; other arguments describe one that is opened.

    Args:
        **arguments: Of `chiplog.init`.

    """

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments
        self._used: Run | None = None
        self._opened: Run | None = None

    def open(self) -> Run:
        """Return the run. One that was finished since its last use stays; a run that others finished is no answer."""
        run = current_run.current()
        if run is None or (run._finished and run is not self._used):
            with current_run.opening():  # loggers are called from several threads
                run = current_run.current()
                if run is None or (run._finished and run is not self._used):
                    run = self._opened = init(**self._arguments)
        if run is not self._used:
            self._used = run
            if run is not self._opened and self._arguments.get("config") is not None:
                run.config.setdefaults(self._arguments["config"])
        return run

    def finish(self) -> None:
        """Finish the run, if it was opened here: one of the script, or of another logger, goes on."""
        if self._opened is not None:
            self._opened.finish()

    def __getstate__(self) -> dict[str, Any]:
        return {"_arguments": self._arguments, "_used": None, "_opened": None}
