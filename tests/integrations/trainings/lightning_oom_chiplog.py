"""Two ranks of Lightning, of which the second one runs out of memory: by an exception, or killed as by the kernel."""

import os
import signal
import sys
import time
from pathlib import Path

import lightning
import torch
from expected import Expected
from lightning_model import Model, Recorder, add_recorded, data

from chiplog.integrations.lightning import ChiplogCallback, ChiplogLogger

kind = sys.argv[1]
CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB."
ENDS = {
    "host": ["rank1", "failed", 1, None, "MemoryError: no room for the batch"],
    "cuda": ["rank1", "failed", 1, None, f"CUDA out of memory: OutOfMemoryError: {CUDA}"],
    "kernel": ["rank1", "crashed", None, signal.SIGKILL, "killed by SIGKILL"],
}


class Big(Model):
    """Needs too much memory in the fourth batch."""

    def training_step(self, batch, index):
        if index == 3:
            self.recorder.finalize("failed")
            if self.global_rank == 1:
                self.fail()
        return super().training_step(batch, index)

    def fail(self):
        while not Path("rank0.json").exists():
            time.sleep(0.01)
        expected = Expected("lightning")
        add_recorded(expected, ranks=2)
        expected.note(states=None, ends=[ENDS[kind]])
        expected.write()
        if kind == "host":
            raise MemoryError("no room for the batch")
        if kind == "cuda":
            raise torch.OutOfMemoryError(CUDA)
        os.kill(os.getpid(), signal.SIGKILL)


recorder = Recorder()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=1,
    log_every_n_steps=1,
    logger=[ChiplogLogger(), recorder],
    callbacks=[ChiplogCallback()],
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Big(recorder), data())
