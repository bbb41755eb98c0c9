"""Artifacts, media, datasets, models and the registry of MLflow: a script writes them, and reads what MLflow has then.

Arguments: the tracking URI, and the file for what was read. It runs with MLflow's own store, and with chiplog.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("DATABRICKS_RUNTIME_VERSION", "15.4")  # else MLflow refuses the model's default format
import matplotlib.pyplot as plt
import mlflow
import mlflow.genai.datasets
import mlflow.genai.scorers
import mlflow.pytorch
import numpy as np
import pandas as pd
import torch
from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput
from mlflow.exceptions import MlflowException


def tree(list_directory: Callable[[str | None], list[Any]]) -> dict[str, Any]:
    """Return the names of the artifacts in a directory and below it, with the sizes of files."""
    found: dict[str, Any] = {}
    waiting: list[str | None] = [None]
    while waiting:
        for entry in list_directory(waiting.pop()):
            found[entry.path] = None if entry.is_dir else entry.file_size
            if entry.is_dir:
                waiting.append(entry.path)
    return found


def shown(name: str) -> str:
    """Return the name of a picture without its time and UUID."""
    first, *rest = re.split(r"[+%]timestamp[+%]", name)
    return f"{first} {'compressed' if 'compressed' in ''.join(rest) else ''}"


def described(model: Any, ids: dict[str, str]) -> dict[str, Any]:
    """Return a logged model with words in place of IDs."""
    metrics = [[m.key, repr(m.value), m.step, m.dataset_name, m.dataset_digest] for m in model.metrics or ()]
    return {
        "name": model.name,
        "experiment": ids.get(model.experiment_id, model.experiment_id),
        "run": ids.get(model.source_run_id, model.source_run_id),
        "type": model.model_type,
        "status": str(model.status),
        "tags": {key: value for key, value in model.tags.items() if not key.startswith("mlflow.")},
        "params": model.params,
        "metrics": sorted(metrics),
        "is_ordered": model.creation_timestamp <= model.last_updated_timestamp,
    }


def write(directory: Path) -> tuple[str, str, str]:
    """Write a run with all of it; return the IDs of the run, of its model, and of a model without a run."""
    client = MlflowClient()
    with mlflow.start_run(run_name="all") as run:
        mlflow.log_param("lr", 0.1)
        for step in range(3):
            mlflow.log_metric("loss", 1.0 / (step + 1), step=step)
        mlflow.log_metric("acc", 0.5)
        (directory / "deep").mkdir()
        (directory / "deep" / "a.bin").write_bytes(bytes(1000))
        (directory / "b.txt").write_text("b")
        mlflow.log_artifact(str(directory / "b.txt"))
        mlflow.log_artifact(str(directory / "b.txt"), "copies/first")
        mlflow.log_artifact(str(directory), "as_directory")
        mlflow.log_artifacts(str(directory), "all")
        mlflow.log_text("one", "notes/text.txt")
        mlflow.log_text("two", "notes/text.txt")  # replaces it
        mlflow.log_dict({"a": [1, 2]}, "notes/dict.json")
        mlflow.log_dict({"a": [1, 2]}, "notes/dict.yml")
        figure, axes = plt.subplots()
        axes.plot([0, 1], [1, 0])
        mlflow.log_figure(figure, "plots/line.svg")
        pixels = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
        mlflow.log_image(pixels, "pictures/one.png")
        for step in range(2):
            mlflow.log_image(pixels, key="val/sample", step=step, synchronous=True)
        mlflow.log_table({"x": [1, 2], "y": ["a", "b"]}, "table.json")
        mlflow.log_table({"x": [3], "y": ["c"]}, "table.json")
        frame = pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1]})
        dataset = mlflow.data.from_pandas(frame, name="train", targets="y")
        mlflow.log_input(dataset, context="training", tags={"split": "first"})
        mlflow.log_input(dataset, context="again")
        model = torch.nn.Linear(4, 2)
        with torch.no_grad():
            model.weight.fill_(0.5), model.bias.fill_(0.25)
        info = mlflow.pytorch.log_model(model, name="cnn", params={"depth": 1}, tags={"kind": "linear"})
        mlflow.log_metric("test_loss", 0.25)
        mlflow.log_metric("acc", 0.75, dataset=dataset, model_id=info.model_id)
        mlflow.set_logged_model_tags(info.model_id, {"stage": "dev", "gone": "1"})
        mlflow.set_logged_model_tags(info.model_id, {"stage": "prod"})
        mlflow.delete_logged_model_tag(info.model_id, "gone")
        mlflow.log_model_params({"width": "4"}, info.model_id)
        other = mlflow.create_external_model(name="other")
        client.log_outputs(run.info.run_id, [LoggedModelOutput(other.model_id, step=7)])
    alone = mlflow.create_external_model(name="alone", model_type="agent", params={"p": "1"})
    failed = mlflow.initialize_logged_model(name="failed")
    mlflow.finalize_logged_model(failed.model_id, "FAILED")
    deleted = mlflow.create_external_model(name="deleted")
    client.delete_logged_model(deleted.model_id)
    return run.info.run_id, info.model_id, alone.model_id


def read(run_id: str, model_id: str, alone_id: str) -> dict[str, Any]:
    """Return what MLflow has of it."""
    client = MlflowClient()
    run = client.get_run(run_id)
    experiment_id = run.info.experiment_id
    ids = {run_id: "RUN", experiment_id: "EXPERIMENT", model_id: "MODEL", alone_id: "ALONE"}
    files = {shown(name): size for name, size in tree(lambda path: client.list_artifacts(run_id, path)).items()}
    of_model = tree(lambda path: client.list_logged_model_artifacts(model_id, path))
    loaded = [mlflow.pytorch.load_model(uri) for uri in (f"models:/{model_id}", f"runs:/{run_id}/cnn")]
    inputs = [
        [
            given.dataset.name,
            given.dataset.source_type,
            given.dataset.schema,
            sorted((t.key, t.value) for t in given.tags),
        ]
        for given in run.inputs.dataset_inputs
    ]
    with tempfile.TemporaryDirectory() as place:
        path = mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path="all", dst_path=place)
        downloaded = {
            str(file.relative_to(path)): file.stat().st_size for file in Path(path).rglob("*") if file.is_file()
        }
    found = [
        [described(model, ids)["name"] for model in client.search_logged_models([experiment_id], **query)]
        for query in (
            {},
            {"filter_string": "name = 'cnn'"},
            {"filter_string": "metrics.acc > 0.6"},
            {"filter_string": "params.depth = '1'"},
            {"filter_string": "tags.stage = 'prod'"},
            {"filter_string": "model_type = 'agent'"},
            {"filter_string": "metrics.acc > 0.1", "datasets": [{"dataset_name": "train"}]},
            {"order_by": [{"field_name": "name", "ascending": True}]},
            {"order_by": [{"field_name": "metrics.acc", "ascending": False}], "max_results": 1},
        )
    ]
    try:
        mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path="no/such.txt")
        missing = "found"
    except MlflowException as error:
        missing = error.error_code
    return {
        "files": {name: size for name, size in files.items() if not name.startswith("plots/line")},
        "figure": any(name.startswith("plots/line.svg") for name in files),
        "model files": {
            name: size for name, size in of_model.items() if not name.endswith((".pth", "MLmodel", ".pt2"))
        },
        "MLmodel": sorted(of_model),
        "loaded": [[value.tolist() for value in model.state_dict().values()] for model in loaded],
        "text": mlflow.artifacts.load_text(f"{run.info.artifact_uri}/notes/text.txt"),
        "dict": mlflow.artifacts.load_dict(f"runs:/{run_id}/notes/dict.json"),
        "picture": list(mlflow.artifacts.load_image(f"runs:/{run_id}/pictures/one.png").size),
        "table": mlflow.load_table("table.json", run_ids=[run_id]).to_dict("list"),
        "downloaded": downloaded,
        "missing": missing,
        "inputs": inputs,
        "outputs": sorted([o.model_id == model_id, o.step] for o in run.outputs.model_outputs),
        "metrics": run.data.metrics,
        "history": [[m.value, m.step] for m in client.get_metric_history(run_id, "acc")],
        "model": described(client.get_logged_model(model_id), ids),
        "alone": described(client.get_logged_model(alone_id), ids),
        "search": found,
        "runs": len(client.search_runs([experiment_id])),
        "of nothing": [
            len(found)
            for found in (
                mlflow.search_traces(return_type="list"),
                mlflow.genai.scorers.list_scorers(),
                mlflow.genai.datasets.search_datasets(),
            )
        ],
    }


def registered(model_id: str, run_id: str) -> dict[str, Any]:
    """Return what the registry has of a model that is registered by both of its URIs."""
    client = MlflowClient()
    for uri in (f"models:/{model_id}", f"runs:/{run_id}/cnn"):
        mlflow.register_model(uri, "shop")
    client.set_registered_model_alias("shop", "champion", "2")
    versions = [[v.version, v.run_id == run_id, v.status] for v in client.search_model_versions("name = 'shop'")]
    weights = mlflow.pytorch.load_model("models:/shop@champion").bias.tolist()
    n_found = len(client.search_registered_models()), len(mlflow.genai.search_prompts())
    return {"versions": sorted(versions), "weights": weights, "models and prompts": n_found}


def main() -> None:
    mlflow.set_tracking_uri(sys.argv[1])
    mlflow.set_experiment("artifacts")
    plt.switch_backend("svg")
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "files").mkdir()
        ids = write(Path(place) / "files")
    found = read(*ids)
    try:
        found["registry"] = registered(ids[1], ids[0])
    except MlflowException as error:  # the oldest MLflow's wants an older SQLAlchemy
        found["registry"] = error.message
    Path(sys.argv[2]).write_text(json.dumps({"version": mlflow.__version__, "ids": ids, "found": found}))


if __name__ == "__main__":
    main()
