"""A session of MLflow code: `write` does it all and prints what MLflow reads of it, `read` prints that again.

Only IDs, places and the times of MLflow's own clock differ from store to store, and are left out.
"""

import json
import sys
from math import nan
from typing import Any

import mlflow
from mlflow import MlflowClient, MlflowException
from mlflow.entities import Metric, Param, RunTag, ViewType

ITS_OWN = ("run_id", "start_time", "end_time", "artifact_uri")  # of each store
SEARCHES: tuple[tuple[str | None, list[str]], ...] = (
    (None, ["attributes.run_name ASC"]),
    ("metrics.loss < 0.3", ["metrics.loss DESC"]),
    ("params.lr = '0.1' and tags.team = 'x'", []),
    ("tags.`mlflow.parentRunId` LIKE '%'", []),
    ("attributes.status = 'FAILED'", ["params.lr DESC", "attributes.run_name DESC"]),
    ("attributes.run_name ILIKE 'S%'", ["tags.team"]),
    ("params.depth LIKE '1%' and metrics.`val/acc` >= 0.5", ["metrics.`val/acc`"]),
)


def refused(call: Any, *given: Any, **named: Any) -> str:
    """Return the code of the error that a call raises."""
    try:
        call(*given, **named)
    except MlflowException as error:
        return str(error.error_code)
    return "no error"


def points(metrics: list[Metric]) -> list[tuple[int, int, float]]:
    """Return steps, times and values."""
    return [(metric.step, metric.timestamp, metric.value) for metric in metrics]


def write() -> list[str]:
    """Do what scripts do; return the codes of the errors on the way."""
    client = MlflowClient()
    errors = []
    made = client.create_experiment("other", tags={"team": "x"})
    errors.append(refused(client.create_experiment, "other"))
    client.set_experiment_tag(made, "stage", "late")
    mlflow.set_experiment("mnist")
    with mlflow.start_run(run_name="main", description="a note", tags={"team": "x"}) as main:
        mlflow.log_params({"lr": 0.1, "depth": 12})
        for step in range(5):
            mlflow.log_metrics({"loss": 1 / (step + 1), "val/acc": step / 5}, step=step, timestamp=1_000 + step)
        mlflow.log_metric("late step", 1.0, step=9, timestamp=5_000)
        mlflow.log_metric("late step", 2.0, step=3, timestamp=6_000)
        mlflow.log_metric("plain", 0.5, timestamp=7_000)
        mlflow.log_metric("plain", 0.25, timestamp=8_000)
        mlflow.log_metric("nan", nan, timestamp=9_000)
        errors.append(refused(mlflow.log_param, "lr", 0.2))
        errors.append(refused(mlflow.log_params, {"depth": 13}))
        errors.append(refused(mlflow.log_metric, "a\nb", 1.0))
        with mlflow.start_run(run_name="child", nested=True):
            mlflow.set_tags({"team": "y", "n": 7})
            mlflow.delete_tag("n")
            errors.append(refused(mlflow.delete_tag, "n"))
    try:
        with mlflow.start_run(run_name="second"):
            mlflow.log_param("lr", "0.1")
            raise ValueError("stop")
    except ValueError:
        pass
    with mlflow.start_run(run_id=main.info.run_id):
        mlflow.log_metric("loss", 0.125, step=5, timestamp=1_005)
        mlflow.set_tag("resumed", "yes")
    run = client.create_run(made, tags={"mlflow.runName": "by client"})
    metrics = [Metric("loss", 1.0 / n, 100 + n, n) for n in range(1, 4)]
    client.log_batch(run.info.run_id, metrics, [Param("lr", "0.1")], [RunTag("team", "x")])
    client.set_terminated(run.info.run_id)
    client.set_tag(run.info.run_id, "after", "the end")
    client.update_run(run.info.run_id, name="renamed")
    client.update_run(run.info.run_id, name="by client")
    for name, status in (("killed", "KILLED"), ("gone", "FINISHED")):
        run = client.create_run(made, run_name=name)
        client.set_terminated(run.info.run_id, status)
    client.delete_run(run.info.run_id)
    errors.append(refused(client.log_metric, run.info.run_id, "loss", 1.0))
    with mlflow.start_run(run_name="async"):
        for step in range(20):
            mlflow.log_metric("async", step / 4, step=step, timestamp=1 + step, synchronous=False)
        mlflow.flush_async_logging()
    errors.append(refused(client.get_run, "0" * 32))
    return errors


def account() -> dict[str, Any]:
    """Return all that MLflow reads of it."""
    client = MlflowClient()
    experiments = {found.experiment_id: found for found in client.search_experiments(order_by=["name ASC"])}
    ids = list(experiments)
    runs = client.search_runs(ids, run_view_type=ViewType.ALL, order_by=["attributes.run_name ASC"])
    said: dict[str, Any] = {"experiments": [[e.name, e.tags, e.lifecycle_stage] for e in experiments.values()]}
    for run in runs:
        again = client.get_run(run.info.run_id)
        assert json.dumps(again.to_dictionary()) == json.dumps(run.to_dictionary())  # NaN is NaN there
        keys = sorted(run.data.metrics)
        found = run.to_dictionary()
        info, data = found["info"], found["data"]
        info["experiment_id"] = experiments[info["experiment_id"]].name
        assert (info["end_time"] or info["start_time"]) >= info["start_time"]
        parent = client.get_parent_run(run.info.run_id)
        assert (parent and parent.info.run_id) == data["tags"].pop("mlflow.parentRunId", None)
        said[run.info.run_name] = {
            "info": {key: value for key, value in info.items() if key not in ITS_OWN},
            "data": data,
            "parent": parent.info.run_name if parent else None,
            "latest": {metric.key: points([metric]) for metric in run.data._metric_objs},
            "history": {key: points(client.get_metric_history(run.info.run_id, key)) for key in keys},
        }
    for filter_string, order_by in SEARCHES:
        found = client.search_runs(ids, filter_string or "", order_by=order_by)
        said[f"search {filter_string} {order_by}"] = [run.info.run_name for run in found]
    page = client.search_runs(ids, max_results=2, order_by=["attributes.run_name ASC"])
    pages = [[run.info.run_name for run in page]]
    while page.token:
        page = client.search_runs(ids, max_results=2, order_by=["attributes.run_name ASC"], page_token=page.token)
        pages.append([run.info.run_name for run in page])
    said["pages"] = pages
    said["by tag"] = [e.name for e in client.search_experiments(filter_string="tags.team = 'x' and name LIKE 'o%'")]
    said["bad filter"] = refused(client.search_runs, ids, "loss < 1")
    said["frame"] = sorted(column for column in mlflow.search_runs(ids).columns)
    return said


if __name__ == "__main__":
    errors = write() if sys.argv[1] == "write" else None
    print("ACCOUNT", json.dumps({"errors": errors, "said": account()}))
