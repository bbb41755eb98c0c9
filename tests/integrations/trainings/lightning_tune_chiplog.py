"""chiplog's logger and callback for Lightning after its Tuner has looked for a learning rate with the same trainer."""

import lightning
from expected import Expected
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from lightning_model import Model, Recorder, add_recorded, check_csv, data

from chiplog.integrations.lightning import ChiplogCallback, ChiplogLogger

recorder = Recorder()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=2,
    log_every_n_steps=1,
    logger=[ChiplogLogger(name="tiny"), CSVLogger("csv"), recorder],
    callbacks=[ChiplogCallback()],
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Model(recorder)
Tuner(trainer).lr_find(model, data(), data(), num_training=6)
recorder.rows, recorder.steps = [], []  # Lightning takes loggers and callbacks away meanwhile
trainer.fit(model, data(), data())
expected = Expected("lightning")
add_recorded(expected)
check_csv("csv")
expected.note(config={"width": 4, "lr": model.hparams.lr}, name="tiny")
expected.write()
