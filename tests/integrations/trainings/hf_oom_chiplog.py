"""Two ranks of the Trainer, of which the second one runs out of memory: by an exception, or killed as by the kernel."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from expected import Expected
from hf_model import Noise, RankTrainer, add_recorded, arguments, model

import chiplog.integrations.huggingface  # noqa: F401  # report_to="chiplog"

kind = sys.argv[1]
rank = int(os.environ["RANK"])
CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB."
ENDS = {
    "host": ["rank1", "failed", 1, None, "MemoryError: no room for the batch"],
    "cuda": ["rank1", "failed", 1, None, f"CUDA out of memory: OutOfMemoryError: {CUDA}"],
    "kernel": ["rank1", "crashed", None, signal.SIGKILL, "killed by SIGKILL"],
}


class Big(RankTrainer):
    """Needs too much memory in the fourth step."""

    def training_step(self, *given, **named):
        if self.state.global_step == 3:
            self.write_down("new")
            Path(f"new{rank}.json").rename(f"rank{rank}.json")
            if rank == 1:
                self.fail()
        return super().training_step(*given, **named)

    def fail(self):
        while not Path("rank0.json").exists():
            time.sleep(0.01)
        expected = Expected("transformers")
        add_recorded(expected, "rank", 2)
        expected.note(states=None, ends=[ENDS[kind]])
        expected.write()
        if kind == "host":
            raise MemoryError("no room for the batch")
        if kind == "cuda":
            raise torch.OutOfMemoryError(CUDA)
        os.kill(os.getpid(), signal.SIGKILL)


given = arguments(report_to=["chiplog", "tensorboard"], num_train_epochs=1, save_strategy="no")
Big(model(), given, train_dataset=Noise(20)).train()
