"""The model registry in a file of CHIPLOG_DIR."""

import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest


def test_models_are_registered_in_one_file_below_chiplog_dir_and_prompts_are_not(chiplog_dir: Path) -> None:
    plugin, exceptions = import_module("chiplog.integrations.mlflow.plugin"), import_module("mlflow.exceptions")
    store = plugin.model_registry_store("chiplog://")
    assert (chiplog_dir / "mlflow").is_dir()
    store.create_registered_model("shop", [SimpleNamespace(key="team", value="x")])
    with pytest.raises(exceptions.MlflowNotImplementedException, match="prompts; 'hello' is not registered"):
        store.create_registered_model("hello", [SimpleNamespace(key="mlflow.prompt.is_prompt", value="true")])


def test_a_wrong_address_is_one_line(chiplog_dir: Path) -> None:
    plugin, exceptions = import_module("chiplog.integrations.mlflow.plugin"), import_module("mlflow.exceptions")
    with pytest.raises(exceptions.MlflowException, match="is not an address; write chiplog://"):
        plugin.model_registry_store("chiplog://host-without-port")


def test_a_registry_that_cannot_be_loaded_is_one_line(chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin, exceptions = import_module("chiplog.integrations.mlflow.plugin"), import_module("mlflow.exceptions")
    monkeypatch.setitem(sys.modules, "mlflow.store.model_registry.sqlalchemy_store", None)
    with pytest.raises(exceptions.MlflowException, match=r"SQLAlchemy .* pip install 'chiplog\[mlflow\]'"):
        plugin.model_registry_store("chiplog://")
