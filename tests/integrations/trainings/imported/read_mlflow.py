"""Print the runs of a store of MLflow, as its client reads them, as JSON: `read_mlflow.py URI`."""

import hashlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts

client = MlflowClient(tracking_uri=sys.argv[1])


def artifacts(run_id: str, path: str | None = None) -> dict[str, str]:
    found: dict[str, str] = {}
    for info in client.list_artifacts(run_id, path):
        if info.is_dir:
            found |= artifacts(run_id, info.path)
        else:
            local = download_artifacts(run_id=run_id, artifact_path=info.path, tracking_uri=sys.argv[1])
            found[info.path] = hashlib.sha256(Path(local).read_bytes()).hexdigest()
    return found


def read_model(output: Any) -> dict[str, Any]:
    model = client.get_logged_model(output.model_id)
    place = download_artifacts(artifact_uri=model.artifact_location, tracking_uri=sys.argv[1])
    return {
        "output": (output.model_id, output.step),
        "names": (model.name, model.model_type, model.source_run_id, str(model.status)),
        "times": (model.creation_timestamp, model.last_updated_timestamp),
        "tags": model.tags,
        "params": model.params,
        "metrics": [(row.key, row.value, row.step, row.timestamp) for row in model.metrics],
        "files": {path.name: path.read_text() for path in Path(place).rglob("*.txt")},
    }


def read(run: Any) -> dict[str, Any]:
    history = [client.get_metric_history(run.info.run_id, key) for key in run.data.metrics]
    return {
        "name": run.info.run_name,
        "status": run.info.status,
        "started_us": run.info.start_time * 1000,
        "ended_us": run.info.end_time and run.info.end_time * 1000,
        "params": run.data.params,
        "tags": run.data.tags,
        "metrics": sorted(
            (row.key, row.step, row.timestamp * 1000, repr(row.value)) for rows in history for row in rows
        ),
        "datasets": [used.dataset.to_dictionary() for used in run.inputs.dataset_inputs],
        "contexts": [{tag.key: tag.value for tag in used.tags} for used in run.inputs.dataset_inputs],
        "models": [read_model(output) for output in run.outputs.model_outputs],
        "artifacts": artifacts(run.info.run_id),
    }


experiments = [experiment.experiment_id for experiment in client.search_experiments()]
runs = {run.info.run_id: read(run) for run in client.search_runs(experiments)}
print(json.dumps({"version": version("mlflow"), "runs": runs}))
