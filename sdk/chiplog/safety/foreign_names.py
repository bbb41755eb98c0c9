"""Public names of W&B and MLflow that chiplog does not have: one warning each, and objects that do nothing.

A script that switches by `import chiplog as wandb` keeps training: `wandb.Api()` or `mlflow.set_tag(...)` records
nothing, and one line says so. The lists come from `dir()` of wandb 0.31 and mlflow 3.17. Pure: the caller warns.
"""

import copyreg
import math
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from chiplog.safety.diagnostics import NOT_RECORDED, Diagnostic

_WANDB = """
    AlertLevel Api ArtifactTTL Box3d Classes Config EvalTable Graph JoinedTable Molecule Plotly Settings
    agent agents api apis attach box3d catboost controller data_types
    ensure_configured env gym integration join jupyter keras link_model log_code login
    mark_preempting pin_config_keys plot plot_table profiler require restore sacred sagemaker_auth sdk sklearn sweep
    teardown tensorboard termerror termlog termsetup termwarn unwatch use_model util visualize
"""
_MLFLOW = """
    ActiveModel ActiveRun MlflowClient active_run add_trace autolog clear_active_model create_experiment
    create_external_model create_workspace delete_assessment delete_experiment delete_experiment_tag
    delete_logged_model_tag delete_prompt_alias delete_run delete_tag delete_trace_tag delete_workspace
    disable_system_metrics_logging doctor enable_system_metrics_logging end_run entities evaluate
    finalize_logged_model flush_artifact_async_logging flush_async_logging flush_trace_async_logging gateway genai
    get_active_model_id get_active_trace_id get_artifact_uri get_assessment get_current_active_span get_experiment
    get_experiment_by_name get_last_active_trace_id get_logged_model get_parent_run get_registry_uri get_run get_trace
    get_tracking_uri get_workspace import_checkpoints initialize_logged_model is_tracking_uri_set langchain
    last_active_run last_logged_model lightgbm list_workspaces load_prompt load_table log_artifacts log_assessment
    log_dict log_expectation log_feedback log_figure log_image log_input log_inputs log_issue log_metric log_metrics
    log_model_params log_outputs log_param log_params log_stream log_table log_text log_trace models onnx openai
    override_feedback projects pyfunc pytorch register_model register_prompt restore_experiment restore_run
    search_experiments search_logged_models search_model_versions search_prompts search_registered_models search_runs
    search_sessions search_traces set_active_model set_experiment set_experiment_tag set_experiment_tags
    set_logged_model_tags set_model_version_tag set_prompt_alias set_registry_uri set_system_metrics_node_id
    set_system_metrics_samples_before_logging set_system_metrics_sampling_interval set_tag set_tags set_trace_tag
    set_tracking_uri set_workspace spark start_run start_span start_span_no_context tensorflow trace tracing tracking
    transformers update_assessment update_current_trace update_workspace validate_evaluation_results xgboost
    RunOperations ag2 agno anthropic autogen bedrock catboost client crewai diffusers dspy gemini groq h2o haystack
    johnsnowlabs litellm llama_index metrics mistral otel paddle pmdarima prompt prophet pydantic_ai rfunc
    semantic_kernel sentence_transformers shap smolagents spacy statsmodels strands system_metrics telemetry txtai types
"""
_EXCEPTIONS = frozenset(("CommError", "Error", "MlflowException", "UsageError"))
_EXCEPTION_MODULES = frozenset(("errors", "exceptions"))
_MLFLOW_NAMES = frozenset(_MLFLOW.split()) - frozenset(_WANDB.split())
MODULE_NAMES = frozenset(_WANDB.split()) | frozenset(_MLFLOW.split()) | _EXCEPTIONS | _EXCEPTION_MODULES

# Methods of W&B's runs that need its server.
HARMLESS_OF_RUNS = (
    *("finish_artifact", "link_artifact", "link_model", "log_code", "mark_preempting", "pin_config_keys"),
    "upsert_artifact",
)
# Of W&B's artifacts.
_ARTIFACT = """
    checkout collection commit_hash created_at delete digest_algorithm distributed_id entity file file_count
    get_added_local_path_name history_step id incremental is_link json_encode link linked_artifacts linked_at logged_by
    manifest new_draft qualified_name remove size source_artifact source_collection source_entity source_name
    source_project source_qualified_name source_version state tags ttl unlink updated_at url use_as used_by verify
"""
ARTIFACT_NAMES = frozenset(_ARTIFACT.split())
# Of the runs of both.
_RUN = """
    config_static display entity from_dictionary from_proto get_project_url get_url inputs join outputs path project_url
    restore settings starting_step status sweep_id sweep_url sync_dir to_dictionary to_html to_proto unwatch
    use_model write_logs
"""
# Arguments of `init`, and columns of the views `runs` and `labels`, whose values a run does not have.
_RUN_UNKNOWN = """
    agent capture_console collector created_at ended_at exit_code exit_signal gpu_device_ids gpus last_seen_at
    n_attempts n_failed n_labels n_running one_run_per_process primary_label reason reinit resume
    sample_interval_s state update_finish_state
"""
RUN_VALUES = {  # scripts read data from these, so they have plain values
    **dict.fromkeys(("entity", "path", "project_url", "sweep_url", "sync_dir"), ""),
    "starting_step": 0,
    "sweep_id": None,
    **dict.fromkeys(_RUN_UNKNOWN.split()),
}
RUN_NAMES = frozenset(_RUN.split()) | frozenset(HARMLESS_OF_RUNS) | frozenset(_RUN_UNKNOWN.split())

# Of all of these, the names whose data is lost. Modules are here if functions of them record, such as `autolog`.
_RECORDING = """
    Box3d EvalTable Graph JoinedTable Molecule Plotly data_types keras
    link_model log_code plot plot_table sacred sklearn tensorboard use_model
    MlflowClient add_trace autolog evaluate import_checkpoints langchain lightgbm log_artifacts log_assessment log_dict
    log_expectation log_feedback log_figure log_image log_input log_inputs log_issue log_metric log_metrics
    log_model_params log_outputs log_param log_params log_stream log_table log_text log_trace models onnx openai pyfunc
    pytorch register_model register_prompt set_experiment_tag set_experiment_tags set_logged_model_tags
    set_model_version_tag set_prompt_alias set_tag set_tags set_trace_tag spark start_run start_span
    start_span_no_context tensorflow trace tracing tracking transformers update_assessment update_current_trace xgboost
    finish_artifact link_artifact upsert_artifact write_logs
"""
_RECORDING_NAMES = frozenset(_RECORDING.split())


def unavailable(owner: str, name: str) -> Diagnostic:
    """Build the diagnostic of the first use of a foreign name. owner: `chiplog` or `run`."""
    message = f"{owner}.{name} is not available: its calls do nothing and record nothing"
    if owner == "chiplog" and name in _MLFLOW_NAMES:
        message += "; `import mlflow` unchanged, with MLFLOW_TRACKING_URI=chiplog://, records it"
    if owner == "run" and name in RUN_VALUES:
        message = f"run.{name} is {RUN_VALUES[name]!r}: a run does not have it; the views runs and labels may"
    return Diagnostic(NOT_RECORDED if name in _RECORDING_NAMES else "not_available", f"{owner}.{name}", message)


def stand_in(name: str) -> Any:
    """Build the substitute for a foreign name: an exception class, or a class that does nothing."""
    if name in _EXCEPTIONS:
        return _exception(name)
    if name in _EXCEPTION_MODULES:
        return _Exceptions()
    return _NoOpType(name, (NoOp,), {"__doc__": f"{name} is not available in chiplog and does nothing."})


def run_attribute(name: str) -> Any:
    """Return the substitute for a name in RUN_NAMES, as an attribute of a run."""
    return RUN_VALUES[name] if name in RUN_VALUES else stand_in(name)


def is_stand_in(value: Any) -> bool:
    """Return True if a value is one of these objects or classes: it holds nothing that could be recorded."""
    return isinstance(type(value), _NoOpType) or isinstance(value, _NoOpType)


def left_out(name: str) -> Diagnostic:
    """Build the diagnostic of an argument or attribute that was given one of these objects."""
    message = f"{name}= is of a name that chiplog does not have, and is left out; give a plain value"
    return Diagnostic("bad_argument", name, message)


def _exception(name: str) -> type[Exception]:
    """Build a class for `except` clauses, which accept nothing but exception classes. It is never raised."""
    return type(name, (Exception,), {})


class _NoOpType(type):
    """A class, so that `isinstance(x, wandb.Image)` and `class Mine(wandb.Table)` work."""

    def __getattr__(cls, name: str) -> Any:
        return _attribute(name)

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __lt__(cls, other: object) -> bool:
        return False

    def __getitem__(cls, key: object) -> Any:
        return NoOp()

    def __call__(cls, *given: Any, **named: Any) -> Any:
        """Make an object that does nothing, or return a function that is being decorated."""
        return _decorated(given, named) or super().__call__(*given, **named)


def _reduce_class(cls: _NoOpType) -> Any:
    """Pickle a class of `stand_in` by its name there, and any other as usual."""
    is_stand_in = cls.__module__ == __name__ and cls.__name__ not in globals()
    return (stand_in, (cls.__name__,)) if is_stand_in else cls.__qualname__


copyreg.pickle(_NoOpType, _reduce_class)


class NoOp(metaclass=_NoOpType):
    """An object that accepts every use and does nothing. It is false and empty."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """Accept any arguments."""

    def __getattr__(self, name: str) -> Any:
        return _attribute(name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Return another such object, or a function that is being decorated."""
        return _decorated(given, named) or NoOp()

    def __enter__(self) -> "NoOp":
        return self

    def __exit__(self, *error: object) -> None:
        """Let exceptions pass."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __getitem__(self, key: object) -> "NoOp":
        return NoOp()

    def __setitem__(self, key: object, value: object) -> None:
        """Drop the value."""

    def __next__(self) -> Any:
        raise StopIteration

    def __contains__(self, value: object) -> bool:
        return False

    def __repr__(self) -> str:
        return "<not available in chiplog>"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __fspath__(self) -> str:
        return ""

    # As a number it is NaN: arithmetic and comparisons continue.

    def __float__(self) -> float:
        return math.nan

    def __int__(self) -> int:
        return 0

    __index__ = __int__

    def _combine(self, *others: object) -> Any:
        return NoOp()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _combine
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = _combine
    __or__ = __ror__ = __and__ = __rand__ = _combine

    def _compare(self, other: object) -> bool:
        return False

    __lt__ = __le__ = __gt__ = __ge__ = _compare


class RunInfo(NoOp):
    """What MLflow's `run.info` has of a run."""

    def __init__(self, run_id: str, run_name: str | None, start_time_ms: int) -> None:
        self.run_id = self.run_uuid = run_id
        self.run_name = run_name
        self.start_time = start_time_ms
        self.status, self.lifecycle_stage, self.experiment_id = "RUNNING", "active", "0"


class CallableText(str):
    """A text that may also be called, as `run.project_name()` of older scripts."""

    def __call__(self) -> str:
        """Return the text."""
        return str(self)


class _Exceptions(NoOp):
    """A module of exceptions, as `wandb.errors`."""

    def __getattr__(self, name: str) -> Any:
        return _exception(name) if _attribute(name) is not None else None


def _attribute(name: str) -> Any:
    if name.startswith("__"):  # protocols of Python look these up: pickle, numpy, inspect
        raise AttributeError(name)
    return NoOp()


def _decorated(given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the function of `@mlflow.trace`, which must still run; None for any other call."""
    return given[0] if len(given) == 1 and not named and isinstance(given[0], FunctionType) else None
