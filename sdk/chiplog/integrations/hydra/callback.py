"""The callback for Hydra: a run for each job, named after it, with its config; a multirun is a group."""

import logging
from importlib import import_module
from typing import Any, ClassVar

from chiplog.recording.api.start import init
from chiplog.recording.run.run import Run
from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import error_line
from chiplog.values.config import config_entries
from chiplog_schemas.interrupts import raise_interrupt

_log = logging.getLogger("chiplog")
_Callback = import_module("hydra.experimental.callback").Callback


class ChiplogCallback(_Callback):  # type: ignore[misc,valid-type]  # Hydra need not be installed
    """Open a run before each job, and finish it as the job ends: failed, if it raises an exception.

    The run is the current one, for `chiplog.log()`. Its name is the job's and, in a multirun, its overrides; the group
    is the directory of the multirun. The job's directory is an event of kind `output_dir`.

    Args:
        **arguments: Of `chiplog.init`: project, name, group, tags and others.

    Examples:
        In the config, or on the command line with `+hydra.callbacks.chiplog._target_=…`:

            hydra:
              callbacks:
                chiplog:
                  _target_: chiplog.integrations.hydra.ChiplogCallback
                  project: mnist

    """

    _latest: ClassVar[Any] = None  # the config of the job that one of these records

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments
        self._run: Run | None = None  # of the job, if this callback records it

    @never_raises("on_job_start")
    def on_job_start(self, /, config: Any, **kwargs: Any) -> None:
        """Open the run of a job, unless another callback of this class has."""
        if config is ChiplogCallback._latest:  # Hydra gives one object to all callbacks of a job
            _log.warning("chiplog: Hydra has several ChiplogCallbacks; the first one records")
            return
        ChiplogCallback._latest = config
        own = config.hydra
        is_multirun = own.mode is not None and own.mode.name == "MULTIRUN"
        named = {"name": own.job.name}
        if is_multirun:
            named = {"name": f"{own.job.name} {own.job.override_dirname}".strip(), "group": own.sweep.dir}
        entries = {"config": _without_hydra(config), "reinit": "finish_previous"}
        self._run = init(**{**named, **entries, **self._arguments})
        detail = {"overrides": list(own.overrides.task), "job": own.job.get("num", 0) if is_multirun else 0}
        self._run._notices.emit("output_dir", own.runtime.output_dir, detail, "info")

    @never_raises("on_job_end")
    def on_job_end(self, /, config: Any, job_return: Any, **kwargs: Any) -> None:
        """Finish the run of a job."""
        if self._run is not None:
            error = getattr(job_return, "_return_value", None)  # the property raises it
            if isinstance(error, Exception) and job_return.status.name == "FAILED":
                self._run._end.mark_exit(error)
            self._run.finish()
            self._run = ChiplogCallback._latest = None

    def _report_internal_error(self, where: str, error: Exception) -> None:
        if self._run is not None:
            self._run._report_internal_error(where, error)
            return
        raise_interrupt(error)
        _log.warning("chiplog: no run for this job, because %s() failed inside: %s", where, error_line(error))


def _without_hydra(config: Any) -> dict[str, Any]:
    """Return the job's part of the config. Values that cannot be resolved stay as they are written."""
    entries = config_entries(config)
    return {key: value for key, value in entries.items() if key != "hydra"}
