"""The callback for Ray Tune: a run for each trial, written where `fit()` is called."""

import logging
from pathlib import Path
from typing import Any

from ray.tune.logger import LoggerCallback

from chiplog.recording.api.start import init
from chiplog.recording.ends.failures import TRACEBACK_CHARS_MAX
from chiplog.recording.run.run import Run
from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import error_text
from chiplog.values.config import config_entries
from chiplog_schemas.model.end_text import cause_of_exception

_PLACE = ("hostname", "node_ip", "pid")  # of a result: where the trial runs
_NOT_LOGGED = {"config", "date", "done", "experiment_tag", "should_checkpoint", "trial_id", *_PLACE}
_NOT_LOGGED |= {"checkpoint_dir_name"}  # its path is an event
_log = logging.getLogger("chiplog")


class ChiplogLoggerCallback(LoggerCallback):  # type: ignore[misc]  # Ray need not be installed
    """Record each trial as a run, in the group of the experiment: its config, results, checkpoints and end.

    A result is a row at the step `training_iteration`. The run ID is made of experiment and trial, so a trial that is
    retried or restored goes on in its run, as the next attempt. A trial that is paused keeps its run open.

    Args:
        **arguments: Of `chiplog.init`: project, group, tags and others.

    Examples:
        >>> Tuner(objective, run_config=RunConfig(callbacks=[ChiplogLoggerCallback(project="search")]))

    """

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments
        self._runs: dict[str, Run] = {}  # open, by ID of the trial
        self._placed: set[str] = set()  # trials whose place is in the config

    @never_raises("log_trial_start")
    def log_trial_start(self, trial: Any) -> None:
        """Open the run of a trial, or go on with it after a pause. Ray calls it."""
        self._open(trial).config.update(config_entries(trial.config))  # a scheduler may have changed it

    @never_raises("log_trial_result")
    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        """Record a result. Ray calls it."""
        run = self._open(trial)
        if trial.trial_id not in self._placed:
            self._placed.add(trial.trial_id)
            place = {name: result[name] for name in _PLACE if name in result}
            run.config.update({"tune": {"trial_id": trial.trial_id, **place}})
        row = {name: value for name, value in result.items() if name not in _NOT_LOGGED and value is not None}
        run.log(row, step=result["training_iteration"])

    def on_checkpoint(self, iteration: int, trials: Any, trial: Any, checkpoint: Any, **info: Any) -> None:
        """Note the path of a checkpoint. Ray calls it."""
        self._note_checkpoint(trial, checkpoint)

    @never_raises("checkpoint")
    def _note_checkpoint(self, trial: Any, checkpoint: Any) -> None:
        step = trial.last_result.get("training_iteration")
        self._open(trial)._notices.emit("checkpoint", checkpoint.path, {"step": step}, "info")

    @never_raises("log_trial_end")
    def log_trial_end(self, trial: Any, failed: bool = False) -> None:
        """End the run of a trial. Ray calls it."""
        run = self._runs.pop(trial.trial_id, None)
        self._placed.discard(trial.trial_id)
        if run is None:
            return
        try:
            if failed:
                _note_failure(run, trial)
        finally:
            run.finish(exit_code=1 if failed else 0)

    def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """End an attempt of a trial that Ray will retry. Ray calls it."""
        self.log_trial_end(trial, failed=True)

    def on_experiment_end(self, trials: Any, **info: Any) -> None:
        """End the runs of trials that do not go on, as paused ones. Ray calls it."""
        for trial in trials:
            self.log_trial_end(trial, failed=trial.status == "RUNNING")

    def _open(self, trial: Any) -> Run:
        run = self._runs.get(trial.trial_id)
        if run is None:
            experiment = trial.experiment_dir_name
            described = {"group": experiment, "name": str(trial), "label": "trial"}
            here = {"capture_console": False, "gpu_device_ids": ()}  # which are not the trial's
            fixed = {"run_id": f"{experiment}-{trial.trial_id}", "reinit": "create_new"}
            run = self._runs[trial.trial_id] = init(**{**described, **here, **self._arguments, **fixed})
        return run

    def _report_internal_error(self, where: str, error: Exception) -> None:
        for run in self._runs.values():
            return run._report_internal_error(where, error)
        _log.warning("chiplog: %s of the callback for Ray Tune failed inside (%s)", where, error_text(error))
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {"_arguments": self._arguments, "_runs": {}, "_placed": set()}


def _note_failure(run: Run, trial: Any) -> None:
    """Note what ended a trial: the text that Ray has written into its file before it calls the callback."""
    path = trial.error_file
    text = Path(path).read_text(encoding="utf-8", errors="replace") if path else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = lines[-1] if lines else "Ray Tune reports that the trial failed"
    cause = cause_of_exception(reason)
    run._end.status.set_failed(reason, 1, cause)
    run._notices.emit("traceback", reason, {"traceback": text[-TRACEBACK_CHARS_MAX:], "cause": cause.value})
