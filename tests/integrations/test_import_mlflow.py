"""Runs of real stores of MLflow: SQL has each value that MlflowClient gives, and no other; the stores do not change."""

import contextlib
import hashlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.integrations.importing import import_into, run_reader, run_script
from tests.integrations.matrix import PYTHON, ROW
from tests.integrations.training import END_S
from tests.support.node import Node
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

_STATES = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "failed", "RUNNING": "running"}
_FILE_STORE = {"MLFLOW_ALLOW_FILE_STORE": "true"}
_FIRST_REVISION_WITH_STEPS = "451aebb31d03"  # MLflow 1.0, of the year 2019


@pytest.mark.parametrize("store", ["SQLite", "mlruns"])
def test_sql_has_what_mlflows_client_reads(
    store: str, shared_node: Node, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "mlflow.db" if store == "SQLite" else tmp_path / "mlruns"
    uri = f"sqlite:///{path}" if store == "SQLite" else path.as_uri()
    run_script("write_mlflow.py", uri, directory=tmp_path, **_FILE_STORE)
    before = _digests(tmp_path)
    project = f"mnist {store}"
    lines = import_into(shared_node, "--project", project, path)
    assert _digests(tmp_path) == before
    read = run_reader("read_mlflow.py", uri, directory=tmp_path, **_FILE_STORE)
    n_metrics = sum(len(run["metrics"]) for run in read["runs"].values())
    row = {"library": f"MLflow's {store}, imported", "version": read["version"], "ranks": 1, "rows": n_metrics}
    request.node.user_properties.append((ROW, row))
    assert n_metrics >= 206 and len(read["runs"]) == 5
    runs = shared_node.sql("SELECT run_id FROM runs WHERE project = $project", {"project": project})
    assert {run["run_id"] for run in runs} == set(read["runs"])
    for run_id, run in read["runs"].items():
        _compare(shared_node, run_id, run)
    assert sum("1 runs that were deleted in MLflow" in line for line in lines) == 1, lines
    assert sum("not imported" in line for line in lines) == 1, lines
    stored = run_reader("read_mlflow.py", f"chiplog://{shared_node.root}", directory=tmp_path)
    assert {run_id: stored["runs"][run_id] for run_id in read["runs"]} == read["runs"]
    again = import_into(shared_node, "--project", project, "--from", "mlflow", uri)
    assert sum("it had all of its events before" in line for line in again) == 5


def _compare(node: Node, run_id: str, run: dict[str, Any]) -> None:
    def rows(query: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in node.sql(f"{query} WHERE run_id = $run", {"run": run_id})]

    [found] = rows("SELECT name, state, epoch_us(created_at), epoch_us(ended_at), notes FROM runs")
    ended_us = run["ended_us"]
    note = run["tags"].get("mlflow.note.content")
    assert found == (run["name"], _STATES[run["status"]], run["started_us"], ended_us, note)
    metrics = [(*place, repr(value)) for *place, value in rows("SELECT key, step, epoch_us(ts), value FROM metrics")]
    assert sorted(metrics) == sorted(map(tuple, run["metrics"]))
    assert dict(rows("SELECT key, value->>'$' FROM config")) == run["params"]
    tags = rows("SELECT key, value FROM run_tags")
    assert {key: value for key, value in tags if not key.startswith("chiplog:")} == run["tags"]
    files = rows("SELECT path, sha256 FROM files")
    prefix = "mlflow/artifacts/"
    artifacts = {path.removeprefix(prefix): digest for path, digest in files if path.startswith(prefix)}
    assert artifacts == run["artifacts"]
    images = [digest for path, digest in run["artifacts"].items() if path.endswith(".png")]
    assert rows("SELECT key, step, sha256 FROM media") == [("val/image", 3, digest) for digest in images]


def _digests(directory: Path) -> dict[str, str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_runs_of_a_server_come_with_their_artifacts(shared_node: Node, tmp_path: Path) -> None:
    with _served(tmp_path) as uri:
        run_script("write_mlflow.py", uri, directory=tmp_path)
        lines = import_into(shared_node, "--project", "mnist server", uri)
        read = run_reader("read_mlflow.py", uri, directory=tmp_path)
    assert len(read["runs"]) == 5
    for run_id, run in read["runs"].items():
        _compare(shared_node, run_id, run)
    assert sum("not imported" in line for line in lines) == 1, lines  # the deleted run
    [line] = import_into(shared_node, uri, exit_code=2, MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")[-1:]
    assert f"{uri} cannot be read by MLflow" in line


@contextlib.contextmanager
def _served(directory: Path) -> Iterator[str]:
    """Run MLflow's server, which keeps artifacts, and yield its URI."""
    port = str(free_ports(1))
    places = [
        "--backend-store-uri",
        f"sqlite:///{directory}/server.db",
        "--artifacts-destination",
        str(directory / "kept"),
    ]
    command = [os.environ[PYTHON], "-m", "mlflow", "server", "--workers", "1", "--port", port, *places]
    with open(directory / "server.log", "wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:

        def answers() -> bool:
            assert process.poll() is None, (directory / "server.log").read_text()[-4000:]
            with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/health", timeout=END_S) as answer:
                return bool(answer.status == 200)
            return False

        wait_until(answers, "MLflow's server")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()  # its workers end with it
        process.wait()


def test_a_moved_folder_and_one_without_meta_yaml(shared_node: Node, tmp_path: Path) -> None:
    run_script("write_mlflow.py", (tmp_path / "mlruns").as_uri(), directory=tmp_path, **_FILE_STORE)
    moved = tmp_path / "elsewhere" / "runs of old"
    moved.parent.mkdir()
    shutil.move(tmp_path / "mlruns", moved)
    [parent] = [path.parent for path in moved.glob("*/*/meta.yaml") if "run_name: parent" in path.read_text()]
    [child] = [path for path in moved.glob("*/*/meta.yaml") if "run_name: child" in path.read_text()]
    child.unlink()
    lines = import_into(shared_node, moved)
    assert any(f"1 runs without a meta.yaml, which MLflow skips, the first: {child.parent}" in line for line in lines)
    query = "SELECT path FROM files WHERE run_id = $run AND NOT contains(path, '/images/') ORDER BY path"
    files = shared_node.sql(query, {"run": parent.name})
    [model] = {path.parts[-3] for path in moved.glob("*/models/*/artifacts/layer.txt")}
    assert [row["path"] for row in files] == [
        "mlflow/artifacts/a.json",
        "mlflow/artifacts/notes/a.txt",
        f"mlflow/models/{model}/artifacts/layer.txt",
    ]


def test_databases_of_other_releases(shared_node: Node, tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    run_script("make_old_mlflow.py", old, _FIRST_REVISION_WITH_STEPS, directory=tmp_path)
    artifacts = tmp_path / "mlruns" / "1" / "abc" / "artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / "a.txt").write_text("an artifact")
    before = old.read_bytes()
    import_into(shared_node, "--as", "old-mlflow", old)
    assert old.read_bytes() == before
    of_run = "WHERE run_id = 'old-mlflow'"
    assert shared_node.sql(f"SELECT key, step, epoch_us(ts) AS us, value FROM metrics {of_run}") == [
        {"key": "loss", "step": 3, "us": 2_000_000, "value": 0.5}
    ]
    assert shared_node.sql(f"SELECT path FROM files {of_run}") == [{"path": "mlflow/artifacts/a.txt"}]
    newer = tmp_path / "newer.db"
    shutil.copy(old, newer)
    with contextlib.closing(sqlite3.connect(newer)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    [line] = import_into(shared_node, newer, exit_code=2)[-1:]
    assert str(newer) in line and "cannot read its schema" in line and "ffffffffffff" in line


def test_a_locked_database_is_one_line(shared_node: Node, tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(path)) as writer:
        for table in ("alembic_version", "experiments", "runs", "metrics", "params"):
            writer.execute(f"CREATE TABLE {table} (x)")
        writer.commit()
        writer.execute("BEGIN EXCLUSIVE")
        [line] = import_into(shared_node, path, exit_code=2)[-1:]
    assert f"{path} cannot be read: database is locked; stop the program" in line
