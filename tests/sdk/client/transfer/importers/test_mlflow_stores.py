"""Stores of MLflow are guessed, and read by MLflow itself; tests/integrations compares the runs with its client."""

import contextlib
import os
import sqlite3
import sys
from pathlib import Path

import pytest

from chiplog_client.transfer.importers import mlflow_stores
from chiplog_client.transfer.importers.formats import Options, guess_format
from chiplog_client.transfer.importers.imported_run import ImporterError


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for table in ("alembic_version", "experiments", "runs", "metrics", "params"):
            connection.execute(f"CREATE TABLE {table} (x)")
    return path


def test_databases_folders_and_uris_are_guessed(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "0").mkdir(parents=True)
    (tmp_path / "runs" / "0" / "meta.yaml").touch()
    monkeypatch.chdir(tmp_path)
    uris = (f"sqlite:///{database}", "sqlite:///mlflow.db", "http://localhost:5000", "databricks://profile")
    for path in (str(database), str(tmp_path / "runs"), f"file://{tmp_path}/runs", *uris):
        assert guess_format(Path(path)) == "mlflow", path
    assert guess_format(Path("sqlite:///absent.db")) is None


def test_without_mlflow_one_line_names_the_extra(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    before = dict(os.environ)
    with pytest.raises(ImporterError, match=r"mlflow.db: .*pip install 'chiplog\[mlflow\]'"):
        next(mlflow_stores.read(database, Options()))
    assert dict(os.environ) == before


def test_a_folder_with_artifacts_only_names_its_database(database: Path, tmp_path: Path) -> None:
    artifacts = tmp_path / "mlruns" / "1" / "run" / "artifacts"
    artifacts.mkdir(parents=True)
    with pytest.raises(ImporterError, match=rf"no folder in it has a meta\.yaml.*import {database}"):
        next(mlflow_stores.read(tmp_path / "mlruns", Options()))
    database.unlink()
    with pytest.raises(ImporterError, match="name the database"):
        next(mlflow_stores.read(tmp_path / "mlruns", Options()))
    with pytest.raises(ImporterError, match=r"mlflow\.db does not exist; name"):
        next(mlflow_stores.read(database, Options()))
