"""A directory with a recorded run, for clients without a collector and with one."""

import hashlib
import shutil
from pathlib import Path

import duckdb
import pytest

from chiplog_schemas.paths import Paths, paths_for_root
from tests.support.recorded import create_database
from tests.support.run_builder import RunBuilder
from tests.support.stored_media import store_content


@pytest.fixture
def no_environment(monkeypatch):
    for name in ("CHIPLOG_DIR", "CHIPLOG_COLLECTOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Paths:
    found, database = create_database(tmp_path_factory.mktemp("recorded"), "2026-01-02 03:04:05.000006")
    with database:
        build = RunBuilder(database, "TIMESTAMP '2026-01-02'")
        build.metrics({"loss": "step / 2"}, steps=1000)
        for step, n_rows in enumerate((2, 50_000)):
            store_table(database, found, step, n_rows)
    return found


def store_table(database: duckdb.DuckDBPyConnection, place: Paths, step: int, n_rows: int) -> None:
    """Store a logged table of whole numbers and their hashes."""
    path = place.collector / "table"
    database.execute(f"COPY (SELECT range AS n, hash(range) AS h FROM range({n_rows})) TO '{path}' (FORMAT parquet)")
    data = path.read_bytes()
    path.unlink()
    store_content(place.files, data)
    content = hashlib.sha256(data).hexdigest(), len(data)
    build = RunBuilder(database)
    build.media("loss", "table", *content, {}, step=step, seq=5000 + step)
    build.store(*content)


@pytest.fixture
def where(tmp_path: Path, recorded: Paths) -> Paths:
    found = paths_for_root(tmp_path / "chiplog")
    shutil.copytree(recorded.root, found.root)
    return found
