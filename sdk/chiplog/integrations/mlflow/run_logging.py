"""What MLflow's calls log to a run: values, params and tags, as events of chiplog's run."""

from collections.abc import Callable, Iterable

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME, MLFLOW_RUN_NOTE
from mlflow.utils.validation import _validate_metric

from chiplog.integrations.mlflow.models.logged_models import link
from chiplog.integrations.mlflow.records import PARAM, RunRecord
from chiplog.safety.diagnostics import Diagnostic

_KEYS_MAX = 10_000  # names of metrics that were found valid


class RunLogging:
    """Log to the runs of one store. is_strict: a changed param raises. warn: called with a call's name and error."""

    def __init__(self, is_strict: bool, warn: Callable[[str, Exception], None]) -> None:
        self._is_strict = is_strict
        self._warn = warn
        self._valid_keys: set[str] = set()

    def log_metrics(self, record: RunRecord, metrics: Iterable[Metric]) -> None:
        """Log values, those of one step and time as one event."""
        inner = record.inner
        assert inner is not None
        numbers: dict[str, float] = {}
        at: tuple[int, int] = (0, 0)
        for metric in metrics:
            key, step, time_ms, value = metric.key, metric.step, metric.timestamp, metric.value
            if not (key in self._valid_keys and type(value) is float and type(step) is int and type(time_ms) is int):
                try:
                    _validate_metric(key, value, time_ms, step)
                    step, time_ms, value = int(step), int(time_ms), float(value)
                except Exception as error:
                    self._warn("log_metric", error)
                    continue
                if len(self._valid_keys) < _KEYS_MAX:
                    self._valid_keys.add(key)
            has_model = metric.model_id is not None
            if has_model:
                link(record, metric)
            if not record.metrics.add(key, step, time_ms, value, is_resent=has_model):
                continue  # sent again by log_model
            if numbers and (at != (step, time_ms) or key in numbers):
                inner._log_at(at[0], at[1] * 1000, numbers)
                numbers = {}
            at = step, time_ms
            numbers[key] = value
        if numbers:
            inner._log_at(at[0], at[1] * 1000, numbers)

    def log_param(self, record: RunRecord, param: Param) -> None:
        """Log a param. The first value counts."""
        before = record.params.setdefault(param.key, param.value)
        if before == param.value and record.tag(PARAM + param.key) is None:
            record.set(PARAM + param.key, param.value)
        elif before != param.value:
            line = (
                f"Changing param values is not allowed. Param with key='{param.key}' was already logged with value="
                f"'{before}' for run ID='{record.run_id}'. Attempted logging new value '{param.value}'."
            )
            if self._is_strict:
                raise MlflowException(line, INVALID_PARAMETER_VALUE)
            if record.inner is not None:
                message = f"param {param.key!r:.80} is {before!r:.80} already; {param.value!r:.80} is not recorded"
                record.inner._report_fault(
                    Diagnostic("param_changed", param.key, f"{message}: log it under another name")
                )

    def set_tags(self, record: RunRecord, tags: dict[str, str | None], is_emitted: bool = True) -> None:
        """Set tags, also the name and notes of chiplog's run. None removes one. is_emitted: to the run as well."""
        for key, value in tags.items():
            record.set(key, value, is_emitted=is_emitted)
        inner = record.inner
        if inner is None or not is_emitted or not inner.is_primary:
            return
        if name := tags.get(MLFLOW_RUN_NAME):
            inner.name = name
        if note := tags.get(MLFLOW_RUN_NOTE):
            inner.notes = note
