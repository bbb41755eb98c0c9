"""torch.multiprocessing.spawn: no variable gives a child its rank; torch.distributed does, once it is initialised.

Run: `python spawn.py`
"""

import torch.distributed as dist
import torch.multiprocessing as mp

import chiplog


def train(rank: int, world_size: int, address: str) -> None:
    """Run one rank."""
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    run = chiplog.init(project="spawn", config={"lr": 0.1})
    for step in range(20):
        run.log({"train/loss": 1.0 / (step + 1 + rank)}, step=step)
    dist.barrier()
    run.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(train, args=(2, f"file://{directory}/store"), nprocs=2)
