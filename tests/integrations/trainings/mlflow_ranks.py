"""Ranks of one MLflow run, each of which logs artifacts and is killed right after its last call."""

import os
import signal
from pathlib import Path


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, once the other rank is killed: each kills itself
    import mlflow
    import numpy as np

    rank = int(os.environ["RANK"])
    mlflow.set_experiment(os.environ["PROJECT"])
    mlflow.start_run(run_name="ranks")
    here = Path(f"rank{rank}")
    here.mkdir()
    (here / "large.bin").write_bytes(bytes([rank]) * 3_000_000)
    mlflow.log_artifact(str(here / "large.bin"), f"../outside{rank}")  # one line, and nothing of it is stored
    mlflow.log_image(np.full((8, 8), rank, dtype=np.uint8), key="sample", step=rank, synchronous=True)
    mlflow.log_artifacts(str(here), f"ranks/{rank}")
    mlflow.log_text(f"of rank {rank}", f"ranks/{rank}.txt")
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
