"""The logger for Lightning's Trainer and Fabric: every rank logs into one run."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from chiplog.integrations.adapter.framework_run import FrameworkRun
from chiplog.integrations.lightning.library import package
from chiplog.recording.run.run import Run
from chiplog.safety.boundary import never_raises
from chiplog.values.config import config_entries

_Logger = package().loggers.logger.Logger
_NAME = "lightning_logs"  # of the directory of checkpoints, as for Lightning's own loggers, without a project


class ChiplogLogger(_Logger):  # type: ignore[misc,valid-type]  # Lightning need not be installed
    """Log what `self.log()` logs, on every rank, and the hyperparameters as config.

    The run is the current one; without one it is opened at the first use, and ends with the process. So the trainer can
    be used again: `fit`, then `test`.

    Args:
        log_model: True logs the checkpoints that exist when the training ends, "all" each one when it is saved, as
            versions of an artifact with the aliases latest and best. False logs none.
        save_dir: Where checkpoints go, in `project/run ID/checkpoints`. Default: the trainer's `default_root_dir`.
        **arguments: Of `chiplog.init`: project, name, config, tags and others.

    Examples:
        >>> trainer = Trainer(logger=ChiplogLogger(project="mnist"), callbacks=[ChiplogCallback()])

    """

    _latest: ClassVar[tuple[Any, ...] | None] = None  # logger, dict, run, step and values of the latest row

    def __init__(
        self,
        *,
        log_model: Literal["all"] | bool = False,
        save_dir: str | os.PathLike[str] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        self._run = FrameworkRun(**arguments)
        self._log_model = log_model
        self._save_dir = None if save_dir is None else os.fspath(save_dir)
        self._logged_at: dict[str, int] = {}  # times of the checkpoints that are artifacts, by path
        self._at_end: dict[int, Any] = {}  # callbacks whose checkpoints are logged when the training ends

    @property
    def experiment(self) -> Run:
        """The run, on every rank."""
        return self._run.open()

    @property
    def name(self) -> str:
        """The project; of the directory of checkpoints."""
        return self.experiment.project or _NAME

    @property
    def version(self) -> str:
        """The run ID."""
        return self.experiment.id

    @property
    def save_dir(self) -> str | None:
        """The directory that was given for checkpoints."""
        return self._save_dir

    @never_raises("log_metrics")
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log values, on every rank. What a trainer hands to several loggers of this class is logged once."""
        run = self.experiment
        if self._is_logged(run, metrics, step):
            run._diagnostics.warn_once(
                ("logger", ""),
                "the trainer has several ChiplogLoggers, which record into one run; the first one records",
            )
            return
        run.log(metrics, step=step)

    @never_raises("log_hyperparams")
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Update the config: from a dict, a Namespace, a dataclass, or what OmegaConf makes."""
        self.experiment.config.update(config_entries(params))

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Accept the model: its graph is not recorded."""

    @never_raises("after_save_checkpoint")
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Log new checkpoints as artifacts, if `log_model` asks for it. Lightning calls it on rank 0."""
        if self._log_model == "all" or (self._log_model and checkpoint_callback.save_top_k == -1):
            self._log_checkpoints(checkpoint_callback)
        elif self._log_model:
            self._at_end[id(checkpoint_callback)] = checkpoint_callback

    @never_raises("finalize")
    def finalize(self, status: str) -> None:
        """Log checkpoints that wait for the end. The run stays open: the trainer may be used again."""
        if status == "success":
            for callback in self._at_end.values():
                self._log_checkpoints(callback)
            self._at_end.clear()

    def _is_logged(self, run: Run, metrics: Mapping[str, Any], step: int | None) -> bool:
        """Return True if another logger of the trainer has just logged it: a trainer gives all of them one dict."""
        before, ChiplogLogger._latest = ChiplogLogger._latest, None
        if not isinstance(metrics, dict) or not all(type(value) in (float, int) for value in metrics.values()):
            return False  # a tensor must not be kept
        latest = (self, metrics, run, step, dict(metrics))
        is_logged = (
            before is not None
            and before[1] is metrics
            and before[2:] == latest[2:]
            and (step is not None or before[0] is not self)  # without a step it may be another row
        )
        ChiplogLogger._latest = before if is_logged else latest
        return is_logged

    def _log_checkpoints(self, callback: Any) -> None:
        """Log the checkpoints of a callback that are not logged yet, the oldest first."""
        best = callback.best_model_path
        paths = {Path(path) for path in (callback.last_model_path, best, *callback.best_k_models) if path}
        found = sorted(
            (path.stat().st_mtime_ns, str(path)) for path in paths if path.exists() and not path.is_symlink()
        )
        for saved_at, path in found:
            if self._logged_at.get(path, -1) < saved_at:
                run = self.experiment
                run.log_model(path, name=f"model-{run.id}", aliases=["latest", *(["best"] if path == best else [])])
                self._logged_at[path] = saved_at

    def _report_internal_error(self, where: str, error: Exception) -> None:
        self.experiment._report_internal_error(where, error)
