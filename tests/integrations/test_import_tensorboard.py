"""Event files of real SummaryWriters in SQL have each value that TensorBoard's own reader gives, and no other."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integrations.importing import import_into, run_reader, run_script
from tests.integrations.matrix import ROW
from tests.support.node import Node

_SELECTS = {
    "scalars": "SELECT key, step, epoch_us(ts) AS us, value FROM metrics WHERE run_id = $run",
    "text": "SELECT key || '/text_summary' AS key, step, epoch_us(ts) AS us, value FROM texts WHERE run_id = $run",
    "histograms": "SELECT key, step, epoch_us(ts) AS us, edges, counts FROM histograms WHERE run_id = $run",
    "images": "SELECT key, step, epoch_us(ts) AS us, sha256 FROM media WHERE kind = 'image' AND run_id = $run",
    "audio": "SELECT key, step, epoch_us(ts) AS us, sha256 FROM media WHERE kind = 'audio' AND run_id = $run",
}


@pytest.mark.parametrize("module", ["torch.utils.tensorboard", "tensorboardX"])
def test_sql_has_what_tensorboards_reader_gives(
    module: str, shared_node: Node, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = tmp_path / module
    run_script("write_event_files.py", module, root)
    lines = import_into(shared_node, root)
    read = run_reader("read_event_files.py", root)
    n_values = sum(len(values) for run in read["runs"].values() for values in run.values())
    row = {"library": f"event files of {module}, imported", "version": read["version"], "ranks": 1, "rows": n_values}
    request.node.user_properties.append((ROW, row))
    assert n_values > 500
    runs = {run["name"]: run for run in shared_node.sql("FROM runs WHERE project = $project", {"project": module})}
    assert set(runs) == {_name_of(root, directory) for directory in read["runs"]}
    for directory, values in read["runs"].items():
        run = runs[_name_of(root, directory)]
        assert run["state"] == "finished"
        for kind, query in _SELECTS.items():
            found = [_value_of(row) for row in shared_node.sql(query, {"run": run["run_id"]})]
            assert sorted(found) == sorted(map(tuple, values[kind])), (run, kind)
    [config] = [
        {row["key"]: row["value"] for row in shared_node.sql("FROM config WHERE run_id = $run", {"run": run["run_id"]})}
        for run in runs.values()
        if shared_node.sql("FROM config WHERE run_id = $run", {"run": run["run_id"]})
    ]
    assert config == {"lr": "0.1", "optimizer": '"adam"', "nesterov": "1.0"} | (
        {"nesterov": "true"} if module == "tensorboardX" else {}
    )
    assert any("1 values of kind tensor of custom_scalars" in line for line in lines), lines
    assert any("purge_step" in line for line in lines), lines
    again = import_into(shared_node, root)
    assert sum("it had all of its events before" in line for line in again) == len(runs)


def _name_of(root: Path, directory: str) -> str:
    return root.name if Path(directory) == root else str(Path(directory).relative_to(root))


def _value_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a row as TensorBoard's reader has it, which makes the numbers of histograms float32."""
    place = row["key"], row["step"], row["us"]
    if "edges" in row:
        edges, counts = np.float32(row["edges"]), np.float32(row["counts"])
        return (*place, np.stack([edges[:-1], edges[1:], counts], axis=1).tolist())
    return (*place, repr(row["value"]) if isinstance(row.get("value"), float) else row.get("value", row.get("sha256")))


def test_damaged_files_give_what_the_loader_gives_and_one_line_each(shared_node: Node, tmp_path: Path) -> None:
    run_script("write_event_files.py", "tensorboardX", tmp_path / "good")
    [first, _] = sorted((tmp_path / "good").glob("*tfevents*"))
    content = first.read_bytes()
    root = tmp_path / f"damaged-{tmp_path.name}"
    flipped = bytearray(content)
    flipped[5_000] ^= 1
    for name, data in {"flipped": bytes(flipped), "cut": content[:7_001], "none": b"", "foreign": b"x" * 99}.items():
        (root / name).mkdir(parents=True)
        (root / name / first.name).write_bytes(data)
    lines = import_into(shared_node, root)
    read = {
        Path(directory).name: values["scalars"]
        for directory, values in run_reader("read_event_files.py", root)["runs"].items()
    }
    query = "SELECT name, count(*) AS n FROM metrics JOIN runs USING (run_id) WHERE project = $project GROUP BY name"
    found = {row["name"]: row["n"] for row in shared_node.sql(query, {"project": root.name})}
    assert found == {name: len(values) for name, values in read.items() if values}
    assert set(found) == {"flipped", "cut"}
    damage = [line for line in lines if "damaged or cut off" in line]
    assert len(damage) == 1 and "not imported: 3 parts of files" in damage[0], lines
    assert f"{root / 'cut' / first.name} at byte 6,9" in damage[0], lines
    [line] = import_into(shared_node, root / "foreign", exit_code=2)[-1:]
    assert f"{root / 'foreign' / first.name} at byte 0 of 99" in line
    assert shared_node.sql("FROM runs WHERE name = 'foreign'") == []


def test_a_file_a_link_and_a_copy_are_the_run_of_their_directory(shared_node: Node, tmp_path: Path) -> None:
    root, project = tmp_path / "logs", tmp_path.name
    run_script("write_event_files.py", "tensorboardX", tmp_path / "elsewhere" / "run")
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere" / "run" / "several" / "a")
    shutil.copytree(tmp_path / "elsewhere" / "run" / "several" / "a", root / "copies" / "a")
    lines = import_into(shared_node, "--project", project, root)
    assert sum(f"1 copies of runs, the first: {root / 'copies' / 'a'}" in line for line in lines) == 1, lines
    runs = shared_node.sql("SELECT run_id, name FROM runs WHERE project = $project", {"project": project})
    assert [run["name"] for run in runs] == ["link"]
    [file] = (root / "copies" / "a").iterdir()
    [line] = import_into(shared_node, "--project", project, file)
    assert line.startswith(f"run {runs[0]['run_id']}: ") and "it had all of its events before" in line


def test_values_that_do_not_fit_their_plugins_are_left_out(shared_node: Node, tmp_path: Path) -> None:
    root = tmp_path / tmp_path.name
    run_script("write_odd_events.py", root)
    lines = import_into(shared_node, root)
    assert any("values of kind tensor of hparams that cannot be read" in line for line in lines), lines
    query = (
        "SELECT step, epoch_us(ts) AS us FROM metrics JOIN runs USING (run_id) WHERE project = $project ORDER BY step"
    )
    rows = shared_node.sql(query, {"project": root.name})
    assert rows == [{"step": step, "us": 1_700_000_000_000_000} for step in range(4)]
