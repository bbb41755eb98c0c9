"""Lightning's TensorBoardLogger beside `sync()`: what the Trainer hands to its loggers is in the run."""

import json
from pathlib import Path

import lightning
from expected import Expected
from lightning.pytorch.loggers import TensorBoardLogger
from lightning_model import Model, Recorder, data

from chiplog.integrations.tensorboard import sync

expected = Expected("lightning")
sync()
recorder = Recorder()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=2,
    log_every_n_steps=1,
    logger=[recorder, TensorBoardLogger("events")],
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(recorder), data(), data())
rows, _ = json.loads(Path("rank0.json").read_text("utf-8"))
for step, key, value in [*rows, [0, "hp_metric", -1]]:
    expected.add(step, {key: value})
expected.write()
