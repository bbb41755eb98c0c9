"""Spark's TorchDistributor, on the driver and in two tasks of executors: one session for both."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launchers.scripts import RANKS
from tests.launchers.training import Training, finished

pytestmark = pytest.mark.xdist_group("spark")

Launched = Callable[[str], Training]

# What spark.executorEnv says is all that the tasks know of chiplog: the driver has none of it, as on a cluster.
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
    if shutil.which("java") is None:
        pytest.fail("the command java is missing; apt-get install openjdk-17-jre-headless", pytrace=False)
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
