"""What `start_run()` opens: on a rank, in a driver that starts ranks, in cells of a notebook, before a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow

PROJECT = os.environ["PROJECT"]


def ranks() -> None:
    """Log on each rank; rank 0 makes a nested and a further run, too."""
    rank = int(os.environ["RANK"])
    mlflow.set_experiment(PROJECT)
    with mlflow.start_run(run_name="ranks"):
        mlflow.log_param(f"of rank {rank}", rank)
        mlflow.log_param("first", "same")
        for step in range(3):
            mlflow.log_metric("loss", rank + step / 4, step=step)
        if rank == 0:
            with mlflow.start_run(run_name="nested", nested=True):
                mlflow.log_metric("loss", 9.0)
    if rank == 0:
        with mlflow.start_run(run_name="further"):
            mlflow.log_metric("loss", 8.0)


def driver() -> None:
    """Start ranks while a run is open: they have one of their own, unless they get its ID."""
    mlflow.set_experiment(PROJECT)
    with mlflow.start_run(run_name="driver") as run:
        mlflow.log_metric("before", 1.0)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
        named = {"MLFLOW_RUN_ID": run.info.run_id} if sys.argv[2:] == ["id"] else {}
        subprocess.run([*command, "ranks"], env={**os.environ, **named}, check=True)
        mlflow.log_metric("after", 2.0)


def cells() -> None:
    """Set ranks by hand, as cells of a notebook do: each start_run() is a run. A metric without a run is another."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="29501")
    mlflow.set_experiment(PROJECT)
    for number in range(2):
        with mlflow.start_run(run_name=f"cell {number}"):
            mlflow.log_metric("loss", number)
    mlflow.log_metric("auto", 1.0)


def killed() -> None:
    """Log, and die between two calls."""
    mlflow.set_experiment(PROJECT)
    mlflow.start_run(run_name="killed")
    for step in range(100):
        mlflow.log_metric("loss", float(step), step=step)
    mlflow.set_tag("last", "kept")
    os.kill(os.getpid(), signal.SIGKILL)


def rank_killed() -> None:
    """Log on each rank; rank 1 dies between two calls, and its launcher ends rank 0."""
    rank = int(os.environ["RANK"])
    mlflow.set_experiment(PROJECT)
    mlflow.start_run(run_name="ranks")
    for step in range(3):
        mlflow.log_metric("loss", rank + step / 4, step=step)
    logged = Path("logged")
    if rank == 1:
        wait_until(logged.exists)  # else the launcher ends rank 0 before it has logged
        os.kill(os.getpid(), signal.SIGKILL)
    logged.touch()
    time.sleep(600)


def reads() -> None:
    """Read on rank 1 before rank 0 begins, once it has logged, after rank 1's end, and after rank 0's."""
    mlflow.set_experiment(PROJECT)
    alone, ended = Path("alone"), Path("ended")
    if os.environ["RANK"] == "0":
        wait_until(alone.exists)
        with mlflow.start_run(run_name="of rank 0"):
            mlflow.log_metric("loss", 0.0)
            wait_until(ended.exists)
        return
    run_id = mlflow.start_run().info.run_id
    mlflow.log_metric("loss", 1.0)
    seen = [seen_of(run_id)]
    alone.touch()
    wait_until(lambda: "loss" in mlflow.get_run(run_id).data.metrics)
    seen.append(seen_of(run_id))
    mlflow.end_run()
    seen.append(seen_of(run_id))
    ended.touch()
    wait_until(lambda: mlflow.get_run(run_id).info.status != "RUNNING")
    seen.append(seen_of(run_id))
    print("SEEN", json.dumps(seen))


def seen_of(run_id: str) -> list[Any]:
    """Return what MLflow reads of a run: its name, status, whether it has an end, its metrics and their histories."""
    run, client = mlflow.get_run(run_id), mlflow.MlflowClient()
    found = mlflow.search_runs(experiment_names=[PROJECT], output_format="list")
    assert [other.data.metrics for other in found] == [run.data.metrics]
    histories = [[point.value for point in client.get_metric_history(run_id, key)] for key in ("loss", "rank1/loss")]
    name = "its ID" if run.info.run_name == run_id else run.info.run_name
    return [name, run.info.status, run.info.end_time is not None, run.data.metrics, histories]


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait ten minutes at most: each rank imports MLflow first."""
    for _ in range(6000):
        if is_true():
            return
        time.sleep(0.1)
    raise TimeoutError


def load() -> None:
    """Load the model of each run that has one, and let it classify an empty image."""
    import torch

    for run in mlflow.search_runs(experiment_names=[PROJECT], output_format="list"):
        if run.outputs is not None and run.outputs.model_outputs:
            model = mlflow.pytorch.load_model(f"runs:/{run.info.run_id}/model")
            print(model(torch.zeros(1, 1, 28, 28)).shape[1])


def bad() -> None:
    """Log what is wrong, without a collector: reads fail, by MLflow's errors, and no log does."""
    mlflow.set_experiment(PROJECT)
    with mlflow.start_run():
        mlflow.log_metric("a\nb", 1.0)
        mlflow.log_metric("good", 1.0)
    mlflow.MlflowClient().log_metric("x" * 10_000, "loss", 1.0)
    mlflow.MlflowClient().set_tag("../../etc/passwd", "loss", "1")
    for call in (
        lambda: mlflow.search_runs(experiment_names=[PROJECT]),
        lambda: mlflow.MlflowClient().get_run("x" * 10_000),
        lambda: mlflow.MlflowClient().get_run("../../etc/passwd"),
    ):
        try:
            call()
        except mlflow.MlflowException as error:
            print(error.error_code)


if __name__ == "__main__":
    {
        "ranks": ranks,
        "driver": driver,
        "cells": cells,
        "killed": killed,
        "rank_killed": rank_killed,
        "reads": reads,
        "load": load,
        "bad": bad,
    }[sys.argv[1]]()
