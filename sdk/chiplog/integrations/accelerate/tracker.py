"""The tracker for Accelerate: what its main process logs. Other ranks write the same run by `chiplog.log()`."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from accelerate import tracking

from chiplog.integrations.adapter.framework_run import FrameworkRun
from chiplog.media.image import Image
from chiplog.media.table import Table
from chiplog.recording.run.run import Run
from chiplog.safety.boundary import never_raises

_log = logging.getLogger("chiplog")


class ChiplogTracker(tracking.GeneralTracker):  # type: ignore[misc]  # Accelerate need not be installed
    """Log what `accelerator.log()` logs, and the config of `init_trackers()`.

    The run is the current one; without one it is opened at the first use, and ends with `accelerator.end_training()`.

    Args:
        run_name: The project, as `init_trackers()` gives it to each tracker.
        **arguments: Of `chiplog.init`: name, tags and others; `init_kwargs={"chiplog": {…}}` of `init_trackers()`.

    Examples:
        >>> accelerator = Accelerator(log_with="chiplog")
        >>> accelerator.init_trackers("mnist", config={"lr": 0.1})
        >>> accelerator.log({"loss": 0.5}, step=1)

    """

    name = "chiplog"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_name: str | None = None, **arguments: Any) -> None:
        super().__init__()
        self._run = FrameworkRun(**{"project": run_name, **arguments})
        self._records = True  # what it is given: of several trackers of a run the first one

    @property
    def tracker(self) -> Run:
        """The run."""
        return self._run.open()

    def start(self) -> None:
        """Open the run."""
        run = self._run.open()
        self._records = _first.setdefault(id(run), self) is self
        if not self._records:
            _log.warning("chiplog: init_trackers() was called again for run %s; the first tracker records", run.id)

    @never_raises("store_init_configuration")
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Update the config."""
        self.tracker.config.update(values)

    @never_raises("log")
    def log(self, /, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log values at a step."""
        self._log(values, step)

    @never_raises("log_images")
    def log_images(self, /, values: Mapping[str, Iterable[Any]], step: int | None = None, **kwargs: Any) -> None:
        """Log images: for each key a list of arrays or PIL images, or an array whose first dimension is their number.

        Args:
            values: Images by key; of an array the shape is N × height × width × channels.
            step: The step.
            **kwargs: Of `chiplog.Image`, as caption.

        """
        self._log({key: [Image(each, **kwargs) for each in given] for key, given in values.items()}, step)

    @never_raises("log_table")
    def log_table(
        self,
        /,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Log a table: of columns and rows, or a data frame."""
        self._log({table_name: Table(columns=columns, data=data, dataframe=dataframe)}, step)

    @never_raises("finish")
    def finish(self) -> None:
        """End the run, unless the script or another logger has opened it."""
        self._run.finish()

    def _log(self, values: Mapping[str, Any], step: int | None) -> None:
        if self._records:
            self.tracker.log(values, step=step)

    def _report_internal_error(self, where: str, error: Exception) -> None:
        self.tracker._report_internal_error(where, error)


# By the identity of their run, which they keep: Accelerate gives each value to all trackers that it ever had.
_first: WeakValueDictionary[int, ChiplogTracker] = WeakValueDictionary()

if hasattr(tracking, "register_tracker_class"):
    tracking.register_tracker_class(ChiplogTracker)
else:
    _log.warning(
        'chiplog: this version of Accelerate takes no log_with="chiplog"; pass log_with=ChiplogTracker("PROJECT")'
    )
