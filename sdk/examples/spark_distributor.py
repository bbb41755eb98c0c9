"""Spark's TorchDistributor: the function that it distributes calls `init()`, unchanged.

Run: `python spark_distributor.py`
"""

import os
import sys

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession


def train(steps: int) -> str:
    """Run one rank. Spark pickles this function, so it imports what it needs."""
    import torch.distributed as dist

    import chiplog

    dist.init_process_group("gloo")
    with chiplog.init(project="spark", config={"steps": steps}) as run:
        for step in range(steps):
            run.log({"loss": (1.0 + dist.get_rank()) / (step + 1)}, step=step)
        dist.barrier()
    dist.destroy_process_group()
    return run.id


if __name__ == "__main__":
    master = sys.argv[1] if sys.argv[1:] else "local[2]"
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    if "CHIPLOG_DIR" in os.environ:  # for executors, which do not get the driver's environment
        builder = builder.config("spark.executorEnv.CHIPLOG_DIR", os.environ["CHIPLOG_DIR"])
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    is_local = master.startswith("local[")
    print("run", TorchDistributor(num_processes=2, local_mode=is_local, use_gpu=False).run(train, 10))
    spark.stop()
