"""The callback for Hugging Face's Trainer: what it logs, and the phases, loss and throughput of every rank."""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from transformers import TrainerCallback

from chiplog.integrations.adapter.batches import batch_size
from chiplog.integrations.adapter.framework_run import FrameworkRun
from chiplog.integrations.adapter.hook_phases import HookPhases
from chiplog.integrations.adapter.object_methods import unwrap_method, wrap_method
from chiplog.recording.api.start import init
from chiplog.recording.run.run import Run
from chiplog.safety.boundary import never_raises
from chiplog.values.config import entries_of

_PREFIXES = {"eval_": "eval/", "test_": "test/"}  # as in transformers' callbacks for other trackers
_OF_ONE_RANK = ("local_rank",)  # arguments that differ between ranks, and so are no part of the run's config
_OF_TRAINING = ("_of_trial", "_began", "_is_in_batch", "_n_samples", "_loss")  # attributes
_SAVE = "_save_checkpoint"


class ChiplogCallback(TrainerCallback):  # type: ignore[misc]  # transformers need not be installed
    """Record what the Trainer logs, its arguments, and phases, loss and throughput of every rank.

    What the Trainer logs is at its global step, under the names of its other trackers: `train/loss`, `eval/loss`. Each
    optimizer step is also a row `rank/loss`, `rank/samples_per_s`: of this rank alone. Phases are data, forward,
    backward, optimizer, eval and checkpoint.

    Args:
        **arguments: Of `chiplog.init`, if no run is open. The name is the Trainer's `run_name`, unless it is given.

    Examples:
        >>> trainer = Trainer(model, arguments, train_dataset=data, callbacks=[ChiplogCallback(project="bert")])

    """

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments
        self._run = FrameworkRun(**arguments)
        self._phases = HookPhases(self._run)
        self._is_begun = False  # for a Trainer
        self._has_config = False
        self._of_trial: Run | None = None  # the run of a trial of `hyperparameter_search`
        self._began: float | None = None  # start of the step, with the wait for its first batch
        self._is_in_batch = False  # evaluations compute losses, too
        self._n_samples: int | None = 0  # of the step; None if a batch has no size
        self._loss: Any = None  # of the step's batches so far
        self._outer: list[dict[str, Any]] = []  # of trainings that this callback is in, outermost first

    # -- the Trainer's hooks --

    @never_raises("on_init_end")
    def on_init_end(self, /, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begin anew for a Trainer: take the name of the run, which is opened later."""
        name = getattr(args, "run_name", None)
        if name == args.output_dir:  # the default of older versions
            name = None
        self._run = FrameworkRun(**{"name": name, **self._arguments})
        self._phases = HookPhases(self._run)
        self._is_begun, self._has_config = True, False

    @never_raises("on_train_begin")
    def on_train_begin(self, /, args: Any, state: Any, control: Any, model: Any = None, **given: Any) -> None:
        """Record the arguments, and forget the batches of a training that failed.

        With `auto_find_batch_size` a training begins again after it was out of memory, in the same run.
        """
        self._phases.end()
        self._reset()
        if getattr(state, "is_hyper_param_search", False) and self._of_trial is None:
            self._open_trial(state)
        self._record_config(args, model)

    def on_pre_optimizer_step(self, /, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begin the optimizer's step."""
        self._phases.begin("optimizer")

    def on_optimizer_step(self, /, args: Any, state: Any, control: Any, **given: Any) -> None:
        """End the optimizer's step."""
        self._phases.end()

    @never_raises("on_step_end")
    def on_step_end(self, /, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Log the step of this rank."""
        row: dict[str, Any] = {}
        loss = self._loss
        if loss is not None:  # a number, if that needs no wait: it is the cheaper one to log
            row["rank/loss"] = loss.item() if getattr(loss, "is_cpu", False) else loss
        if self._n_samples and self._began is not None:
            row["rank/samples_per_s"] = self._n_samples / (perf_counter() - self._began)
        self._phases.log_step(row, state.global_step)
        self._reset()

    @never_raises("on_log")
    def on_log(
        self, /, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **given: Any
    ) -> None:
        """Log what the Trainer logs, on every rank."""
        self._run.open().log({_key(name): value for name, value in (logs or {}).items()}, step=state.global_step)

    def on_predict(self, /, args: Any, state: Any, control: Any, metrics: Mapping[str, Any], **given: Any) -> None:
        """Log the metrics of `predict`, which the Trainer does not log."""
        self.on_log(args, state, control, metrics)

    # -- what has no hook: the Trainer's methods go through these, see trainer.py --

    @never_raises("train")
    def begin_training(self, trainer: Any) -> None:
        """Time the phases of a Trainer that begins to train, maybe within the training of another one."""
        self._outer.append({name: vars(self)[name] for name in _OF_TRAINING})
        self._of_trial = None
        for name, around in self._around.items():
            wrap_method(trainer, name, around)
        wrap_method(trainer, _SAVE, partial(self._save, trainer))

    @never_raises("train")
    def end_training(self, trainer: Any, error: BaseException | None) -> None:
        """End to time. The run goes on, because the Trainer may be used again; that of a trial ends."""
        self._phases.end()
        for name in (*self._around, _SAVE):
            unwrap_method(trainer, name)
        run = self._of_trial
        if self._outer:
            self.__dict__.update(self._outer.pop())
        if run is not None:
            is_pruned = error is not None and type(error).__name__ == "TrialPruned"
            run.finish(exit_code=0 if error is None or is_pruned else 1)

    @never_raises("eval")
    def begin_evaluation(self, trainer: Any) -> None:
        """Begin the phase eval."""
        if not self._has_config:  # it is not trained before
            self._record_config(trainer.args, trainer.model)
        self._phases.begin("eval")

    def end_phase(self) -> None:
        """End the open phase."""
        self._phases.end()

    @property
    def _around(self) -> dict[str, Callable[..., Any]]:
        return {
            "get_batch_samples": self._get_batches,
            "training_step": self._train,
            "compute_loss": self._compute_loss,
        }

    def _get_batches(self, method: Callable[..., Any], epoch_iterator: Any, *given: Any, **named: Any) -> Any:
        """Time each batch. The ranks' waiting for each other, when they count their tokens, is in no phase."""
        return method(self._timed(epoch_iterator), *given, **named)

    def _timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            if self._began is None:
                self._began = perf_counter()
            self._phases.begin("data")
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self._phases.end()
            yield batch

    def _train(self, method: Callable[..., Any], model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        """Time the passes of a batch: forward until the loss is there, then backward."""
        self._is_in_batch = True
        self._phases.begin("forward")
        loss = method(model, inputs, *given, **named)
        self._phases.end()
        self._is_in_batch = False
        self._add_batch(inputs, loss)
        return loss

    def _compute_loss(self, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        found = method(*given, **named)
        if self._is_in_batch:
            self._phases.begin("backward")
        return found

    def _save(self, trainer: Any, method: Callable[..., Any], model: Any, trial: Any, *more: Any, **named: Any) -> Any:
        """Save a checkpoint as a phase, on all ranks, and note its path, on one."""
        self._phases.begin("checkpoint")
        saved = method(model, trial, *more, **named)
        self._phases.end()
        self._note_checkpoint(trainer, trial)
        return saved

    @never_raises("training_step")
    def _add_batch(self, inputs: Any, loss: Any) -> None:
        size = batch_size(inputs)
        self._n_samples = None if size is None or self._n_samples is None else self._n_samples + size
        if loss is not None:
            self._loss = loss if self._loss is None else self._loss + loss

    @never_raises("checkpoint")
    def _note_checkpoint(self, trainer: Any, trial: Any) -> None:
        if trainer.is_world_process_zero():
            step = trainer.state.global_step
            path = os.path.join(trainer._get_output_dir(trial=trial), f"checkpoint-{step}")
            self._run.open()._notices.emit("checkpoint", path, {"step": step}, "info")

    # -- the parts --

    def _record_config(self, args: Any, model: Any) -> None:
        if not self._is_begun:  # the callback was added to the Trainer later
            self.on_init_end(args, None, None)
        self._has_config = True
        self._run.open().config.update(_config(args, model))

    def _open_trial(self, state: Any) -> None:
        """Open the run of a trial: its name and parameters are those of the search."""
        arguments = {"name": state.trial_name, **self._arguments, "reinit": "create_new"}
        self._of_trial = init(**arguments)
        self._phases = HookPhases(self._run)  # none of the run before
        self._of_trial.config.update({"trial": state.trial_params})

    def _reset(self) -> None:
        self._began = self._loss = None
        self._n_samples = 0
        self._is_in_batch = False

    def _report_internal_error(self, where: str, error: Exception) -> None:
        self._run.open()._report_internal_error(where, error)


def _key(name: Any) -> Any:
    if not isinstance(name, str):
        return name  # `log` says what is wrong with it
    for prefix, section in _PREFIXES.items():
        if name.startswith(prefix):
            return section + name.removeprefix(prefix)
    return f"train/{name}"


def _config(args: Any, model: Any) -> dict[str, Any]:
    """Return the model's config and the Trainer's arguments, in one dict as transformers' other callbacks do."""
    found: dict[str, Any] = {}
    config: Any = getattr(model, "config", None)
    found.update(config.to_dict() if hasattr(config, "to_dict") else entries_of(config) or {})
    if getattr(model, "peft_config", None) is not None:
        found["peft_config"] = model.peft_config
    found.update(args.to_dict())
    if hasattr(model, "num_parameters"):
        found["model/num_parameters"] = model.num_parameters()
    return {name: value for name, value in found.items() if name not in _OF_ONE_RANK}
