"""torch.distributed.rpc: each process calls `init()`; RPC's name of a worker is its label.

Run: `python rpc.py`
"""

import tempfile

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

import chiplog

NAMES = ("parameters", "trainer")


def square(value: torch.Tensor) -> torch.Tensor:
    """Run in an RPC thread of the callee: what it logs belongs to the callee."""
    chiplog.log({"squared": value.item()})
    return value * value


def work(rank: int, address: str) -> None:
    """Run one worker."""
    run = chiplog.init(project="rpc")
    options = rpc.TensorPipeRpcBackendOptions(init_method=address)
    rpc.init_rpc(NAMES[rank], rank=rank, world_size=2, rpc_backend_options=options)
    if NAMES[rank] == "trainer":
        for step in range(10):
            run.log({"result": rpc.rpc_sync("parameters", square, (torch.tensor(float(step)),))}, step=step)
    rpc.shutdown()
    run.finish()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(work, args=(f"file://{directory}/store",), nprocs=2)
