"""Spark's TorchDistributor, on the driver and in two tasks of executors: one session for both."""

import json
import sys
from pathlib import Path

import pytest

from tests.launchers.scripts import RANKS
from tests.launchers.training import Launched, Training, finished
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.tools import needs
from tests.support.waiting import wait_until

pytestmark = [needs("java"), pytest.mark.xdist_group("spark")]

# spark.executorEnv has all variables of chiplog for the tasks: the driver has none of them, as on a cluster.
DRIVER = """
import json, os, sys
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

train, on_driver, on_executors = sys.argv[1], *map(json.loads, sys.argv[2:])
builder = SparkSession.builder.master("local[2]").appName("chiplog")
builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
for name, value in on_executors.items():
    builder = builder.config(f"spark.executorEnv.{name}", value)
spark = builder.getOrCreate()
TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(train)
os.environ.update(on_driver)
TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(train)
spark.stop()
"""


def own(training: Training) -> dict[str, str]:
    """Return the variables that this training's processes need and no other's have."""
    return {name: value for name, value in training.environ.items() if name.startswith(("CHIPLOG_", "TRUTH_"))}


def test_a_distributor_is_one_run_on_the_driver_and_on_executors(launched: Launched, tmp_path: Path) -> None:
    driver, executors = launched("Spark, local_mode=True"), launched("Spark, local_mode=False")
    at_driver = own(driver)
    for name in at_driver:
        del driver.environ[name]
    told = own(executors) | {"OMP_NUM_THREADS": "1", "PYTHONPATH": executors.environ["PYTHONPATH"]}
    command = [sys.executable, driver.script(DRIVER, "driver.py"), driver.script(RANKS)]
    driver.run(
        [*command, json.dumps(at_driver), json.dumps(told)],
        {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path)},
    )
    assert executors.check(finished(2)) != driver.check(finished(2))


# A notebook: it opens a run, and leaves the training to a distributor.
NOTEBOOK = """
import os, sys
import chiplog
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

run = chiplog.init("notebook", tags=["driver"], config={"data": "wiki", "lr": 0.1}, capture_console=False)
with open("notes.txt", "w") as file:
    file.write("before")
run.save("notes.txt")
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(sys.argv[1])
run.config["best"] = 3
with open("report.txt", "w") as file:
    file.write("after")
run.save("report.txt")
spark.stop()
run.finish()
"""
TRAINS = """
import os, pathlib
import torch.distributed as dist
import chiplog
dist.init_process_group("gloo")
run = chiplog.init(config={"lr": 0.2, "batch": 8}, capture_console=False)
run.log({"loss": 1.0}, step=0)
if dist.get_rank() == 0:
    pathlib.Path("last.pt").write_bytes(b"weights")
    run.save("last.pt")
run.finish()
dist.destroy_process_group()
"""


@proves(
    "ranks-name-their-parent",
    "ranks name the process with an open run that started their launcher",
    part="joins",
    new="False",
)
def test_a_driver_with_an_open_run_and_its_ranks_both_write_the_run(
    launched: Launched, shared_node: Node, tmp_path: Path
) -> None:
    training = launched("Spark, local_mode=True, in a notebook")
    run_id = f"notebook-{training.directory.name}"
    del training.environ["CHIPLOG_PROJECT"]
    notebook = NOTEBOOK.replace('"notebook",', f'"notebook", run_id="{run_id}",')
    training.run(
        [sys.executable, training.script(notebook, "notebook.py"), training.script(TRAINS)],
        {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path)},
    )
    ended = "SELECT count(*) AS n FROM labels WHERE run_id = $run AND state = 'finished'"
    wait_until(lambda: shared_node.sql(ended, {"run": run_id})[0]["n"] == 3, "the ends of driver and ranks")

    def sql(query: str) -> list[tuple[object, ...]]:
        return [tuple(row.values()) for row in shared_node.sql(query, {"run": run_id})]

    assert sql("SELECT kind FROM events WHERE run_id = $run AND (kind LIKE '%refused' OR kind = 'config_drift')") == []
    assert sql("SELECT primary_label, state, project, tags FROM runs WHERE run_id = $run") == [
        ("rank0", "finished", "notebook", ["driver"])
    ]
    written = sql("SELECT key, value::VARCHAR, label = 'rank0' FROM config WHERE run_id = $run ORDER BY ALL")
    assert written == [("batch", "8", True), ("best", "3", False), ("data", '"wiki"', False), ("lr", "0.2", True)]
    assert sql("SELECT path FROM files WHERE run_id = $run ORDER BY ALL") == [
        ("last.pt",),
        ("notes.txt",),
        ("report.txt",),
    ]
