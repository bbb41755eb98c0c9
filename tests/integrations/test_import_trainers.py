"""Files of Lightning's CSVLogger and of Hugging Face's Trainer: SQL has each value that csv and json read, no other."""

import csv
import json
from pathlib import Path

import pytest

from tests.integrations.importing import import_into, run_script
from tests.integrations.matrix import ROW
from tests.support.node import Node


def test_sql_has_what_lightning_wrote_as_csv(shared_node: Node, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    version = run_script("write_lightning.py", directory=tmp_path).split()[-1]
    expected = []
    for number in range(2):
        with (tmp_path / "lightning_logs" / f"version_{number}" / "metrics.csv").open(newline="") as file:
            expected += [
                (f"lightning_logs/version_{number}", key, int(row["step"]), str(float(cell)))
                for row in csv.DictReader(file)
                for key, cell in row.items()
                if key != "step" and cell
            ]
    assert {key for _, key, _, _ in expected} == {"epoch", "train_loss", "val/loss", "val/nan"}
    row = {"library": "Lightning's CSVLogger, imported", "version": version, "ranks": 1, "rows": len(expected)}
    request.node.user_properties.append((ROW, row))
    assert len(import_into(shared_node, tmp_path, "--project", tmp_path.name)) == 2
    of = {"project": tmp_path.name}
    query = "SELECT r.name, m.key, m.step, m.value FROM metrics m JOIN runs r USING (run_id) WHERE r.project = $project"
    found = [(*place, str(value)) for *place, value in (row.values() for row in shared_node.sql(query, of))]
    assert sorted(found) == sorted(expected)
    query = (
        "SELECT DISTINCT key, c.value FROM config c JOIN runs r USING (run_id) WHERE r.project = $project ORDER BY ALL"
    )
    config = {row["key"]: json.loads(row["value"]) for row in shared_node.sql(query, of)}
    assert config == {"act": "torch.nn.modules.activation.ReLU", "layers": [1, 2], "lr": 0.1}
    again = import_into(shared_node, tmp_path / "lightning_logs", "--project", tmp_path.name)
    assert all("it had all of its events before" in line for line in again)


def test_sql_has_what_the_trainer_has_in_its_state(
    shared_node: Node, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    version = run_script("write_trainer_state.py", directory=tmp_path, **offline).split()[-1]
    state = json.loads((tmp_path / "output" / "checkpoint-16" / "trainer_state.json").read_text())
    expected = [
        (key, entry["step"], str(float(value))) for entry in state["log_history"] for key, value in entry.items()
        if key != "step"
    ]  # fmt: skip
    assert {"loss", "eval_loss", "grad_norm", "epoch"} <= {key for key, _, _ in expected}
    row = {"library": "trainer_state.json, imported", "version": version, "ranks": 1, "rows": len(expected)}
    request.node.user_properties.append((ROW, row))
    assert len(import_into(shared_node, tmp_path / "output", "--project", tmp_path.name)) == 1
    of = {"project": tmp_path.name}
    query = "SELECT m.key, m.step, m.value FROM metrics m JOIN runs r USING (run_id) WHERE r.project = $project"
    found = [(*place, str(value)) for *place, value in (row.values() for row in shared_node.sql(query, of))]
    assert sorted(found) == sorted(expected)
    query = "SELECT key, c.value FROM config c JOIN runs r USING (run_id) WHERE r.project = $project"
    config = {row["key"]: json.loads(row["value"]) for row in shared_node.sql(query, of)}
    assert (config["max_steps"], config["num_train_epochs"]) == (16, 2)
