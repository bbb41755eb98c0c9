"""The callback for Ray Train: each worker logs what it reports, as its rank of one run."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from chiplog.identity.process_info import read_process_facts
from chiplog.recording.api.start import init
from chiplog.recording.run import current_run
from chiplog.recording.run.run import Run
from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import error_text
from chiplog.values.config import config_entries
from chiplog_schemas.model.codes import EndCause
from chiplog_schemas.process.inherited_run import PARENT_RUN, SETUP, decode_inherited

_STOPPED = "Ray stopped this worker: another one failed, or the training was aborted"
_log = logging.getLogger("chiplog")

try:  # Ray names no callback that it calls in the workers, in its public part
    from ray.train.v2._internal.execution.callback import WorkerCallback
    from ray.train.v2._internal.execution.context import get_train_context
    from ray.train.v2._internal.execution.train_fn_utils import get_train_fn_utils
except ImportError as missing:
    _missing = error_text(missing)
    WorkerCallback = getattr(import_module("ray.train"), "UserCallback", object)
else:
    _missing = ""


class ChiplogCallback(WorkerCallback):  # type: ignore[misc]  # Ray need not be installed
    """Record what each worker reports by `ray.train.report()`, under the label of its rank.

    Ray copies this callback to every worker and calls it there, before and after the training function. A report is a
    row at the step that Ray counts: 0 for the first one, the same on all workers, continued after a retry. The workers
    are in the run that is open where `fit()` is called, or that `chiplog run` opened. Otherwise each `fit()` has a run,
    also if Ray retries it.

    Args:
        **arguments: Of `chiplog.init`: project, name, tags and others.

    Examples:
        >>> trainer = TorchTrainer(train, run_config=RunConfig(callbacks=[ChiplogCallback(project="gpt")]))

    """

    def __init__(self, **arguments: Any) -> None:
        if _missing:
            _log.warning(
                "chiplog: this version of Ray calls no callback in its workers (%s), so ChiplogCallback records "
                "nothing; call chiplog.init() and chiplog.log() in the training function",
                _missing,
            )
        self._arguments = arguments
        self._run_of_driver: str | None = None  # an ID, or '' for none, in copies
        self._run: Run | None = None  # of this worker
        self._noted: Any = None  # the newest checkpoint that is an event

    @never_raises("after_init_train_context")
    def after_init_train_context(self) -> None:
        """Open the run in a worker. Ray calls it there, before the training function."""
        context = get_train_context()
        joined = self._arguments.get("run_id") or self._arguments.get("id") or os.environ.get("CHIPLOG_RUN_ID")
        joined = joined or self._run_of_driver
        described = {} if joined else {"name": context.get_experiment_name()}
        rank = context.get_world_rank()
        fixed = {"run_id": joined or f"ray-{context.train_run_context.run_id}", "id": None}
        with _rank_variables(context):
            run = init(**{**described, **self._arguments, **fixed, "label": f"rank{rank}", "primary": rank == 0})
        self._run, self._noted = run, context.checkpoint  # after a retry: the one to go on from
        os.environ["CHIPLOG_RUN_ID"] = run.id  # init() in the training function returns this run
        run.config.update(config_entries(context.train_run_context.train_loop_config or {}))
        ray = {"name": context.get_experiment_name(), "run_id": context.train_run_context.run_id}
        run.config.update({"ray": {**ray, "num_workers": context.get_world_size()}})
        utils = get_train_fn_utils()  # which Ray documents as the place for other behaviour of report()
        utils.report = partial(self._report, run, context, utils.report)

    @never_raises("before_worker_shutdown")
    def before_worker_shutdown(self) -> None:
        """End the run in a worker as its training function ended. Ray calls it there."""
        run = self._run
        if run is None:
            return
        context = get_train_context()
        thread = context.execution_context.training_thread_runner
        error = thread.get_error()
        self._note_checkpoint(run, context, context.report_call_index - 1)
        if error is not None:
            run._end.mark_exit(getattr(error, "_base_exc", error))  # without Ray's wrapper
        elif thread.is_running():
            run._end.status.set_failed(_STOPPED, 1, EndCause.INTERRUPTED)
        run.finish()

    def _report(
        self,
        run: Run,
        context: Any,
        report: Callable[..., Any],
        metrics: Mapping[str, Any],
        checkpoint: Any = None,
        *more: Any,
        **named: Any,
    ) -> Any:
        """Log what is reported, and report it. The time for a checkpoint is a phase."""
        step = context.report_call_index
        run.log(metrics, step=step)
        with run.phase("checkpoint") if checkpoint is not None else contextlib.nullcontext():
            done = report(metrics, checkpoint, *more, **named)
        if checkpoint is not None:
            run.log({}, step=step)  # the phase now: without a later report it would have the time of the worker's end
        self._note_checkpoint(run, context, step)
        return done

    @never_raises("checkpoint")
    def _note_checkpoint(self, run: Run, context: Any, step: int) -> None:
        """Note the path of the checkpoint that is new in storage, if any, on one rank: all save into it."""
        saved = context.checkpoint
        if saved is not None and saved is not self._noted and run.is_primary and context.report_call_index > step:
            self._noted = saved
            run._notices.emit("checkpoint", saved.path, {"step": step}, "info")

    def _report_internal_error(self, where: str, error: Exception) -> None:
        if self._run is not None:
            self._run._report_internal_error(where, error)
        else:
            _log.warning("chiplog: the callback for Ray Train records nothing (%s)", error_text(error))

    def __getstate__(self) -> dict[str, Any]:
        known = _run_of_process() if self._run_of_driver is None else self._run_of_driver
        return {"_arguments": self._arguments, "_run_of_driver": known, "_run": None, "_noted": None}


@contextlib.contextmanager
def _rank_variables(context: Any) -> Iterator[None]:
    """Set what a launcher sets, to open a run: Ray's backend for torch sets it later, others do not."""
    rank = {"RANK": context.get_world_rank(), "LOCAL_RANK": context.get_local_rank()}
    size = {"WORLD_SIZE": context.get_world_size(), "LOCAL_WORLD_SIZE": context.get_local_world_size()}
    before = {name: os.environ.get(name) for name in (*rank, *size)}
    os.environ.update({name: str(value) for name, value in (rank | size).items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _run_of_process() -> str:
    """Return the ID of the run that processes of this one join: its own, or that of a launcher; '' for none."""
    run = current_run.current()
    if run is not None and not run._finished:
        return run.id
    stale = read_process_facts().stale_variables
    inherited = (decode_inherited(os.environ.get(name, "")).run_id for name in (PARENT_RUN, SETUP) if name not in stale)
    return next(filter(None, inherited), "")
