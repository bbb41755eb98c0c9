"""What MLflow's entry points name."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


def test_entry_points_name_functions_that_build_stores() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {group: names for group, names in project["entry-points"].items() if group.startswith("mlflow.")}
    assert "mlflow.tracking_store" in groups
    for names in groups.values():
        module, _, function = names["chiplog"].partition(":")
        assert callable(getattr(import_module(module), function))


def test_mlflow_loads_nothing_of_the_store_until_a_uri_asks_for_it() -> None:
    script = "import sys, chiplog.integrations.mlflow.plugin; print([m for m in sys.modules if m.startswith('mlflow')])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"


def test_a_wrong_address_is_mlflows_error() -> None:
    from mlflow.exceptions import MlflowException

    from chiplog.integrations.mlflow.plugin import tracking_store

    with pytest.raises(MlflowException, match="the option strict=maybe is not known"):
        tracking_store("chiplog://?strict=maybe")
