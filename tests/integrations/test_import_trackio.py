"""The file of a project that the real Trackio wrote: SQL has each value that its own reader gives, and no other."""

import hashlib
from pathlib import Path

import pytest

from tests.integrations.importing import import_into, run_reader, run_script
from tests.integrations.matrix import ROW
from tests.support.node import Node

_SELECTS = {
    "metrics": "SELECT key, step, epoch_us(ts), value FROM metrics WHERE run_id = $run",
    "texts": "SELECT key, step, epoch_us(ts), value FROM texts WHERE run_id = $run",
    "media": "SELECT key, step, epoch_us(ts), sha256 FROM media WHERE kind <> 'table' AND run_id = $run",
    "tables": "SELECT key, step, epoch_us(ts) FROM media WHERE kind = 'table' AND run_id = $run",
    "histograms": "SELECT key, step, epoch_us(ts), edges, counts FROM histograms WHERE run_id = $run",
    "system": "SELECT name, value FROM system WHERE run_id = $run",
    "alerts": "SELECT message, body->>'text' FROM events WHERE kind = 'alert' AND run_id = $run",
}


def test_sql_has_what_trackios_reader_gives(shared_node: Node, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run_script("write_trackio.py", directory=tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    read = run_reader("read_trackio.py", TRACKIO_DIR=str(tmp_path / "trackio"))
    n_metrics = sum(len(run["metrics"]) for run in read["runs"].values())
    row = {"library": "Trackio's SQLite, imported", "version": read["version"], "ranks": 1, "rows": n_metrics}
    request.node.user_properties.append((ROW, row))
    assert n_metrics == 2 * 303
    lines = import_into(shared_node, read["path"])
    assert not any("not imported" in line for line in lines), lines
    for name, run in read["runs"].items():
        of_run = {"run": run["run_id"]}
        [found] = shared_node.sql("FROM runs WHERE run_id = $run", of_run)
        assert (found["name"], found["run_group"], found["state"]) == (name, "g", "finished")
        for kind, query in _SELECTS.items():
            rows = [tuple(row.values()) for row in shared_node.sql(query, of_run)]
            if kind == "metrics":
                rows = [(*place, repr(value)) for *place, value in rows]
            assert sorted(rows) == sorted(map(tuple, run[kind])), (name, kind)
        config = {row["key"] for row in shared_node.sql("FROM config WHERE run_id = $run", of_run)}
        assert {key.partition("/")[0] for key in config} == set(run["config"])
        [file] = shared_node.sql("FROM files WHERE run_id = $run", of_run)
        assert file["path"] == f"artifacts/model-{name[0]}/v0/saved.txt"
        assert file["sha256"] == hashlib.sha256(b"a file").hexdigest()
    again = import_into(shared_node, read["path"])
    assert sum("it had all of its events before" in line for line in again) == 2
