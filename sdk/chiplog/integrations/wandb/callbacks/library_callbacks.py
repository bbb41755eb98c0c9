"""What W&B's callbacks for Stable-Baselines3, XGBoost and LightGBM share: over the open run, nothing raised."""

from collections.abc import Collection
from typing import Any

from chiplog.artifacts.artifact import Artifact
from chiplog.integrations.wandb import charts
from chiplog.integrations.wandb.errors import Error, warn
from chiplog.integrations.wandb.start import current
from chiplog.integrations.wandb.wandb_run import Run
from chiplog.media.table import Table
from chiplog.safety.diagnostics import error_line
from chiplog_schemas.interrupts import is_interrupt


class LibraryCallback:
    """Base of the callbacks. What fails in a method with `never_raises` is one line."""

    _library = ""

    def _report_internal_error(self, where: str, error: Exception) -> None:
        if is_interrupt(error) or isinstance(error, Error):  # W&B's errors are raised in strict mode only
            raise error
        warn(f"W&B's callback for {self._library} failed in {where}; it continues: {error_line(error)}")

    def _run(self) -> Run | None:
        """Return the current run. Without one the callback records nothing, with one line."""
        run = current()
        if run is None:
            warn(f"W&B's callback for {self._library} records nothing without a run; call wandb.init() first")
        return run


def summary_word(metric: str, smaller: Collection[str], larger: Collection[str]) -> str | None:
    """Return the word of the summary by which a metric is best: min for losses and some, max for others, or None."""
    name = metric.lower()
    if "loss" in name or name in smaller:
        return "min"
    return "max" if name in larger else None


def importance_chart(importances: list[list[Any]]) -> dict[str, Any]:
    """Return the chart of pairs of a feature and its importance, by W&B's key."""
    table = Table(columns=["Feature", "Importance"], data=importances)
    return {"Feature Importance": charts.bar(table, "Feature", "Importance", title="Feature Importance")}


def log_model(run: Run, name: str, path: str, aliases: list[str] | None = None) -> Artifact:
    """Log a file as a version of an artifact of type model, and return that."""
    model = Artifact(name, type="model")
    model.add_file(path)
    run.log_artifact(model, aliases=aliases)
    return model
