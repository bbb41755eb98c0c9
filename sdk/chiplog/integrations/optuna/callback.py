"""The callback for Optuna, which it does not import: a row for each trial in one run, or a run for each trial."""

import logging
import threading
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

from chiplog.integrations.adapter.framework_run import FrameworkRun
from chiplog.recording.api.start import init
from chiplog.recording.run.run import Run
from chiplog.safety.boundary import never_raises

Objective = Callable[..., Any]
_recorded: "weakref.WeakKeyDictionary[Any, set[tuple[str, int]]]" = weakref.WeakKeyDictionary()  # trials, by study
_recorded_lock = threading.Lock()
_log = logging.getLogger("chiplog")


class ChiplogCallback:
    """Record the trials of a study: parameters, values, state and duration.

    In one run, a trial is a row at the step of its number. With `run_per_trial` it is a run `trial <number>` in the
    group of the study's name, with its parameters as config and the values that it reported by step.

    Args:
        run_per_trial: A run for each trial, also of those that run side by side (`n_jobs`).
        **arguments: Of `chiplog.init`: project, name, group, config, tags and others.

    Examples:
        >>> study.optimize(objective, n_trials=20, callbacks=[ChiplogCallback(project="search")])

    """

    def __init__(self, *, run_per_trial: bool = False, **arguments: Any) -> None:
        self._run = FrameworkRun(**arguments)
        self._arguments = arguments
        self._is_multirun = run_per_trial
        self._of_trials: dict[int, Run] = {}  # runs that `track` opened, by number of the trial
        self._is_described = False
        self._is_second = False
        self._lock = threading.Lock()  # Optuna calls from each thread of n_jobs

    @never_raises("trial")
    def __call__(self, study: Any, trial: Any) -> None:
        """Record a trial that has ended. Optuna calls it."""
        if self._is_recorded(study, trial):
            return
        row = _row(study, trial)
        if not self._is_multirun:
            run = self._run.open()
            with self._lock:
                if not self._is_described:
                    self._is_described = True
                    _describe(run, study)
            run.log({**_params(trial), **row}, step=trial.number)
            if trial.state.name == "COMPLETE" and len(study.directions) == 1:
                self._note_best(run, study)
            return
        opened = self._of_trials.pop(trial.number, None)
        run = opened if opened is not None else self._open(study, trial)
        run.config.update(trial.params)
        for step, value in sorted(trial.intermediate_values.items()):
            run.log({"intermediate_value": value}, step=step)
        run.log(row)
        run.finish(exit_code=1 if trial.state.name == "FAIL" else 0)

    def _is_recorded(self, study: Any, trial: Any) -> bool:
        """Return True if another callback has recorded this trial, there: in the same run, or in one of its own."""
        key = ("" if self._is_multirun else self._run.open().id, trial.number)
        with _recorded_lock:
            try:
                recorded = _recorded.setdefault(study, set())
            except TypeError:  # a version of Optuna whose studies have no weak references
                return False
            is_recorded = key in recorded
            recorded.add(key)
        if is_recorded and not self._is_second:
            self._is_second = True
            _log.warning("chiplog: the study has several ChiplogCallbacks, or one of them twice; the first one records")
        return is_recorded

    def _note_best(self, run: Run, study: Any) -> None:
        """Put the best value into the summary: what pruned trials reported may be higher, and does not count."""
        with self._lock:  # so that the best of this moment does not replace a later one
            try:
                best = study.best_value
            except ValueError:  # no trial satisfies the study's constraints yet
                return
            run.summary.update({_value_names(study)[0]: best})

    def track(self, objective: Objective) -> Objective:
        """Decorate an objective: with `run_per_trial`, what it logs by `chiplog.log` goes into the run of its trial.

        Examples:
            >>> @callback.track
            ... def objective(trial): ...
        """

        @wraps(objective)
        def tracked(trial: Any, *given: Any, **named: Any) -> Any:
            self._begin(trial)
            try:
                return objective(trial, *given, **named)
            except BaseException as error:
                self._note_failure(trial, error)
                raise

        return tracked

    @never_raises("track")
    def _begin(self, trial: Any) -> None:
        if self._is_multirun:
            self._of_trials[trial.number] = self._open(trial.study, trial)

    @never_raises("track")
    def _note_failure(self, trial: Any, error: BaseException) -> None:
        """Note what ended a trial. Optuna calls no callback for an exception that it lets pass: the run stays open."""
        run = self._of_trials.get(trial.number)
        if run is not None and "TrialPruned" not in [kind.__name__ for kind in type(error).__mro__]:
            run.config.update(trial.params)
            run._end.mark_exit(error)

    def _open(self, study: Any, trial: Any) -> Run:
        """Open a run beside those of other threads, and of the script."""
        arguments = {"group": study.study_name, "name": f"trial {trial.number}", **self._arguments}
        run = init(**{**arguments, "reinit": "create_new"})
        run.config.update({"trial": trial.number})
        _describe(run, study)
        return run

    def _report_internal_error(self, where: str, error: Exception) -> None:
        run = next(iter(self._of_trials.values()), None) if self._is_multirun else self._run.open()
        if run is not None:
            run._report_internal_error(where, error)


def _value_names(study: Any) -> list[str]:
    """Return the names of the objectives: those that the study has, else value, or value_0, value_1 and so on."""
    n_values = len(study.directions)
    named: list[str] | None = study.metric_names
    return named or (["value"] if n_values == 1 else [f"value_{index}" for index in range(n_values)])


def _describe(run: Run, study: Any) -> None:
    """Record a study in the config, and which values are the best in the summary."""
    directions = [direction.name.lower() for direction in study.directions]
    parts = {name: type(getattr(study, name, None)).__name__ for name in ("sampler", "pruner")}
    run.config.update({"study": {"name": study.study_name, "directions": directions, **parts}})
    for name, direction in zip(_value_names(study), directions, strict=False):
        run.define_metric(name, summary="max" if direction == "maximize" else "min")


def _params(trial: Any) -> dict[str, Any]:
    """Return the parameters by key. Choices may be None, which is no value of a row."""
    return {f"params/{name}": "None" if value is None else value for name, value in trial.params.items()}


def _row(study: Any, trial: Any) -> dict[str, Any]:
    """Return what a trial gave. A failed one has no value; a pruned one the last that it reported, if any."""
    row: dict[str, Any] = dict(zip(_value_names(study), trial.values or (), strict=False))
    if trial.duration is not None:
        row["duration_s"] = trial.duration.total_seconds()
    return {**row, "state": trial.state.name}
