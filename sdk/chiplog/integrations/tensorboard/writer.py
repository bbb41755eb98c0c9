"""A SummaryWriter that logs into a run and writes no event files: with the interface of torch's and tensorboardX's."""

import inspect
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakSet

from chiplog.identity.process_info import host_name
from chiplog.integrations.adapter.framework_run import FrameworkRun
from chiplog.integrations.tensorboard.added_values import METHODS
from chiplog.integrations.tensorboard.patch import Sync
from chiplog.recording.run import current_run
from chiplog.recording.run.run import Run
from chiplog.safety.diagnostics import NOT_RECORDED, Diagnostic, error_line
from chiplog.safety.text import short_repr
from chiplog_schemas.interrupts import raise_interrupt

Method = Callable[..., None]


def _recorded(name: str, summary: str) -> Method:
    """Return the method of a name, with the arguments of its function in METHODS."""

    def add(self: "SummaryWriter", *given: Any, **named: Any) -> None:
        self._add(name, given, named)

    kinds = inspect.Parameter
    declared = inspect.signature(METHODS[name]).parameters.values()
    shown = [each.replace(annotation=kinds.empty) for each in declared if not each.name.startswith("_")]
    own = kinds("self", kinds.POSITIONAL_OR_KEYWORD)
    add.__signature__ = inspect.Signature([own, *shown])  # type: ignore[attr-defined]
    return _named(add, name, summary)


def _unrecorded(name: str) -> Method:
    """Return a method that is accepted without effect."""

    def add(self: "SummaryWriter", *given: Any, **named: Any) -> None:
        self._note_unrecorded(name)

    return _named(add, name, "Accept the arguments: chiplog does not record them, and warns once.")


def _named(method: Method, name: str, summary: str) -> Method:
    method.__name__, method.__qualname__, method.__doc__ = name, f"SummaryWriter.{name}", summary
    return method


class SummaryWriter:
    """Log what a SummaryWriter is given into the current run, on every rank. Never raises.

    Without a run, one is opened at the first value. It ends with the process, so that several writers share it: with
    several, each has the path from their common parent to its directory as prefix of its keys.

    Args:
        log_dir: The directory, which is created: scripts save other files there. Default: `runs/<time>_<host>`.
        comment: The end of the default directory.
        purge_step: No effect: the values of each attempt are kept.
        max_queue: No effect: values are in the log at once.
        flush_secs: No effect.
        filename_suffix: No effect.
        logdir: As log_dir: the name in tensorboardX.
        write_to_disk: False records nothing, as in tensorboardX.
        comet_config: No effect.
        **arguments: Of `chiplog.init`, for a run that is opened here: project, name, group, config, tags and others.

    Examples:
        >>> from chiplog.integrations.tensorboard import SummaryWriter
        >>> writer = SummaryWriter(project="mnist")
        >>> writer.add_scalar("train/loss", loss, global_step=step)

    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str | None = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
        write_to_disk: bool = True,
        *,
        logdir: str | os.PathLike[str] | None = None,
        comet_config: Any = None,
        **arguments: Any,
    ) -> None:
        default = os.path.join("runs", f"{time.strftime('%b%d_%H-%M-%S')}_{host_name()}{comment or ''}")
        self.log_dir = str(log_dir or logdir or default)
        self._is_recording = bool(write_to_disk)
        self._run = FrameworkRun(**arguments)
        self._join()
        if self._is_recording:
            try:
                os.makedirs(self.log_dir, exist_ok=True)
            except OSError as error:
                raise_interrupt(error)
                message = f"the log_dir {self.log_dir!r:.200} cannot be created: {error_line(error)}; values are logged"
                self._run.open()._report_fault(Diagnostic("log_dir", self.log_dir, message))

    @property
    def logdir(self) -> str:
        """The directory: tensorboardX's name."""
        return self.log_dir

    def get_logdir(self) -> str:
        """Return the directory."""
        return self.log_dir

    add_scalar = _recorded("add_scalar", "Log a number.")
    add_scalars = _recorded("add_scalars", "Log numbers by tag, each as `main_tag/tag`.")
    add_histogram = _recorded("add_histogram", "Log the distribution of values.")
    add_histogram_raw = _recorded("add_histogram_raw", "Log a distribution by its buckets.")
    add_image = _recorded("add_image", "Log an image, or several with N in `dataformats`.")
    add_images = _recorded("add_images", "Log several images as one value.")
    add_image_with_boxes = _recorded("add_image_with_boxes", "Log an image and its boxes.")
    add_figure = _recorded("add_figure", "Log a figure of matplotlib, or a list of them, and close it.")
    add_video = _recorded("add_video", "Log a film.")
    add_audio = _recorded("add_audio", "Log a sound.")
    add_text = _recorded("add_text", "Log a text.")
    add_hparams = _recorded("add_hparams", "Update the config by hyperparameters, and log metrics.")
    add_pr_curve = _recorded("add_pr_curve", "Log precision and recall by threshold, as a table.")
    add_pr_curve_raw = _recorded("add_pr_curve_raw", "Log precision and recall that are computed, as a table.")

    add_graph = _unrecorded("add_graph")
    add_onnx_graph = _unrecorded("add_onnx_graph")
    add_openvino_graph = _unrecorded("add_openvino_graph")
    add_mesh = _unrecorded("add_mesh")
    add_embedding = _unrecorded("add_embedding")
    add_tensor = _unrecorded("add_tensor")
    add_custom_scalars = _unrecorded("add_custom_scalars")
    add_custom_scalars_marginchart = _unrecorded("add_custom_scalars_marginchart")
    add_custom_scalars_multilinechart = _unrecorded("add_custom_scalars_multilinechart")
    export_scalars_to_json = _unrecorded("export_scalars_to_json")

    def use_metadata(self, *, global_step: Any = None, walltime: Any = None) -> AbstractContextManager[None]:
        """Accept a step for the calls in a block: it is not used, which warns once."""
        self._note_unrecorded("use_metadata")
        return nullcontext()

    def flush(self) -> None:
        """Do nothing: values are in the log at once."""

    def close(self) -> None:
        """Forget the directory. The run stays open, for other writers."""
        _writers.discard(self)

    def __enter__(self) -> "SummaryWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._join()

    def _join(self) -> None:
        _writers.add(self)
        if _recording is not None:
            _recording[1].add_writer(self)

    def _add(self, method: str, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not self._is_recording:
            return
        run = self._run.open()
        try:
            _sync_of(run).record(method, self, given, named)
        except Exception as error:  # of an argument
            raise_interrupt(error)
            tag = short_repr(given[0] if given else named.get("tag"))
            message = f"{method}({tag}, …) is not recorded: {error_line(error)}; check its arguments"
            run._report_fault(Diagnostic("bad_argument", f"{method} {tag}", message))

    def _note_unrecorded(self, method: str) -> None:
        if self._is_recording:
            message = f"{method}() has no effect here; use TensorBoard's SummaryWriter beside sync() for it"
            self._run.open()._report_fault(Diagnostic(NOT_RECORDED, method, message))


_writers: "WeakSet[SummaryWriter]" = WeakSet()  # that are not closed
_recording: tuple[Run, Sync] | None = None  # the run that writers logged into last, and their prefixes in it


def _sync_of(run: Run) -> Sync:
    global _recording
    recording = _recording
    if recording is None or recording[0] is not run:
        with current_run.opening():
            recording = run, Sync(run.log, run.config.update, run._report_internal_error, has_step_key=False)
            for writer in list(_writers):
                recording[1].add_writer(writer)
            _recording = recording
    return recording[1]
