"""MLflow, or the few names of it that the store needs: tests/integrations has the real one."""

import base64
import importlib.util
import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from chiplog.recording.run import current_run

FIELDS = {
    "Dataset": "name digest source_type source schema profile",
    "DatasetInput": "dataset tags",
    "Experiment": "experiment_id name artifact_location lifecycle_stage tags creation_time last_update_time",
    "ExperimentTag": "key value",
    "FileInfo": "path is_dir file_size",
    "InputTag": "key value",
    "LoggedModelInput": "model_id",
    "LoggedModelOutput": "model_id step",
    "Metric": "key value timestamp step model_id dataset_name dataset_digest run_id",
    "Param": "key value",
    "Run": "info data inputs outputs",
    "RunInfo": "run_id experiment_id user_id status start_time end_time lifecycle_stage artifact_uri run_name",
    "RunInputs": "dataset_inputs model_inputs",
    "RunOutputs": "model_outputs",
    "RunTag": "key value",
}


class MlflowException(Exception):  # noqa: N818 - its name in MLflow
    def __init__(self, message: str, error_code: int = 1) -> None:
        super().__init__(message)
        self.message, self.error_code = message, error_code


class MlflowNotImplementedException(MlflowException):
    pass


def _entity(name: str, fields: list[str]) -> type:
    def begin(self: Any, *given: Any, **named: Any) -> None:
        vars(self).update({**dict.fromkeys(fields), **dict(zip(fields, given, strict=False)), **named})

    return type(name, (), {"__init__": begin})


class LoggedModel:
    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


class LoggedModelStatus(StrEnum):
    PENDING, READY, FAILED = "PENDING", "READY", "FAILED"

    def __str__(self) -> str:
        return self.value


class AbstractStore:
    """Methods that MLflow leaves to stores."""

    def get_run(self, run_id: str) -> Any:
        """Return a run."""

    def search_traces(self) -> Any:
        raise NotImplementedError

    def search_datasets(self) -> Any:
        raise NotImplementedError(self.__class__.__name__)

    def get_trace_info(self, trace_id: str) -> Any:
        raise NotImplementedError

    def register_scorer(self, experiment_id: str, name: str) -> Any:
        raise MlflowNotImplementedException


class ArtifactRepository:
    def __init__(self, artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        self.artifact_uri = artifact_uri


class SqlAlchemyStore:
    def __init__(self, uri: str) -> None:
        self.uri = uri

    def create_registered_model(self, name: str, tags: Any = None, description: Any = None) -> str:
        return name


class RunData:
    def __init__(self, metrics: Any = None, params: Any = None, tags: Any = None) -> None:
        self.metrics = {metric.key: metric.value for metric in metrics or ()}
        self.params = {param.key: param.value for param in params or ()}
        self.tags = {tag.key: tag.value for tag in tags or ()}


class SearchUtils:
    @staticmethod
    def filter(found: Any, filter_string: Any) -> Any:
        return found

    @staticmethod
    def sort(found: Any, order_by: Any) -> Any:
        return list(found)

    @staticmethod
    def parse_start_offset_from_page_token(token: Any) -> int:
        return json.loads(base64.b64decode(token))["offset"] if token else 0

    @staticmethod
    def create_page_token(offset: int) -> bytes:
        return base64.b64encode(json.dumps({"offset": offset}).encode())

    @classmethod
    def paginate(cls, found: Any, token: Any, max_results: int) -> Any:
        first = cls.parse_start_offset_from_page_token(token)
        last = first + max_results
        return found[first:last], cls.create_page_token(last) if last < len(found) else None


class SearchLoggedModelsUtils(SearchUtils):
    filter_logged_models = staticmethod(lambda models, filter_string, datasets: models)


class PagedList(list[Any]):
    def __init__(self, items: Any, token: Any) -> None:
        super().__init__(items)
        self.token = token


def _validate_metric(key: Any, value: Any, timestamp: Any, step: Any, path: str = "") -> None:
    if "\n" in key:
        raise MlflowException(f"Invalid value {key!r} for parameter 'name' supplied")


def _names() -> dict[str, dict[str, Any]]:
    """Return the names by module below `mlflow`."""
    entities: dict[str, Any] = {name: _entity(name, fields.split()) for name, fields in FIELDS.items()}
    stages = {1: ["active"], 2: ["deleted"], 3: ["active", "deleted"]}
    entities |= {"RunData": RunData, "LoggedModel": LoggedModel, "LoggedModelStatus": LoggedModelStatus}
    entities["LifecycleStage"] = SimpleNamespace(
        ACTIVE="active", DELETED="deleted", view_type_to_stages=lambda view: stages[view]
    )
    entities["ViewType"] = SimpleNamespace(ACTIVE_ONLY=1, DELETED_ONLY=2, ALL=3)
    statuses = {1: "RUNNING", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
    entities["RunStatus"] = SimpleNamespace(to_string=statuses.__getitem__)
    kinds = ("INVALID_PARAMETER_VALUE", "RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST", "TEMPORARILY_UNAVAILABLE")
    checks: dict[str, Any] = {
        name: lambda *given: None
        for name in ("_validate_experiment_name", "_validate_experiment_tag", "_validate_logged_model_name")
    }
    checks["_validate_dataset_inputs"] = lambda inputs: None
    checks["_validate_metric"] = _validate_metric
    checks["_validate_param"] = lambda key, value: entities["Param"](key, str(value))
    checks["_validate_tag"] = lambda key, value: entities["RunTag"](key, str(value))
    return {
        "entities": entities,
        "environment_variables": {"MLFLOW_EXPERIMENT_ID": SimpleNamespace(get=lambda: None)},
        "entities.dataset_summary": {"_DatasetSummary": _entity("_DatasetSummary", ["experiment_id", "name"])},
        "exceptions": {
            "MlflowException": MlflowException,
            "MlflowNotImplementedException": MlflowNotImplementedException,
        },
        "prompt.constants": {"IS_PROMPT_TAG_KEY": "mlflow.prompt.is_prompt"},
        "protos.databricks_pb2": {name: number for number, name in enumerate(kinds)},
        "store.entities.paged_list": {"PagedList": PagedList},
        "store.artifact.artifact_repo": {"ArtifactRepository": ArtifactRepository},
        "store.model_registry.sqlalchemy_store": {"SqlAlchemyStore": SqlAlchemyStore},
        "store.tracking": {
            "SEARCH_LOGGED_MODEL_MAX_RESULTS_DEFAULT": 100,
            "SEARCH_MAX_RESULTS_DEFAULT": 1000,
            "SEARCH_MAX_RESULTS_THRESHOLD": 50000,
        },
        "store.tracking.abstract_store": {"AbstractStore": AbstractStore},
        "utils.mlflow_tags": {
            "MLFLOW_DATASET_CONTEXT": "mlflow.data.context",
            "MLFLOW_RUN_NAME": "mlflow.runName",
            "MLFLOW_RUN_NOTE": "mlflow.note.content",
        },
        "utils.name_utils": {"_generate_random_name": lambda: "calm-fox-1"},
        "utils.search_utils": {
            "SearchExperimentsUtils": SearchUtils,
            "SearchLoggedModelsUtils": SearchLoggedModelsUtils,
            "SearchUtils": SearchUtils,
        },
        "utils.validation": checks,
    }


def _install_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    root = ModuleType("mlflow")
    vars(root).update(__version__="3.17.2", __path__=[])
    monkeypatch.setitem(sys.modules, "mlflow", root)
    for path, names in _names().items():
        parts = path.split(".")
        for n in range(1, len(parts) + 1):
            name = ".".join(("mlflow", *parts[:n]))
            if name not in sys.modules:
                module = ModuleType(name)
                vars(module)["__path__"] = []
                monkeypatch.setitem(sys.modules, name, module)
        vars(sys.modules[f"mlflow.{path}"]).update(names)


@pytest.fixture(autouse=True)
def mlflow(no_run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """MLflow's names, and no run of an earlier test."""
    monkeypatch.setattr(current_run, "_earlier", [])
    if importlib.util.find_spec("mlflow") is None:
        _install_stand_in(monkeypatch)
    yield
    for run in current_run.open_runs():
        run.finish()
    for name in [name for name in sys.modules if name.startswith("chiplog.integrations.mlflow")]:
        del sys.modules[name]
