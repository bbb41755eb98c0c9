"""Log runs by MLflow into the store of a URI: `write_mlflow.py URI`, with params, tags, artifacts and ends."""

import sys
from pathlib import Path

import mlflow
import numpy as np
from mlflow.entities import LoggedModelOutput

Path("weights").mkdir()
Path("weights", "layer.txt").write_text("0.5")

mlflow.set_tracking_uri(sys.argv[1])
mlflow.set_experiment("mnist ü")
mlflow.set_experiment_tag("owner", "me")
with mlflow.start_run(run_name="parent", description="a note"):
    mlflow.log_params({"lr": 0.1, "optimizer": "adam", "text": "ü 'quoted'"})
    mlflow.set_tags({"team": "vision", "odd/key": "with\nlines"})
    for step in range(100):
        mlflow.log_metrics({"train/loss": 1 / (step + 1), "accuracy": step / 100}, step=step)
    for value in (1.0, 2.0, 2.0):
        mlflow.log_metric("without a step", value)
    for step, value in enumerate((float("nan"), float("inf"), float("-inf")), -1):
        mlflow.log_metric("odd", value, step=step)
    mlflow.log_text("hello", "notes/a.txt")
    mlflow.log_dict({"a": 1}, "a.json")
    mlflow.log_image(np.full((8, 8, 3), 99, np.uint8), key="val/image", step=3)
    mlflow.log_input(mlflow.data.from_numpy(np.zeros((3, 2)), name="zeros"), context="training")
    model = mlflow.initialize_logged_model(name="linear", params={"depth": "2"}, tags={"kind": "test"})
    mlflow.MlflowClient().log_model_artifacts(model.model_id, "weights")
    mlflow.log_metric("val/loss", 0.25, step=9, model_id=model.model_id)
    mlflow.finalize_logged_model(model.model_id, "READY")
    mlflow.log_outputs([LoggedModelOutput(model.model_id, step=9)])
    with mlflow.start_run(run_name="child", nested=True):
        mlflow.log_metric("train/loss", 5.0, step=7)
try:
    with mlflow.start_run(run_name="failed"):
        raise ValueError("as planned")
except ValueError:
    pass
with mlflow.start_run(run_name="deleted") as run:
    mlflow.log_metric("train/loss", 1.0)
mlflow.delete_run(run.info.run_id)
client = mlflow.MlflowClient()
experiment = client.get_experiment_by_name("mnist ü").experiment_id
client.set_terminated(client.create_run(experiment, run_name="killed").info.run_id, "KILLED")
client.create_run(experiment, run_name="open")
