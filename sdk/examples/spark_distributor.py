"""Spark's TorchDistributor: the function that it distributes calls `init()`, unchanged.

Run: `python spark_distributor.py`
"""

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession


def train(steps: int) -> str:
    """Run one rank. Spark pickles this function, so it imports what it needs."""
    import torch.distributed as dist

    import chiplog

    dist.init_process_group("gloo")
    with chiplog.init(project="spark", config={"steps": steps}) as run:
        for step in range(steps):
            run.log({"loss": 1.0 / (step + 1)}, step=step)
        dist.barrier()
    dist.destroy_process_group()
    return run.id


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    run_id = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(train, 10)
    print("run", run_id)
    spark.stop()
